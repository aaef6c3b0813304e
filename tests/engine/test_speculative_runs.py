"""Speculating requests as a group and in runs: whatever happens, the record is that of passes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import FlatTiming, JaggedTiming, Outcome, Scenario, Send, columns_of, fuzz, run, scenarios
from windtunnel import RoutedRequest, WorkerView, simulate
from windtunnel.cluster.autoscaler import ClusterSnapshot, ScalingDecision
from windtunnel.config.slo_limits import SloConfig
from windtunnel.engine import engine, verification_group
from windtunnel.engine.speculative import SpeculativeScheduler
from windtunnel.report.metrics import summarize
from windtunnel.report.token_times import TokenTimes
from windtunnel.timing.base import TimingModel
from windtunnel.timing.calibrated import CalibratedTiming
from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.catalog.hf_config import read_model_shape
from windtunnel.timing.deployment import deploy
from windtunnel.timing.overhead import Overhead, WithOverhead
from windtunnel.timing.polynomial import PolynomialTiming
from windtunnel.timing.roofline import RooflineTiming
from windtunnel.timing.scaled import ScaledTiming
from windtunnel.timing.slowed import SlowedTiming
from windtunnel.timing.verification import VerifyingShape, price_verifications_ms, price_verifying_pass_ms


@st.composite
def speculating(draw: st.DrawFn) -> Scenario:
    """Deployments of `scenarios`, in each of which requests speculate."""
    scenario = draw(scenarios())
    drafts = draw(st.integers(1, 4))
    speculation: dict[str, Any] = {"method": draw(st.sampled_from(["ngram", "eagle", "mtp"]))}
    speculation["num_speculative_tokens"] = drafts
    how = draw(st.sampled_from(["accepted_tokens", "mean_accept_length", "acceptance_rates"]))
    if how == "accepted_tokens":
        speculation[how] = draw(st.lists(st.integers(0, drafts), min_size=1, max_size=4))
    elif how == "mean_accept_length":
        speculation[how] = 1 + drafts * draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    else:
        speculation[how] = [0.7] * drafts
    behaviour = draw(st.sampled_from(["0.33", "0.33", "0.20", "0.11"]))
    policy = draw(st.sampled_from(["fcfs", "fcfs", "priority"]))
    settings = {"speculation": speculation, "behaviour": behaviour, "scheduling_policy": policy}
    if behaviour != "0.33":  # what these releases do not have
        settings |= {"watermark": 0.0, "long_prefill_token_threshold_adaptive": False}
    if behaviour == "0.11":
        settings |= {"scheduler_reserve_full_isl": True, "async_scheduling": False}
    return replace(scenario, engine={**scenario.engine, **settings})


def differences(found: Outcome, expected: Outcome) -> list[str]:
    ours, theirs = columns_of(found.record), columns_of(expected.record)
    lines = [f"{name}: {ours[name]}, expected {theirs[name]}" for name in theirs if ours[name] != theirs[name]]
    return lines if found.error == expected.error else [*lines, f"{found.error!r}, expected {expected.error!r}"]


@given(speculating())
@fuzz(250)
def test_runs_give_the_record_of_single_passes(scenario: Scenario) -> None:
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


@given(speculating(), st.integers(1, 6))
@fuzz(40)
def test_how_far_runs_are_planned_and_where_arrays_move_changes_nothing(scenario: Scenario, few: int) -> None:
    planned = mock.patch.object(engine, "MAX_PLANNED_PASSES", few)
    with planned, mock.patch.object(verification_group, "FIRST_CAPACITY", few):
        found = run(scenario)
    assert differences(found, run(scenario)) == []


@given(speculating(), st.integers(2, 3))
@fuzz(60)
def test_ranks_speculate_together_in_runs_as_in_single_passes(scenario: Scenario, ranks: int) -> None:
    scenario = replace(scenario, topology={"cluster": {"dp_size": ranks}})
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


def test_ranks_that_share_experts_price_drafts_once_in_runs_as_in_single_passes() -> None:
    speculation = {"method": "mtp", "num_speculative_tokens": 2, "accepted_tokens": [1, 2, 0]}
    sends = tuple(Send(((number, 0, 300),), 60, time_ms=40.0 * number) for number in range(6))
    experts = RooflineTiming(deploy(load_model("qwen3-30b-a3b"), load_gpu("h100-sxm"), dp=2, ep=2))
    fields = {"num_gpu_blocks": 500, "speculation": speculation}
    scenario = Scenario(sends, fields, timing=experts, topology={"cluster": {"dp_size": 2}})
    found = run(scenario)
    assert found.record.passes[0].decode_runs > 5
    assert differences(found, run(scenario, fast_forward=False)) == []
    alike, apart = VerifyingShape(), VerifyingShape()
    for shape in (alike, apart):
        shape.add_chunk(0, 100, 100, True)
        shape.add_verifications(4, 4000, 8)
    apart.group_tokens = 2 * (100 + 4 + 8)  # the other rank has as many
    prices = [price_verifying_pass_ms(experts, shape) for shape in (alike, apart)]
    assert prices[0] == pytest.approx(prices[1], rel=1e-9)


class LooksAt:
    """Places requests in turn, and writes down what it sees of the workers."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, ...]] = []

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        self.seen.append((now_ms, *(worker.accept_length for worker in workers)))
        return request.number % len(workers)


