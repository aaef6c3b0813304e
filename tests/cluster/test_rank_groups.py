"""Data-parallel ranks: a scheduler and a cache each, and passes that end together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import Outcome, Scenario, Send, columns_of, fuzz, run, scenarios
from windtunnel.config import Config
from windtunnel.record.columns import PassColumns, Status
from windtunnel.report.metrics import summarize
from windtunnel.timing.base import FloatArray, PassShape

ENGINE = {"block_size": 4, "num_gpu_blocks": 256, "max_num_seqs": 1, "enable_prefix_caching": False}


class PerToken:
    """A prompt token costs 1 ms, a pass of decodes 1 ms."""

    needs_physical_context = False

    def price_pass_ms(self, shape: PassShape) -> float:
        return float(sum(shape.chunk_tokens) or 0) + 1.0

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return np.ones(passes)


def ranks(sends: tuple[Send, ...], dp_size: int = 2, **fields: object) -> Scenario:
    return Scenario(sends, {**ENGINE, **fields}, topology={"cluster": {"dp_size": dp_size}}, timing=PerToken())


def prompt(origin: int, tokens: int, output_tokens: int, time_ms: float = 0.0) -> Send:
    return Send(((origin, 0, tokens),), output_tokens, time_ms=time_ms)


def first_tokens(outcome: Outcome) -> list[float]:
    return list(outcome.record.requests.first_token_ms)


def test_passes_end_with_the_slowest_rank() -> None:
    outcome = run(ranks((prompt(1, 4, 1), prompt(2, 8, 1))))
    assert first_tokens(outcome) == [9.0, 9.0]


def test_who_arrives_at_an_idle_rank_waits_for_the_others() -> None:
    outcome = run(ranks((prompt(1, 8, 1), prompt(2, 1, 1), prompt(3, 1, 1), prompt(4, 4, 1, time_ms=4.0))))
    columns = outcome.record.requests
    # requests 0 and 2 are on rank 0, which takes one at a time; 1 and 3 on rank 1, which is done early
    assert first_tokens(outcome) == [9.0, 9.0, 14.0, 14.0]
    assert columns.first_admit_ms[3] == 9.0


def test_ranks_take_the_peers_times_where_workers_of_their_own_do_not() -> None:
    """Two prompts at once, and one at 3 ms on the rank that would be idle by then."""
    sends = (prompt(1, 4, 1), prompt(2, 400, 1), prompt(3, 4, 1, time_ms=3.0))
    grouped = replace(ranks(sends, max_num_batched_tokens=1024), timing=None)
    assert first_tokens(run(grouped)) == pytest.approx([45.5522, 45.5522, 68.064944], abs=1e-3)
    apart = replace(grouped, topology={}, workers=2)
    assert first_tokens(run(apart))[:2] == pytest.approx([22.512744, 45.5522], abs=1e-3)


def test_one_rank_at_work_is_as_fast_as_alone() -> None:
    sends = (prompt(1, 4, 6),)
    assert list(run(ranks(sends)).record.requests.last_token_ms) == list(
        run(ranks(sends, dp_size=1)).record.requests.last_token_ms
    )


def test_ranks_have_pools_of_their_own() -> None:
    shared = ((7, 0, 8),)
    sends = tuple(Send(shared, 1, time_ms=100.0 * number) for number in range(4))
    outcome = run(ranks(sends, enable_prefix_caching=True))
    assert list(outcome.record.requests.worker) == [0, 1, 0, 1]
    assert list(outcome.record.requests.hit_tokens) == [0, 0, 4, 4]


def test_round_robin_goes_by_workers_then_by_their_ranks() -> None:
    sends = tuple(prompt(number, 4, 1, time_ms=100.0 * number) for number in range(6))
    outcome = run(replace(ranks(sends), workers=2))
    assert list(outcome.record.requests.worker) == [0, 2, 1, 3, 0, 2]


def test_a_worker_counts_once_and_its_gpus_by_rank() -> None:
    outcome = run(replace(ranks((prompt(1, 4, 1),)), workers=2))
    summary = summarize(outcome.workload, outcome.record, Config().slo)
    assert summary["decode_gpus_per_worker"] == 2
    assert summary["decode_worker_seconds"] == 2 * 5.0 / 1000.0
    assert summary["gpu_hours"] == 2 * 2 * 5.0 / 3.6e6


def test_overlap_scheduling_is_refused_for_ranks() -> None:
    with pytest.raises(ValueError, match="overlap_schedule"):
        Config.model_validate({"engine": {"kind": "sglang"}, "cluster": {"dp_size": 2}})


@given(scenarios(), st.integers(2, 3))
@fuzz(150)
def test_runs_of_a_group_give_the_record_of_single_passes(scenario: Scenario, dp_size: int) -> None:
    grouped = replace(scenario, topology={"cluster": {"dp_size": dp_size}})
    fast, slow = run(grouped), run(grouped, fast_forward=False)
    assert columns_of(fast.record) == columns_of(slow.record)
    assert fast.error == slow.error
    if not fast.complete:
        return
    for scheduler in fast.schedulers:
        assert scheduler.pool.free_blocks == scheduler.pool.num_blocks
        assert not scheduler.running
        assert not scheduler.waiting
    columns = fast.record.requests
    for number in range(len(scenario.sends)):
        assert columns.status[number] != Status.UNFINISHED
        assert not columns.terminal_ms[number] < columns.arrival_ms[number]
    for group in range(0, len(fast.record.passes), dp_size):  # no rank starts while another one is in a pass
        starts_inside = [
            start_ms
            for passes in fast.record.passes[group : group + dp_size]
            for start_ms in passes.idle_until_ms
            for other in fast.record.passes[group : group + dp_size]
            if any(begun < start_ms < end_ms for begun, end_ms in spans(other))
        ]
        assert not starts_inside


def spans(passes: PassColumns) -> list[tuple[float, float]]:
    """The passes of an engine as (start, end)."""
    starts = dict(zip(passes.idle_pass, passes.idle_until_ms, strict=True))
    before = [0.0, *passes.end_ms]
    return [(starts.get(number, before[number]), end_ms) for number, end_ms in enumerate(passes.end_ms)]


class Listening(PerToken):
    """Notes what it is told of the group."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []

    def price_pass_ms(self, shape: PassShape) -> float:
        self.told.append((sum(shape.chunk_tokens), shape.num_decodes, shape.group_tokens))
        return super().price_pass_ms(shape)


