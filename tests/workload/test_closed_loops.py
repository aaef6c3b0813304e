"""Closed loops that count sessions or requests, alone and beside an open one."""

from __future__ import annotations

import math
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.workload.closed_loop import ClosedLoop
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload


def sessions(*delays: list[float]) -> Workload:
    """Sessions of one turn and a further one after each delay."""
    workload = Workload("sessions")
    for further in delays:
        session = workload.session[workload.add([(0, 0, 8)], 1)]
        for delay_ms in further:
            workload.add([(0, 0, 8)], 1, session=session, time_ms=delay_ms)
    return workload


def serve(driver: Driver, duration_ms: float) -> list[tuple[float, int]]:
    """(when, request) of everything that is sent when each request takes so long."""
    log: list[tuple[float, int]] = []
    ends: list[tuple[float, int]] = []
    while not driver.exhausted:
        now_ms = min(driver.next_ready_ms(), ends[0][0] if ends else math.inf)
        assert now_ms < math.inf
        while ends and ends[0][0] == now_ms:
            driver.finished(heappop(ends)[1], now_ms)
        while driver.next_ready_ms() <= now_ms:
            for request in driver.release(now_ms):
                assert driver.arrival_ms[request] == now_ms
                log.append((now_ms, request))
                heappush(ends, (now_ms + duration_ms, request))
    return log


def test_by_session_a_place_is_kept_while_its_session_thinks():
    workload = sessions([100.0], [], [])
    assert serve(Driver(workload, 1), 10.0) == [(0, 0), (110, 1), (120, 2), (130, 3)]


def test_by_request_others_go_on_meanwhile():
    workload = sessions([100.0], [], [])
    assert serve(Driver(workload, 1, concurrency_by="request"), 10.0) == [(0, 0), (10, 2), (20, 3), (110, 1)]


def test_a_turn_that_is_due_goes_before_a_session_that_has_not_begun():
    workload = sessions([5.0], [], [], [])
    # the second turn of session 0 is due at 15, while session 1 has the place until 20
    assert serve(Driver(workload, 1, concurrency_by="request"), 10.0) == [(0, 0), (10, 2), (20, 1), (30, 3), (40, 4)]


def test_a_turn_without_delay_takes_the_place_that_its_session_has_just_left():
    workload = sessions([0.0, 0.0], [])
    assert serve(Driver(workload, 1, concurrency_by="request"), 10.0) == [(0, 0), (10, 1), (20, 2), (30, 3)]


def test_turns_wait_for_a_place_in_the_order_in_which_they_were_due():
    workload = sessions([7.0], [5.0], [])
    log = serve(Driver(workload, 2, concurrency_by="request"), 10.0)
    # 0 and 2 end at 10; session 2 takes one place; 3 is due at 15, 1 at 17; the other place is free at 15
    assert log == [(0, 0), (0, 2), (10, 4), (15, 3), (20, 1)]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 5.0, 10.0, 25.0]), max_size=3), min_size=1, max_size=9),
    st.integers(1, 5),
)
def test_by_request_no_place_is_empty_while_anyone_wants_it(delays, places):
    workload = sessions(*delays)
    if not workload.has_turns:
        workload.add([(0, 0, 8)], 1, session=0, time_ms=3.0)
    log = serve(Driver(workload, places, concurrency_by="request"), 10.0)
    assert sorted(request for _, request in log) == list(range(workload.num_requests))
    sent = {request: at for at, request in log}
    assert sorted(sent.values()) == [at for at, _ in log]
    for at, request in log:
        in_flight = sum(begin <= at < begin + 10.0 for begin in sent.values())
        assert in_flight <= places
        before = [r for r in range(workload.num_requests) if workload.next_turn[r] == request]
        due = sent[before[0]] + 10.0 + workload.time_ms[request] if before else 0.0
        assert at >= due
        # whoever waits, waits because every place is taken at every instant until then
        for begin in [due, *(b + 10.0 for b in sent.values() if due <= b + 10.0 < at)]:
            if begin < at:
                assert sum(b <= begin < b + 10.0 for b in sent.values()) == places


def test_counting_requests_has_no_effect_where_sessions_are_requests():
    with pytest.raises(InputError, match="concurrency_by: has no effect: every session of sessions is one request"):
        Driver(sessions([], []), 1, concurrency_by="request")


def test_two_closed_loops_beside_an_open_one():
    workload = sessions([], [], [30.0], [], [])
    workload.time_ms[0] = 4.0
    workload.time_ms[1] = 5.0
    workload.closed_loops = [ClosedLoop(1, 2, 3), ClosedLoop(1, 3, 5)]
    log = serve(Driver(workload), 10.0)
    assert log == [(0, 2), (0, 4), (4, 0), (5, 1), (10, 5), (40, 3)]
    assert serve(Driver(workload), 10.0) == log  # a driver leaves the loops of the workload as they are
