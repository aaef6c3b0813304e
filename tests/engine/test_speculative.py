"""Speculation from the configuration to the report: what is accepted, what it costs, and that all of it ends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strategies import FlatTiming, Scenario, Send, columns_of, fuzz, run, scenarios
from windtunnel import Config, Result, simulate
from windtunnel.config.speculation import SpeculationConfig
from windtunnel.engine.acceptance import (
    VERIFICATIONS,
    Acceptance,
    RandomAcceptance,
    RecordedAcceptance,
    build_acceptance,
    equal_rate,
)
from windtunnel.engine.speculative_request import SpeculativeRequest
from windtunnel.record.columns import Status
from windtunnel.report.metrics import summarize
from windtunnel.report.token_times import TokenTimes
from windtunnel.timing.base import PassShape
from windtunnel.timing.drafting import DraftingTiming
from windtunnel.timing.verification import VerifyingShape
from windtunnel.workload.content import Content

EAGLE = {"method": "eagle", "num_speculative_tokens": 2}


def serve(
    *sends: tuple[int, int], speculation: dict[str, Any], timing: FlatTiming | None = None, **engine: Any
) -> Result:
    """Requests of (prompt, output tokens) that arrive at once; a pass takes 1 ms."""
    fast_forward = engine.pop("fast_forward", True)
    scenario = Scenario(
        tuple(Send(((100 + number, 0, prompt),), output, None, 0.0) for number, (prompt, output) in enumerate(sends)),
        {"block_size": 4, "num_gpu_blocks": 100, "max_num_seqs": 8, "speculation": speculation, **engine},
    )
    config = scenario.config(fast_forward=fast_forward)
    return simulate(config, workload=scenario.workload(), timing=timing or FlatTiming(1.0))


@pytest.mark.parametrize("method", ["ngram", "eagle", "mtp"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_that_fills_the_pool_exactly_ends_with_one_token(method: str, is_async: bool) -> None:
    result = serve(
        (8, 1),
        speculation={"method": method, "num_speculative_tokens": 1, "accepted_tokens": [1]},
        num_gpu_blocks=2,
        async_scheduling=is_async,
    )
    requests = result.record.requests
    assert (requests.status[0], requests.output_tokens[0], requests.preemptions[0]) == (Status.COMPLETED, 1, 0)


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_burst_may_cross_the_border_of_a_block(accepted: int) -> None:
    result = serve((7, 6), speculation={"method": "ngram", "num_speculative_tokens": 3, "accepted_tokens": [accepted]})
    times = TokenTimes(result.record).of_request(0)
    assert times.tolist() == [1.0] + [2.0 + i // (accepted + 1) for i in range(5)]


def test_the_first_token_has_no_drafts_and_bursts_end_with_the_output() -> None:
    result = serve((8, 8), speculation={**EAGLE, "accepted_tokens": [2]})
    assert TokenTimes(result.record).of_request(0).tolist() == [1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0]
    gaps, counts = TokenTimes(result.record).gaps_ms(np.array([True]))
    assert sorted(np.repeat(gaps, counts).tolist()) == [0.0] * 4 + [1.0] * 3


def test_accept_length_counts_passes_that_emit() -> None:
    result = serve((8, 7), (8, 1), speculation={**EAGLE, "accepted_tokens": [2]})
    summary = summarize(result.workload, result.record, result.config.slo)
    assert summary["total_output_tokens"] == 8
    assert summary["accept_length"] == 8 / 4  # 1, 3 and 3 tokens of the first request, 1 of the second
    rejecting = serve((8, 7), speculation={**EAGLE, "accepted_tokens": [0]})
    assert summarize(rejecting.workload, rejecting.record, rejecting.config.slo)["accept_length"] == 1.0


def test_drafting_has_a_price_of_its_own() -> None:
    model = DraftingTiming(FlatTiming(1.0), SpeculationConfig(**EAGLE, accepted_tokens=[0], draft_ms=0.25))
    assert model.price_pass_ms(PassShape(1, 10)) == 1.5
    chunk = PassShape()
    chunk.add_chunk(0, 4, 8, False)
    assert model.price_pass_ms(chunk) == 1.0  # nobody drafts after a pass that emits nothing


def test_verification_is_priced_as_one_decode_with_drafts() -> None:
    seen: list[tuple[list[int], int, int, int, int]] = []

    class Seeing(FlatTiming):
        def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
            decodes, context = shape.num_decodes, shape.decode_context_tokens
            seen.append((shape.chunk_tokens, decodes, context, shape.draft_tokens, shape.num_sampled))
            return 1.0

    speculation = {**EAGLE, "accepted_tokens": [2]}
    serve((8, 8), speculation=speculation, timing=Seeing(), fast_forward=False)
    assert seen == [([8], 0, 0, 0, 1), ([], 1, 11, 2, 1), ([], 1, 14, 2, 1), ([], 1, 17, 2, 1)]


def test_a_model_that_knows_nothing_of_drafts_prices_as_many_decodes() -> None:
    seen: list[tuple[int, int]] = []

    class Seeing(FlatTiming):
        def price_pass_ms(self, shape: PassShape) -> float:
            seen.append((shape.num_decodes, shape.decode_context_tokens))
            return 1.0

    serve((8, 8), speculation={**EAGLE, "accepted_tokens": [2]}, timing=Seeing(), fast_forward=False)
    assert seen == [(0, 0), (3, 11), (3, 14), (3, 17)]


# --- acceptance


def accepted(acceptance: Acceptance, request: int, verifications: int) -> list[int]:
    """What the first verifications of a request accept."""
    counts: list[int] = []
    while len(counts) < verifications:
        block, tokens = acceptance.block(request, len(counts) // VERIFICATIONS)
        assert np.diff(tokens).tolist() == (block + 1).tolist()
        counts += block.tolist()
    return counts[:verifications]


def test_recorded_acceptance_goes_round() -> None:
    assert accepted(RecordedAcceptance([2, 0, 1, 1, 2]), 7, 500) == [2, 0, 1, 1, 2] * 100


def test_a_budget_that_cuts_drafts_changes_no_later_verification() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "accepted_tokens": [2, 1]}
    alone = TokenTimes(serve((4, 9), speculation=speculation, max_num_batched_tokens=4).record).of_request(0)
    assert alone.tolist() == [1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0]
    cut = serve((4, 9), (4, 9), speculation=speculation, max_num_batched_tokens=4)  # the second gets what is left
    times = TokenTimes(cut.record)
    assert times.of_request(0).tolist() == alone.tolist()
    assert times.of_request(1).tolist() == [5.0, 6.0, 6.0, 6.0, 7.0, 7.0, 8.0, 8.0, 8.0]


def test_what_is_accepted_is_the_same_however_it_is_drawn() -> None:
    acceptance = RandomAcceptance([0.7, 0.5], 3)
    whole = accepted(acceptance, 1, 500)
    for other in range(0, 5000, 32):  # more than it remembers
        acceptance.block(other, 7)
    assert accepted(acceptance, 1, 500) == whole == accepted(RandomAcceptance([0.7, 0.5], 3), 1, 500)
    assert accepted(acceptance, 2, 500) != whole != accepted(RandomAcceptance([0.7, 0.5], 4), 1, 500)


@given(st.integers(1, 900), st.integers(0, 60), st.integers(1, 4))
@fuzz(40)
def test_a_request_draws_as_far_as_its_output(output_tokens: int, done: int, drafts: int) -> None:
    request = SpeculativeRequest(3, Content.of([(1, 0, 4)]), 4, output_tokens, 0.0)
    acceptance = RandomAcceptance([0.6] * drafts, 1)
    counts = accepted(acceptance, 3, 1000)
    request.output_tokens = min(done, output_tokens - 1)
    request.draw(acceptance)
    while request.output_tokens < output_tokens:
        tokens = request.length(acceptance)
        assert tokens == 1 + counts[request.verifications]
        request.verifications += 1
        request.output_tokens += tokens


def test_conditional_rates_and_a_mean_length_come_out_in_the_mean() -> None:
    by_rates = RandomAcceptance([0.8, 0.5, 0.25], 1)
    assert np.mean(accepted(by_rates, 0, 50_000)) == pytest.approx(0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.25, abs=0.02)
    speculation = SpeculationConfig(method="mtp", num_speculative_tokens=3, mean_accept_length=2.5)
    by_length = build_acceptance(speculation, 1)
    assert 1 + np.mean([accepted(by_length, request, 100) for request in range(500)]) == pytest.approx(2.5, abs=0.02)
    for rate in (0.0, 1.0):
        assert set(accepted(RandomAcceptance([rate] * 2, 1), 5, 10_000)) == {2 * rate}


@pytest.mark.parametrize(("length", "rate"), [(1.0, 0.0), (4.0, 1.0), (1.875, 0.5)])
def test_equal_rate(length: float, rate: float) -> None:
    assert equal_rate(length, 3) == pytest.approx(rate, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "give exactly one of"),
        ({"accepted_tokens": [1], "mean_accept_length": 2.0}, "give exactly one of"),
        ({"accepted_tokens": [3]}, "more than num_speculative_tokens 2"),
        ({"acceptance_rates": [0.5]}, "expected one for each of num_speculative_tokens 2"),
        ({"mean_accept_length": 3.5}, "expected at most num_speculative_tokens and one: 3"),
    ],
)
def test_acceptance_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SpeculationConfig.model_validate({**EAGLE, **wrong})


@pytest.mark.parametrize(("section", "value"), [("cluster", {"prefill_workers": 1, "decode_workers": 1})])
def test_what_is_not_modelled_is_refused(section: str, value: dict[str, Any]) -> None:
    engine = {"speculation": {**EAGLE, "mean_accept_length": 2.0}}
    with pytest.raises(ValidationError, match="is not modelled with"):
        Config.model_validate({"engine": engine, section: value})


# --- all of it ends


@given(scenarios(), st.sampled_from(["ngram", "eagle", "mtp"]), st.integers(1, 4), st.data())
@fuzz(60)
def test_whatever_is_drafted_and_accepted_everything_ends(
    scenario: Scenario, method: str, drafts: int, data: st.DataObject
) -> None:
    accepted = data.draw(st.lists(st.integers(0, drafts), min_size=1, max_size=4))
    speculation = {"method": method, "num_speculative_tokens": drafts, "accepted_tokens": accepted}
    engine = {**scenario.engine, "speculation": speculation}
    speculating = Scenario(**{**scenario.__dict__, "engine": engine, "max_time_s": None})
    outcome = run(speculating)
    assert not outcome.error
    requests = outcome.record.requests
    workload = outcome.workload
    limit = outcome.schedulers[0].max_model_len  # a budget for whole prompts is one too
    for number in range(requests.num_requests):
        if requests.status[number] == Status.COMPLETED:
            room = limit - workload.input_tokens[number]
            assert requests.output_tokens[number] == min(workload.output_tokens[number], room)
            assert len(TokenTimes(outcome.record).of_request(number)) == requests.output_tokens[number]
            parts = ("queued_ms", "prefill_ms", "stalled_ms", "preempted_ms", "transfer_ms", "decode_ms")
            spent = [getattr(requests, part)[number] for part in parts]
            assert min(spent) >= -1e-9
            assert sum(spent) == pytest.approx(requests.terminal_ms[number] - requests.arrival_ms[number], abs=1e-6)
    for scheduler in outcome.schedulers:
        assert scheduler.pool.free_blocks == scheduler.pool.num_blocks
    assert columns_of(run(speculating).record) == columns_of(outcome.record)


def test_the_peers_burst_at_exact_capacity_ends_without_preemption() -> None:
    for drafts, accepted in itertools.product((1, 2, 3), (0, 1)):
        speculation = {"method": "mtp", "num_speculative_tokens": drafts, "accepted_tokens": [accepted]}
        requests = serve((7, 2), speculation=speculation, num_gpu_blocks=2).record.requests
        assert (requests.status[0], requests.output_tokens[0], requests.preemptions[0]) == (Status.COMPLETED, 2, 0)