@given(speculating())
@fuzz(60)
def test_a_router_sees_the_same_accept_length_inside_a_run(scenario: Scenario) -> None:
    looks = [LooksAt(), LooksAt()]
    for mode, router in zip((True, False), looks, strict=True):
        run(scenario, fast_forward=mode, router=router)
    assert looks[0].seen == looks[1].seen


def test_accept_length_counts_those_that_emit() -> None:
    """Finding 3 of the public review: what a router or an autoscaler sees is what the report says at the end."""
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "accepted_tokens": [2]}
    sends = (
        Send(((1, 0, 8),), 2),  # its first token with the prompt, its second beside the next prompt: no burst
        Send(((2, 0, 8),), 1, time_ms=0.5),
        Send(((3, 0, 900),), 1, time_ms=1.5),  # rejected
        Send(((4, 0, 8),), 7, time_ms=10.0),  # 1 with the prompt, then two bursts of 3
        Send(((5, 0, 8),), 1, time_ms=30.0),
    )
    fields = {"block_size": 4, "num_gpu_blocks": 100, "speculation": speculation, "async_scheduling": False}
    router = LooksAt()
    outcome = run(Scenario(sends, fields, timing=FlatTiming(1.0)), router=router)
    seen = dict(router.seen)
    assert seen[0.5] == seen[10.0] == 1.0  # one decode and one finishing prefill: 3 tokens of 3
    assert seen[30.0] == (3 + 7) / (3 + 3)
    summary = summarize(outcome.workload, outcome.record, SloConfig())
    assert summary["rejected_requests"] == 1
    assert summary["accept_length"] == (3 + 7 + 1) / (3 + 3 + 1)


def test_an_autoscaler_sees_accept_lengths() -> None:
    seen: list[float] = []

    class Scaler:
        def first_tick_ms(self) -> float:
            return 5.5

        def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
            seen.extend(worker.accept_length for worker in snapshot.pools["workers"].workers)
            return ScalingDecision({}, snapshot.now_ms + 3.0 if snapshot.now_ms < 9.0 else None)

    speculation = {"method": "eagle", "num_speculative_tokens": 3, "accepted_tokens": [3, 0]}
    fields = {"num_gpu_blocks": 100, "speculation": speculation, "async_scheduling": False}
    scenario = Scenario((Send(((1, 0, 8),), 60),), fields, timing=FlatTiming(1.0))
    simulate(scenario.config(), workload=scenario.workload(), timing=FlatTiming(1.0), autoscaler=Scaler())
    assert seen == [11 / 5, 20 / 8, 26 / 11]


