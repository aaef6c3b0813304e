"""Requests that wait for others: when they are sent, and what becomes of them when the others do not complete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.workload.content import output_origin
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace


def graph(*requests: tuple[Sequence[int], float]) -> Workload:
    """One request a pair: what it waits for, and its arrival or delay in ms."""
    workload = Workload("graph")
    for after, time_ms in requests:
        workload.add([(workload.num_requests, 0, 8)], 4, time_ms=time_ms, after=after)
    return workload


def serve(
    driver: Driver, duration_ms: Callable[[int], float], ends: Mapping[int, Mapping[str, object]] | None = None
) -> list[tuple[float, list[int]]]:
    """Run to the end; what was released together, and when. `ends` says how requests end that do not complete."""
    log = []
    running: list[tuple[float, int]] = []
    while not driver.exhausted:
        now_ms = min(driver.next_ready_ms(), min(running, default=(math.inf, 0))[0])
        assert now_ms < math.inf, "nothing can happen any more"
        for end in sorted(end for end in running if end[0] <= now_ms):
            running.remove(end)
            driver.finished(end[1], now_ms, **(ends or {}).get(end[1], {}))  # type: ignore[arg-type]
        sent = driver.release(now_ms)
        running += [(now_ms + duration_ms(request), request) for request in sent]
        if sent:
            log.append((now_ms, sent))
    return log


def diamond() -> Workload:
    return graph(((), 0.0), ((0,), 0.0), ((0,), 0.0), ((1, 2), 5.0))


def test_a_request_is_sent_a_delay_after_the_last_that_it_waits_for():
    durations = [10.0, 0.0, 20.0, 1.0]
    assert serve(Driver(diamond()), durations.__getitem__) == [(0.0, [0]), (10.0, [1, 2]), (35.0, [3])]


def test_what_waits_may_stand_before_what_it_waits_for():
    assert serve(Driver(graph(((1,), 3.0), ((), 7.0))), lambda _: 10.0) == [(7.0, [1]), (20.0, [0])]


def test_roots_are_sent_at_their_arrivals_in_the_order_of_requests():
    log = serve(Driver(graph(((), 5.0), ((), 5.0), ((), 1.0))), lambda _: 100.0)
    assert log == [(1.0, [2]), (5.0, [0, 1])]


def test_equal_ready_times_go_by_request_number():
    workload = graph(((), 0.0), ((0,), 5.0), ((), 15.0), ((0,), 5.0))
    assert serve(Driver(workload), lambda _: 10.0) == [(0.0, [0]), (15.0, [1, 2, 3])]


def test_waiting_twice_for_the_same_is_waiting_once():
    assert serve(Driver(graph(((), 0.0), ((0, 0), 1.0))), lambda _: 2.0) == [(0.0, [0]), (3.0, [1])]


def test_turns_of_a_session_and_what_depends_on_them_mix():
    workload = Workload("mixed")
    first = workload.add([(0, 0, 8)], 1, time_ms=0.0)
    second = workload.add([(1, 0, 8)], 1, session=0, time_ms=3.0)
    branch = workload.add([(2, 0, 8)], 1, session=0, time_ms=1.0, after=[first])
    workload.add([(3, 0, 8)], 1, session=0, time_ms=2.0, after=[second, branch])
    assert list(workload.turn) == [0, 1, 2, 3]
    assert serve(Driver(workload), lambda _: 10.0) == [(0.0, [0]), (11.0, [2]), (13.0, [1]), (25.0, [3])]


@pytest.mark.parametrize("end", [{"failed": "rejected"}, {"failed": "failed"}, {"cancelled": True}])
def test_what_waits_for_a_request_that_did_not_complete_is_never_sent(end: dict[str, object]):
    driver = Driver(diamond())
    assert serve(driver, lambda _: 10.0, {2: end}) == [(0.0, [0]), (10.0, [1, 2])]
    how = end.get("failed", "cancelled")
    assert driver.take_cancelled() == [(3, f"request 2, which it waits for, was {how}")]
    assert driver.take_cancelled() == []
    assert driver.released == 3


def test_giving_up_goes_on_down_the_graph():
    driver = Driver(graph(((), 0.0), ((0,), 0.0), ((1,), 0.0), ((1, 2), 0.0), ((), 50.0), ((4, 3), 0.0)))
    assert serve(driver, lambda _: 10.0, {0: {"failed": "rejected"}}) == [(0.0, [0]), (50.0, [4])]
    assert sorted(driver.take_cancelled()) == [
        (1, "request 0, which it waits for, was rejected"),
        (2, "request 1, which it waits for, was cancelled"),
        (3, "request 1, which it waits for, was cancelled"),
        (5, "request 3, which it waits for, was cancelled"),
    ]


def test_later_turns_of_a_request_that_is_never_sent_are_not_sent_either():
    workload = graph(((), 0.0), ((0,), 0.0))
    workload.add([(9, 0, 8)], 1, session=1, time_ms=1.0)
    driver = Driver(workload)
    serve(driver, lambda _: 10.0, {0: {"failed": "failed"}})
    reason = "request 0, which it waits for, was failed"
    assert driver.take_cancelled() == [(1, reason), (2, f"a turn before it, {reason}")]


def test_reasons_use_the_names_of_the_trace():
    workload = graph(((), 0.0), ((0,), 0.0))
    workload.request_ids = ["a", "b"]
    driver = Driver(workload)
    serve(driver, lambda _: 1.0, {0: {"failed": "rejected"}})
    assert driver.take_cancelled() == [(1, "request a, which it waits for, was rejected")]


def test_release_sends_what_waited_anyway():
    driver = Driver(diamond(), on_failed_dependency="release")
    durations = [10.0, 0.0, 2.0, 1.0]
    log = serve(driver, durations.__getitem__, {0: {"failed": "failed"}, 2: {"failed": "rejected"}})
    assert log == [(0.0, [0]), (10.0, [1, 2]), (17.0, [3])]
    assert driver.take_cancelled() == []


def test_release_has_no_effect_where_nothing_waits():
    with pytest.raises(InputError) as caught:
        Driver(Workload("flat"), on_failed_dependency="release")
    assert str(caught.value) == "on_failed_dependency: has no effect: no request of flat waits for another by name"


def test_a_closed_loop_of_waiting_requests_is_an_error():
    with pytest.raises(InputError) as caught:
        Driver(diamond(), concurrency=2)
    expected = "concurrency: has no meaning for graph: its requests wait for each other, not for a place"
    assert str(caught.value) == expected


def test_a_load_without_arrivals_needs_a_closed_loop():
    workload = Workload("lengths.csv")
    workload.add([(0, 0, 1)], 1)
    workload.needs_concurrency = "the file has no arrival times"
    with pytest.raises(InputError) as caught:
        Driver(workload)
    assert str(caught.value) == "concurrency: missing for lengths.csv: the file has no arrival times"
    assert Driver(workload, concurrency=1).release(0.0) == [0]


def test_a_circle_leaves_the_driver_with_something_to_send():
    driver = Driver(graph(((1,), 0.0), ((0,), 0.0)))
    assert driver.next_ready_ms() == math.inf
    assert not driver.exhausted


def test_a_rejected_turn_adds_its_tokens_and_no_output_to_the_prompts_after_it(write_trace):
    row = {"session_id": "s", "input_length": 64, "hash_ids": [1]}
    path = write_trace(
        {**row, "timestamp": 0, "output_length": 10},
        {**row, "output_length": 20, "hash_ids": [2]},
        {**row, "output_length": 30, "hash_ids": [3]},
        {**row, "output_length": 1, "hash_ids": [4]},
    )
    workload = load_trace([path], format="mooncake-delta", block_size=64)
    driver = Driver(workload)
    ends = {1: {"failed": "rejected", "output_tokens": 0}, 2: {"output_tokens": 7}}
    serve(driver, lambda _: 5.0, ends)
    assert list(workload.input_tokens) == [64, 138, 222, 316]
    assert list(driver.workload.input_tokens) == [64, 138, 202, 273]
    assert driver.workload.prompt_runs(3) == [
        (0, 64, 64),
        (output_origin(0), 0, 10),
        (0, 128, 128),
        (output_origin(2), 0, 7),
        (0, 256, 64),
    ]
    assert workload.content(3, 0).length == 316
    assert driver.take_cancelled() == []


def test_whole_outputs_leave_the_workload_as_it_is(write_trace):
    row = {"session_id": "s", "input_length": 64, "hash_ids": [1], "output_length": 10}
    driver = Driver(workload := load_trace([write_trace(row, row)], format="mooncake-delta"))
    serve(driver, lambda _: 5.0, {0: {"output_tokens": 10}})
    assert driver.workload is workload


def test_stated_prompts_do_not_shrink_with_the_outputs_that_they_quote():
    workload = Workload("stated")
    workload.add([(0, 0, 8)], 4, time_ms=0.0)
    workload.add([(0, 0, 8), (output_origin(0), 0, 4), (5, 0, 1)], 1, session=0, time_ms=0.0)
    driver = Driver(workload)
    serve(driver, lambda _: 1.0, {0: {"failed": "rejected", "output_tokens": 0}})
    assert driver.workload is workload
    assert workload.input_tokens[1] == 13


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Workload, list[float], list[str]]:
    count = draw(st.integers(1, 9))
    order = draw(st.permutations(range(count)))
    waits: dict[int, list[int]] = {}
    for place, request in enumerate(order):
        waits[request] = draw(st.lists(st.sampled_from(order[:place]), max_size=3)) if place else []
    times = draw(st.lists(st.integers(0, 5).map(float), min_size=count, max_size=count))
    workload = graph(*((waits[request], times[request]) for request in range(count)))
    durations = draw(st.lists(st.integers(0, 5).map(float), min_size=count, max_size=count))
    fates = draw(st.lists(st.sampled_from(["", "", "", "rejected"]), min_size=count, max_size=count))
    return workload, durations, fates


@settings(max_examples=300, deadline=None)
@given(graphs(), st.sampled_from(["cancel", "release"]))
def test_every_request_is_sent_when_its_rules_say_or_given_up_with_a_reason(case, policy):
    workload, durations, fates = case
    driver = Driver(workload, on_failed_dependency=policy if any(workload.dependencies) else "cancel")
    released = any(workload.dependencies) and policy == "release"
    log = serve(driver, durations.__getitem__, {r: {"failed": fate} for r, fate in enumerate(fates) if fate})
    sent_ms = {request: now_ms for now_ms, requests in log for request in requests}
    cancelled = dict(driver.take_cancelled())
    assert sorted([*sent_ms, *cancelled]) == list(range(workload.num_requests))
    for request in range(workload.num_requests):
        waits = workload.dependencies[request]
        lost = [before for before in waits if before in cancelled or fates[before]]
        assert (request in cancelled) == (bool(lost) and not released)
        if request not in cancelled:
            ended_ms = max((sent_ms[before] + durations[before] for before in waits), default=0.0)
            assert sent_ms[request] == ended_ms + workload.time_ms[request]
            assert driver.arrival_ms[request] == sent_ms[request]
    for now_ms, requests in log:
        assert requests == sorted(requests), now_ms