def test_a_pass_with_prompts_knows_the_tokens_of_all_ranks() -> None:
    listening = Listening()
    sends = (prompt(1, 8, 3), prompt(2, 5, 3), prompt(3, 6, 1, time_ms=9.5))
    run(replace(ranks(sends, max_num_seqs=2), timing=listening))
    assert listening.told[:2] == [(8, 0, 13), (5, 0, 13)]
    assert (6, 1, 8) in listening.told  # the third prompt beside a decode, and the decode of the other rank
    assert (0, 1, 8) in listening.told
    assert all(group == 0 for tokens, _, group in listening.told[4:] if not tokens and group != 8)


class ByLongest:
    """A pass costs its longest context, and a little for each prompt token."""

    needs_physical_context = False
    needs_longest_context = True

    def price_pass_ms(self, shape: PassShape) -> float:
        return 1.0 + shape.longest_context_tokens + 0.125 * sum(shape.chunk_tokens)

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        raise AssertionError("a run knows no longest context")


@pytest.mark.parametrize(
    ("engine", "dp_size"),
    [
        ({"async_scheduling": False}, 1),
        ({"async_scheduling": False}, 2),
        ({"async_scheduling": True}, 1),
        ({"async_scheduling": True}, 2),
        ({"kind": "sglang", "overlap_schedule": True}, 1),  # ranks do not overlap
        ({"kind": "sglang", "overlap_schedule": False}, 1),
        ({"kind": "sglang", "overlap_schedule": False}, 2),
    ],
)
def test_the_longest_context_is_told_in_runs_as_in_single_passes(engine: dict[str, object], dp_size: int) -> None:
    sends = tuple(prompt(n, 4 + 3 * n, 4 + 5 * (n % 3), time_ms=7.0 * n) for n in range(9))
    options = dict(engine)
    if engine.get("kind") == "sglang":
        base: dict[str, object] = {"num_gpu_blocks": 1024, "max_running_requests": 3}
    else:
        base = {**ENGINE, "max_num_seqs": 3}
    found = []
    for fast_forward in (True, False):
        fields = {**base, **options, "fast_forward": fast_forward}
        scenario = Scenario(sends, fields, topology={"cluster": {"dp_size": dp_size}}, timing=ByLongest())
        found.append(columns_of(run(scenario).record))
    assert found[0] == found[1]
    with_one = run(Scenario(sends[:1], {**base, **options}, topology={}, timing=ByLongest()))
    # a prompt of 4: a pass of 1.5 ms, then contexts of 5, 6 and 7
    assert with_one.record.requests.last_token_ms[0] == 1.5 + 6.0 + 7.0 + 8.0
