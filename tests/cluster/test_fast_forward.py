"""Runs of decodes are a way to compute, not a model: whatever happens, the record is that of single passes."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import FlatTiming, Outcome, Scenario, Send, columns_of, fuzz, run, scenarios
from windtunnel import RoutedRequest, WorkerView
from windtunnel.engine import engine
from windtunnel.timing.base import PassShape
from windtunnel.workload.content import Content, Run, output_origin


class SilentObserver:
    """An observer that only observes."""

    def on_admission(self, *args: object) -> None: ...
    def on_preemption(self, *args: object) -> None: ...
    def on_refusal(self, *args: object) -> None: ...
    def on_scheduled(self, *args: object) -> None: ...
    def on_concluded(self) -> None: ...


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """What the two outcomes do not agree on, to the last bit."""
    ours, theirs = columns_of(found.record), columns_of(expected.record)
    assert ours.keys() == theirs.keys()
    result = [f"{name}: {ours[name]}, expected {theirs[name]}" for name in theirs if ours[name] != theirs[name]]
    if found.error != expected.error:
        result.append(f"error: {found.error!r}, expected {expected.error!r}")
    return result


@given(scenarios())
@fuzz(600)
def test_runs_give_the_record_of_single_passes(scenario: Scenario) -> None:
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


@given(scenarios(), st.integers(1, 6))
@fuzz(120)
def test_how_far_runs_are_planned_changes_nothing(scenario: Scenario, max_planned: int) -> None:
    with mock.patch.object(engine, "MAX_PLANNED_PASSES", max_planned):
        found = run(scenario)
    assert differences(found, run(scenario)) == []


@given(scenarios(), st.booleans())
@fuzz(120)
def test_whoever_watches_changes_nothing(scenario: Scenario, fast_forward: bool) -> None:
    watched = run(scenario, fast_forward=fast_forward, observer=SilentObserver, publish_events=True)
    assert differences(watched, run(scenario)) == []


class ByLongest(FlatTiming):
    """A pass costs its longest context."""

    needs_longest_context = True

    def price_pass_ms(self, shape: PassShape) -> float:
        return 1.0 + shape.longest_context_tokens


def test_a_long_prompt_beside_decodes_tells_what_the_timing_model_asks_for() -> None:
    sends = (Send(((1, 0, 5),), 30, time_ms=0.0), Send(((2, 0, 60),), 4, time_ms=5.0))
    engine = {"block_size": 4, "num_gpu_blocks": 99, "max_num_batched_tokens": 8}
    scenario = Scenario(sends, engine, timing=ByLongest())
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


class FailsAt:
    """Places requests on the first worker, until it has placed `count` of them."""

    def __init__(self, count: int) -> None:
        self.left = count

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        self.left -= 1
        return 0 if self.left >= 0 else len(workers)


@given(scenarios(), st.integers(1, 5))
@fuzz(120)
def test_what_an_error_leaves_is_the_same_in_runs_and_in_single_passes(scenario: Scenario, count: int) -> None:
    fast, slow = (run(scenario, fast_forward=mode, router=FailsAt(count)) for mode in (True, False))
    assert differences(fast, slow) == []


def blocks_of(outcome: Outcome) -> list[list[tuple[bool, list[Run]]]]:
    """Per worker, every block stored or removed, in order, as the tokens up to its end."""
    result = []
    for scheduler in outcome.schedulers:
        entries = []
        for event in scheduler.pool.events:
            blocks = range(event.first, event.end) if event.stored else range(event.end - 1, event.first - 1, -1)
            entries += [(event.stored, prefix(event.content, (block + 1) * scheduler.block_size)) for block in blocks]
        result.append(entries)
    return result


def prefix(content: Content, tokens: int) -> list[Run]:
    runs = []
    for origin, start, length in content.runs():
        runs.append((origin, start, min(length, tokens)))
        tokens -= length
        if tokens <= 0:
            break
    return runs


@given(scenarios())
@fuzz(120)
def test_runs_publish_the_cache_events_of_single_passes(scenario: Scenario) -> None:
    fast, slow = (run(scenario, fast_forward=mode, publish_events=True) for mode in (True, False))
    for in_runs, singly in zip(blocks_of(fast), blocks_of(slow), strict=True):
        if slow.record.interrupted:
            singly = singly[: len(in_runs)]  # a single pass that was cut off has begun to store, one in a run has not
        assert in_runs == singly


def test_a_run_is_longer_than_what_is_planned_at_once() -> None:
    sends = (Send(((1, 0, 50),), 3 * engine.MAX_PLANNED_PASSES), Send(((2, 0, 70),), 200, time_ms=2500.5))
    scenario = Scenario(sends, {"block_size": 16, "num_gpu_blocks": 400}, timing=FlatTiming(1.0))
    fast = run(scenario)
    assert fast.record.passes[0].decode_runs == 5  # two ends of what is planned, one cut, two completions
    assert differences(fast, run(scenario, fast_forward=False)) == []


@pytest.mark.parametrize("cancel_after_ms", [None, 3.0, 7.0])
def test_what_happens_exactly_when_a_pass_inside_a_run_ends(cancel_after_ms: float | None) -> None:
    """The pass has ended and the next has not begun: a client that gives up then is gone before others arrive."""
    sends = (Send(((1, 0, 1),), 20), Send(((2, 0, 1),), 20, time_ms=7.0), Send(((3, 0, 1),), 3, time_ms=7.0))
    scenario = Scenario(
        sends,
        {"block_size": 1, "num_gpu_blocks": 40},
        workers=2,
        router="least-loaded",
        cancel_after_ms=cancel_after_ms,
        timing=FlatTiming(1.0),
    )
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


# A refused head of the queue stays refused while only decodes run, so runs need not stop to ask again; except that ...
REFUSED_HEADS = {
    "one that arrives behind it makes its chunk smaller": (
        Scenario(
            (Send(((1, 0, 4),), 60), Send(((2, 0, 60),), 1, time_ms=37.0), Send(((3, 0, 4),), 1, time_ms=40.0)),
            {
                "block_size": 4,
                "num_gpu_blocks": 18,
                "max_num_batched_tokens": 64,
                "long_prefill_token_threshold": 1,
                "long_prefill_token_threshold_adaptive": True,
                "scheduler_reserve_full_isl": False,
            },
            timing=FlatTiming(),
        ),
        40.0,
    ),
    "what it quotes is filled, and a block in use is free of charge": (
        Scenario(
            (Send(((1, 0, 4),), 40), Send(((1, 0, 4), (output_origin(0), 0, 40), (2, 0, 4)), 1, time_ms=5.5)),
            {"block_size": 4, "num_gpu_blocks": 12},
            timing=FlatTiming(),
        ),
        8.0,
    ),
    "what it quotes is filled, and the rest fits the budget": (
        Scenario(
            (Send(((1, 0, 2),), 40), Send(((1, 0, 2), (output_origin(0), 0, 10), (2, 0, 8)), 1, time_ms=1.0)),
            {"block_size": 4, "num_gpu_blocks": 99, "max_num_batched_tokens": 20, "enable_chunked_prefill": False},
            timing=FlatTiming(),
        ),
        2.0,
    ),
}


@pytest.mark.parametrize("case", REFUSED_HEADS)
def test_a_refused_head_is_asked_again_when(case: str) -> None:
    scenario, admitted_ms = REFUSED_HEADS[case]
    fast, slow = run(scenario), run(scenario, fast_forward=False)
    assert slow.record.requests.first_admit_ms[1] == admitted_ms
    assert differences(fast, slow) == []


@pytest.mark.parametrize("gives_up_ms", [4.75, 5.0])  # in the pass that the other one arrives in; when that has ended
def test_who_arrives_is_not_in_the_next_pass_even_if_someone_gives_up(gives_up_ms: float) -> None:
    """Asynchronous: that pass, from 5 to 6 ms, has been decided, whether it is part of a run or not."""
    sends = (Send(((1, 0, 4),), 20, time_ms=0.0), Send(((2, 0, 4),), 3, time_ms=4.25))
    engine = {"block_size": 4, "num_gpu_blocks": 40, "async_scheduling": True}
    scenario = Scenario(sends, engine, cancel_after_ms=gives_up_ms, timing=FlatTiming(1.0))
    fast, slow = run(scenario), run(scenario, fast_forward=False)
    assert differences(fast, slow) == []
    assert slow.record.requests.first_admit_ms[1] == (6.0 if gives_up_ms < 5.0 else 5.0)