TWO = (Send(((1, 0, 50),), 400), Send(((2, 0, 30),), 300))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "acceptance", [{"accepted_tokens": [2, 0, 1]}, {"mean_accept_length": 2.0}, {"acceptance_rates": [0.9, 0.5]}]
)
@pytest.mark.parametrize("method", ["ngram", "eagle", "mtp"])
def test_nothing_but_completions_ends_a_run(method: str, acceptance: dict[str, Any], is_async: bool) -> None:
    speculation = {"method": method, "num_speculative_tokens": 2, **acceptance}
    scenario = Scenario(TWO, {"speculation": speculation, "async_scheduling": is_async}, timing=FlatTiming(1.0))
    outcome = run(scenario)
    passes = outcome.record.passes[0]
    assert passes.decode_runs == 2
    assert passes.single_passes <= 1 + 2 * is_async  # the prompts; asynchronous, what is scheduled once too often
    assert differences(outcome, run(scenario, fast_forward=False)) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_ends_before_blocks_lack_and_its_requests_are_preempted(is_async: bool) -> None:
    speculation = {"method": "eagle", "num_speculative_tokens": 3, "mean_accept_length": 2.5}
    engine_fields = {"block_size": 16, "num_gpu_blocks": 36, "speculation": speculation, "async_scheduling": is_async}
    sends = tuple(Send(((number, 0, 40),), 150 + 10 * number) for number in range(5))
    scenario = Scenario(sends, engine_fields, timing=JaggedTiming(4))
    outcome = run(scenario)
    assert sum(outcome.record.requests.preemptions) > 0
    assert outcome.record.passes[0].passes_in_runs > 100
    assert differences(outcome, run(scenario, fast_forward=False)) == []


@pytest.mark.parametrize("fast_forward", [False, True])
def test_drafts_that_would_reach_the_models_length_and_are_rejected_leave_room_for_the_last_token(
    fast_forward: bool,
) -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 1, "acceptance_rates": [0.7]}
    fields = {
        "block_size": 4,
        "num_gpu_blocks": 10,
        "max_model_len": 39,
        "long_prefill_token_threshold": 1,
        "async_scheduling": True,
        "speculation": speculation,
    }
    scenario = Scenario((Send(((1, 0, 7),), 32), Send(((2, 0, 7),), 32)), fields, timing=FlatTiming(1.0), seed=4)
    outcome = run(scenario, fast_forward=fast_forward)
    assert (outcome.error, outcome.record.requests.output_tokens.tolist()) == ("", [32, 32])


def test_bursts_are_read_off_pass_ends_across_a_preemption() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "accepted_tokens": [2, 0, 1]}
    sends = tuple(Send(((number, 0, 12),), 40) for number in range(3))
    fields = {"block_size": 4, "num_gpu_blocks": 20, "speculation": speculation}
    record = run(Scenario(sends, fields, timing=FlatTiming(1.0))).record
    assert max(record.requests.preemptions) > 0
    times = TokenTimes(record)
    for number in range(3):
        tokens = times.of_request(number)
        _, counts = np.unique(tokens, return_counts=True)
        expected = [1]
        while sum(expected) < 40:
            expected.append(min([3, 1, 2][(len(expected) - 1) % 3], 40 - sum(expected)))
        assert len(tokens) == 40
        if not record.requests.preemptions[number]:
            assert counts.tolist() == expected
    assert len(record.requests.burst_extra) == sum(record.requests.burst_passes)


class SilentObserver:
    """An observer that only observes."""

    def on_admission(self, *args: object) -> None: ...
    def on_preemption(self, *args: object) -> None: ...
    def on_refusal(self, *args: object) -> None: ...
    def on_scheduled(self, *args: object) -> None: ...
    def on_concluded(self) -> None: ...


