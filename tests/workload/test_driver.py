"""When the driver sends what, shown with a server that ends every request after a fixed time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from windtunnel.errors import InputError
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace

INFINITY = math.inf


def sessions(*turns: list[float]) -> Workload:
    """One session a list: the arrival of its first turn, then the delays of the others, in ms."""
    workload = Workload()
    for number, times in enumerate(turns):
        for place, time_ms in enumerate(times):
            workload.add([(workload.num_requests, 0, 8)], 1, session=number if place else None, time_ms=time_ms)
    return workload


def serve(driver: Driver, duration_ms: Callable[[int], float]) -> list[tuple[float, list[int]]]:
    """Run to the end with a server of endless width; what was released together, and when."""
    log = []
    ends: list[tuple[float, int]] = []
    while not driver.exhausted:
        now_ms = min(driver.next_ready_ms(), min(ends, default=(INFINITY, 0))[0])
        for end in sorted(end for end in ends if end[0] <= now_ms):
            ends.remove(end)
            driver.finished(end[1], now_ms)
        sent = driver.release(now_ms)
        ends += [(now_ms + duration_ms(request), request) for request in sent]
        if sent:
            log.append((now_ms, sent))
    return log


def test_open_loop_arrivals_are_sent_in_time_order_whatever_the_order_of_sessions():
    driver = Driver(sessions([2000.0], [0.0], [1000.0]))
    assert serve(driver, lambda _: 5.0) == [(0.0, [1]), (1000.0, [2]), (2000.0, [0])]
    assert list(driver.arrival_ms) == [2000.0, 0.0, 1000.0]


def test_sessions_that_arrive_together_are_sent_in_their_order():
    assert Driver(sessions([7.0], [0.0], [7.0], [0.0], [7.0])).release(7.0) == [1, 3, 0, 2, 4]


def test_a_first_turn_without_a_time_arrives_at_zero():
    assert serve(Driver(sessions([math.nan], [3.0], [math.nan])), lambda _: 1.0) == [(0.0, [0, 2]), (3.0, [1])]


def test_nothing_is_sent_before_its_time():
    driver = Driver(sessions([10.0]))
    assert driver.release(9.999) == []
    assert driver.next_ready_ms() == 10.0
    assert driver.release(10.0) == [0]


def test_open_loop_arrival_is_the_scheduled_time_even_when_released_late():
    driver = Driver(sessions([10.0, 5.0]))
    driver.release(25.0)
    driver.finished(0, 30.0)
    driver.release(50.0)
    assert list(driver.arrival_ms) == [10.0, 35.0]


def test_a_turn_follows_a_delay_after_the_end_of_the_one_before():
    assert serve(Driver(sessions([0.0, 250.0, 0.0])), lambda _: 42.0) == [(0.0, [0]), (292.0, [1]), (334.0, [2])]


def test_a_delay_that_is_not_stated_is_none():
    assert serve(Driver(sessions([0.0, math.nan])), lambda _: 42.0) == [(0.0, [0]), (42.0, [1])]


def test_later_turns_and_first_turns_at_one_instant_are_sent_in_session_order():
    driver = Driver(sessions([0.0, 10.0], [20.0], [0.0, 5.0], [20.0]))
    assert driver.release(0.0) == [0, 3]
    driver.finished(3, 15.0)
    driver.finished(0, 10.0)
    assert driver.release(20.0) == [1, 2, 4, 5]


def test_an_earlier_ready_time_goes_first_even_if_released_together():
    driver = Driver(sessions([0.0, 10.0], [12.0], [11.0]))
    driver.release(0.0)
    driver.finished(0, 3.0)
    assert driver.release(100.0) == [3, 2, 1]
    assert list(driver.arrival_ms) == [0.0, 13.0, 12.0, 11.0]


def test_next_ready_is_infinite_while_only_a_completion_can_help():
    driver = Driver(sessions([0.0, 5.0]))
    driver.release(0.0)
    assert driver.next_ready_ms() == INFINITY
    assert not driver.exhausted
    driver.finished(0, 8.0)
    assert driver.next_ready_ms() == 13.0


def test_the_driver_is_exhausted_when_the_last_request_has_ended():
    driver = Driver(sessions([0.0]))
    assert not driver.exhausted
    driver.release(0.0)
    assert not driver.exhausted
    driver.finished(0, 1.0)
    assert driver.exhausted
    assert driver.next_ready_ms() == INFINITY


def test_a_workload_without_requests_is_exhausted_at_once():
    assert Driver(Workload()).exhausted
    assert Driver(Workload(), concurrency=3).exhausted


def test_released_and_in_flight_are_counted():
    driver = Driver(sessions([0.0], [0.0], [5.0]))
    driver.release(0.0)
    assert (driver.released, driver.in_flight) == (2, 2)
    driver.finished(1, 1.0)
    assert (driver.released, driver.in_flight) == (2, 1)
    driver.release(5.0)
    assert (driver.released, driver.in_flight) == (3, 2)


def test_arrivals_are_nan_before_release():
    assert all(math.isnan(arrival) for arrival in Driver(sessions([0.0], [1.0])).arrival_ms)


@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_cancelled_turn_ends_its_session(concurrency: int | None):
    driver = Driver(sessions([0.0, 5.0, 5.0], [0.0]), concurrency)
    driver.release(0.0)
    driver.finished(0, 2.0, cancelled=True)
    driver.finished(3, 2.0)
    assert driver.exhausted
    assert driver.released == 2


@pytest.mark.parametrize("concurrency", [None, 1])
def test_the_last_turn_cannot_end_twice(concurrency: int | None):
    driver = Driver(sessions([0.0], [0.0]), concurrency)
    driver.release(0.0)
    driver.finished(0, 2.0)
    with pytest.raises(ValueError, match="request 0 is not in flight"):
        driver.finished(0, 2.0)


def test_a_request_that_was_not_sent_cannot_end():
    with pytest.raises(ValueError, match="request 1 is not in flight"):
        Driver(sessions([0.0], [9.0])).finished(1, 2.0)


def test_closed_loop_ignores_arrival_times():
    driver = Driver(sessions([9000.0], [0.0], [500.0]), concurrency=2)
    assert serve(driver, lambda _: 10.0) == [(0.0, [0, 1]), (10.0, [2])]
    assert list(driver.arrival_ms) == [0.0, 0.0, 10.0]


def test_closed_loop_sessions_keep_their_place_through_turns_and_think_times():
    workload = sessions([0.0, 100.0], [0.0, 100.0], [0.0, 100.0])
    log = serve(Driver(workload, concurrency=2), lambda _: 45.0)
    assert log == [(0.0, [0, 2]), (145.0, [1, 3]), (190.0, [4]), (335.0, [5])]


def test_closed_loop_starts_the_next_session_at_the_instant_one_ends():
    driver = Driver(sessions([0.0], [0.0], [0.0]), concurrency=1)
    driver.release(0.0)
    assert driver.next_ready_ms() == INFINITY
    driver.finished(0, 12.5)
    assert driver.next_ready_ms() == 12.5
    assert driver.release(12.5) == [1]


def test_closed_loop_of_more_places_than_sessions_starts_them_all():
    assert Driver(sessions([0.0], [0.0]), concurrency=99).release(0.0) == [0, 1]


def test_closed_loop_arrival_is_the_time_of_release():
    driver = Driver(sessions([0.0, 5.0]), concurrency=1)
    driver.release(3.0)
    driver.finished(0, 4.0)
    driver.release(20.0)
    assert list(driver.arrival_ms) == [3.0, 20.0]


def test_closed_loop_delays_are_those_of_the_trace(write_trace):
    row = {"output_length": 2, "hash_ids": [1], "session_id": "s"}
    workload = load_trace([write_trace({**row, "timestamp": 0}, {**row, "delay": 100})])
    assert serve(Driver(workload, concurrency=1), lambda _: 36.0) == [(0.0, [0]), (136.0, [1])]


def test_closed_loop_flat_requests_follow_file_order():
    durations = [36.0, 111.0, 45.0, 50.0, 50.0]
    log = serve(Driver(sessions(*([0.0],) * 5), concurrency=2), lambda request: durations[request])
    assert log == [(0.0, [0, 1]), (36.0, [2]), (81.0, [3]), (111.0, [4])]


@pytest.mark.parametrize("concurrency", [0, -1])
def test_concurrency_below_one_is_an_error(concurrency: int):
    with pytest.raises(InputError) as caught:
        Driver(sessions([0.0]), concurrency)
    assert str(caught.value) == f"concurrency: found {concurrency}, expected at least 1 session"


def test_a_trace_of_sessions_is_replayed_as_its_rows_say(write_trace):
    row = {"input_length": 512, "output_length": 3, "hash_ids": [1]}
    path = write_trace(
        {**row, "session_id": "s", "timestamp": 1000},
        {**row, "session_id": "s", "delay": 250},
        {**row, "session_id": "t", "timestamp": 1100},
        {**row, "session_id": "s"},
    )
    assert serve(Driver(load_trace([path])), lambda _: 43.0) == [(0.0, [0]), (100.0, [2]), (293.0, [1]), (336.0, [3])]
    faster = load_trace([path], speedup=2.0)
    assert serve(Driver(faster), lambda _: 43.0) == [(0.0, [0]), (50.0, [2]), (168.0, [1]), (211.0, [3])]


def test_a_driver_leaves_its_workload_as_it_was():
    workload = sessions([5.0, 2.0], [1.0])
    before = list(workload.time_ms)
    serve(Driver(workload), lambda _: 1.0)
    assert list(workload.time_ms) == before
