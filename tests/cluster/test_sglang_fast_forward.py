"""Runs of decodes of an SGLang engine are a way to compute, not a model: the record is that of single passes."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_strategies import Checker, run_sglang, sglang_deployments
from strategies import FlatTiming, Outcome, Scenario, Send, columns_of, fuzz
from windtunnel.cluster.router.base import RoutedRequest, WorkerView
from windtunnel.engine import engine, overlap
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_invariants import check_invariants


class MostFree:
    """Sends to the worker with the most free KV blocks, so that what a run says of them inside matters."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def route(self, request: RoutedRequest, workers: list[WorkerView], now_ms: float) -> int:
        self.seen.append([worker.free_blocks for worker in workers])
        return max(range(len(workers)), key=lambda number: (workers[number].free_blocks, -number))


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """What the two outcomes do not agree on, to the last bit."""
    ours, theirs = columns_of(found.record), columns_of(expected.record)
    assert ours.keys() == theirs.keys()
    result = [f"{name}: {ours[name]}, expected {theirs[name]}" for name in theirs if ours[name] != theirs[name]]
    if found.error != expected.error:
        result.append(f"error: {found.error!r}, expected {expected.error!r}")
    return result


@given(sglang_deployments())
@fuzz(250)
def test_runs_give_the_record_of_single_passes(scenario: Scenario) -> None:
    assert differences(run_sglang(scenario), run_sglang(scenario, fast_forward=False)) == []


@given(sglang_deployments(), st.integers(1, 6))
@fuzz(60)
def test_how_far_runs_are_planned_changes_nothing(scenario: Scenario, max_planned: int) -> None:
    with (
        mock.patch.object(engine, "MAX_PLANNED_PASSES", max_planned),
        mock.patch.object(overlap, "MAX_PLANNED_PASSES", max_planned),
    ):
        found = run_sglang(scenario)
    assert differences(found, run_sglang(scenario)) == []


@given(sglang_deployments(), st.booleans())
@fuzz(100)
def test_whoever_watches_sees_parts_that_agree_and_changes_nothing(scenario: Scenario, fast_forward: bool) -> None:
    watched = run_sglang(scenario, fast_forward=fast_forward, observer=Checker, publish_events=True)
    assert differences(watched, run_sglang(scenario)) == []


@given(sglang_deployments())
@fuzz(60)
def test_free_blocks_inside_runs_are_those_of_single_passes(scenario: Scenario) -> None:
    fast, slow = MostFree(), MostFree()
    found = run_sglang(scenario, router=fast)
    assert differences(found, run_sglang(scenario, fast_forward=False, router=slow)) == []
    assert fast.seen == slow.seen


@given(sglang_deployments())
@fuzz(60)
def test_runs_publish_the_cache_events_of_single_passes(scenario: Scenario) -> None:
    published = []
    for fast_forward in (True, False):
        outcome = run_sglang(scenario, fast_forward=fast_forward, publish_events=True)
        events = [event for scheduler in outcome.schedulers for event in scheduler.pool.events]
        published.append([(e.stored, e.content.runs(), e.first, e.end) for e in events])
    assert published[0] == published[1]


@given(sglang_deployments())
@fuzz(60)
def test_everything_is_released_in_the_end(scenario: Scenario) -> None:
    outcome = run_sglang(scenario)
    for scheduler in outcome.schedulers:
        assert isinstance(scheduler, SglangScheduler)
        if outcome.complete:
            check_invariants(scheduler)
            assert not scheduler.pool.protected_tokens
            assert scheduler.num_running == scheduler.num_waiting == 0
        if not scheduler.config.enable_prefix_caching:
            assert not scheduler.pool.num_nodes


@pytest.mark.parametrize(("overlap_schedule", "runs"), [(True, 5), (False, 5)])
def test_a_run_is_longer_than_what_is_planned_at_once(overlap_schedule: bool, runs: int) -> None:
    sends = (Send(((1, 0, 50),), 3 * engine.MAX_PLANNED_PASSES), Send(((2, 0, 70),), 200, time_ms=2500.5))
    scenario = Scenario(
        sends,
        {"kind": "sglang", "num_gpu_blocks": 7000, "overlap_schedule": overlap_schedule},
        timing=FlatTiming(1.0),
    )
    fast = run_sglang(scenario)
    assert fast.record.passes[0].decode_runs == runs
    assert differences(fast, run_sglang(scenario, fast_forward=False)) == []


@pytest.mark.parametrize("overlap_schedule", [True, False])
@pytest.mark.parametrize("fast_forward", [True, False])
def test_who_gives_up_during_its_last_pass_which_never_ends_was_decoding(
    overlap_schedule: bool, fast_forward: bool
) -> None:
    engine = {"kind": "sglang", "num_gpu_blocks": 100, "overlap_schedule": overlap_schedule}
    sends = (Send(((1, 0, 1),), 2, None, 0.0),)
    scenario = Scenario(sends, engine, cancel_after_ms=15.0, max_time_s=0.018, timing=FlatTiming(10.0))
    requests = run_sglang(scenario, fast_forward=fast_forward).record.requests
    assert (list(requests.decode_ms), list(requests.stalled_ms)) == ([5.0], [0.0])