@given(speculating(), st.booleans())
@fuzz(40)
def test_whoever_watches_changes_nothing(scenario: Scenario, publish_events: bool) -> None:
    watched = run(scenario, observer=SilentObserver, publish_events=publish_events)
    assert differences(watched, run(scenario)) == []


@given(speculating())
@fuzz(60)
def test_blocks_and_books_are_in_order_at_the_end(scenario: Scenario) -> None:
    outcome = run(replace(scenario, max_time_s=None))
    assert not outcome.error
    for scheduler in outcome.schedulers:
        assert isinstance(scheduler, SpeculativeScheduler)
        assert scheduler.pool.free_blocks == scheduler.pool.num_blocks
        assert (scheduler.verifying.size, scheduler.verifying.owned_blocks, len(scheduler.apart)) == (0, 0, 0)


# --- prices

WINDOWS = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 13,
    "torch_dtype": "bfloat16",
}
DEPLOYED = deploy(load_model("llama-3.1-8b"), load_gpu("h100-sxm"))
WINDOWED = deploy(read_model_shape(WINDOWS, "windowed"), load_gpu("h100-sxm"))
LATENT = deploy(load_model("deepseek-v3"), load_gpu("h200-sxm"), tp=8)
MODELS: dict[str, TimingModel] = {
    "polynomial": PolynomialTiming(100_000, 1.3, 0.7),
    "roofline": RooflineTiming(DEPLOYED, Overhead()),
    "roofline of windows": RooflineTiming(WINDOWED, Overhead()),
    "roofline of latent attention": RooflineTiming(LATENT),
    "overhead": WithOverhead(RooflineTiming(DEPLOYED), Overhead()),
    "calibrated": CalibratedTiming(RooflineTiming(DEPLOYED), decode_scale=1.1, prefill_scale=0.9, request_ms=0.01),
    "scaled": ScaledTiming(RooflineTiming(DEPLOYED), 1.7),
    "slowed": SlowedTiming(PolynomialTiming(100_000), 1.7),
    "one that knows nothing of drafts": JaggedTiming(3),
}


@pytest.mark.parametrize("name", MODELS)
@given(st.integers(1, 300), st.integers(1, 7), st.integers(1, 4000), st.lists(st.integers(0, 900), min_size=1))
@fuzz(10)
def test_a_run_costs_what_its_passes_cost(name: str, decodes: int, drafts: int, first: int, more: list[int]) -> None:
    model = MODELS[name]
    contexts = np.cumsum([first * decodes, *more])
    prices = price_verifications_ms(model, decodes, decodes * drafts, contexts, None)
    singles = []
    for context in contexts.tolist():
        shape = VerifyingShape()
        shape.add_verifications(decodes, context, decodes * drafts)
        singles.append(price_verifying_pass_ms(model, shape))
    assert prices.tolist() == singles


def test_verifying_costs_what_its_tokens_and_one_reading_of_the_contexts_cost() -> None:
    model = RooflineTiming(DEPLOYED)
    alone, verifying, decodes = VerifyingShape(), VerifyingShape(), VerifyingShape()
    alone.add_verifications(8, 16_000, 0)
    verifying.add_verifications(8, 16_000, 24)
    decodes.add_verifications(32, 64_000, 0)
    cheap, middle, dear = (price_verifying_pass_ms(model, shape) for shape in (alone, verifying, decodes))
    assert cheap < middle < dear
    assert middle < 1.1 * cheap  # weights are read once


def test_drafts_beside_a_prompt_cost_less_than_apart() -> None:
    model = RooflineTiming(DEPLOYED)
    mixed, prompt, drafts = VerifyingShape(), VerifyingShape(), VerifyingShape()
    for shape in (mixed, prompt):
        shape.add_chunk(0, 512, 512, True)
    for shape in (mixed, drafts):
        shape.add_verifications(8, 16_000, 24)
    parts = [price_verifying_pass_ms(model, shape) for shape in (prompt, drafts)]
    assert max(parts) < price_verifying_pass_ms(model, mixed) < sum(parts)
