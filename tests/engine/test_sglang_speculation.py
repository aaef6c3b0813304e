"""SGLang's speculation from the configuration to the report: what is accepted, what it holds, that all of it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sglang_strategies import Checker, sglang_deployments
from strategies import Dice, FlatTiming, Scenario, Send, columns_of, fuzz
from windtunnel import Config, Result, simulate
from windtunnel.assembly import engines
from windtunnel.config.speculation import SglangSpeculationConfig
from windtunnel.engine.sglang_speculation import SglangSpeculation
from windtunnel.record.columns import Status
from windtunnel.report.metrics import summarize
from windtunnel.report.token_times import TokenTimes
from windtunnel.timing.base import PassShape
from windtunnel.timing.verification import VerifyingShape

EAGLE = {"algorithm": "eagle", "num_steps": 2}


def deployment(*sends: tuple[int, int], speculation: dict[str, Any], **engine: Any) -> Scenario:
    """Requests of (prompt, output tokens) that arrive at once; a pass takes 1 ms."""
    fields = {"kind": "sglang", "page_size": 4, "num_gpu_blocks": 100, "max_running_requests": 8, **engine}
    prompts = [Send(((100 + number, 0, prompt),), output, None, 0.0) for number, (prompt, output) in enumerate(sends)]
    return Scenario(tuple(prompts), {**fields, "speculation": speculation}, timing=FlatTiming(1.0))


def serve(*sends: tuple[int, int], speculation: dict[str, Any], fast_forward: bool = True, **engine: Any) -> Result:
    scenario = deployment(*sends, speculation=speculation, **engine)
    return simulate(scenario.config(fast_forward=fast_forward), workload=scenario.workload(), timing=scenario.timing)


def bursts(result: Result) -> list[list[int]]:
    """Tokens of each request by pass that emitted any."""
    requests = result.record.requests
    found: list[list[int]] = [[] for _ in range(requests.num_requests)]
    extra = iter(requests.burst_extra)
    for number, passes in zip(requests.burst_request, requests.burst_passes, strict=True):
        found[number] = [1 + next(extra) for _ in range(passes)]
    return found


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_verification_yields_a_token_and_what_it_accepts(fast_forward: bool) -> None:
    all_of_it = {**EAGLE, "accepted_tokens": [2]}
    result = serve((4, 5), (4, 8), (4, 8), speculation=all_of_it, fast_forward=fast_forward)
    assert bursts(result) == [[1, 3, 1], [1, 3, 3, 1], [1, 3, 3, 1]]
    assert list(result.record.requests.output_tokens) == [5, 8, 8]
    assert list(result.record.passes[0].end_ms) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("rates", "tokens"), [([0.0, 1.0], [1, 1, 1, 1]), ([1.0, 0.0, 1.0], [1, 2, 1]), ([1.0, 1.0], [1, 3])]
)
def test_the_first_draft_that_is_rejected_ends_a_burst(rates: list[float], tokens: list[int]) -> None:
    result = serve((4, 4), speculation={"algorithm": "nextn", "num_steps": len(rates), "acceptance_rates": rates})
    assert bursts(result) == [tokens]


@pytest.mark.parametrize(
    ("page_size", "speculation", "room"),
    [
        (1, {"algorithm": "eagle", "num_steps": 3}, 4),
        (1, {"algorithm": "eagle", "num_steps": 5, "eagle_topk": 4, "num_draft_tokens": 8}, 20),
        (1, {"algorithm": "ngram", "num_draft_tokens": 12}, 12),
        (16, {"algorithm": "eagle", "num_steps": 3}, 16),
        (4, {"algorithm": "eagle", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 8}, 16),
        (4, {"algorithm": "ngram", "num_draft_tokens": 6}, 8),
    ],
)
def test_what_a_pass_must_find_free_for_each_request(page_size: int, speculation: dict[str, Any], room: int) -> None:
    config = SglangSpeculationConfig(**speculation, mean_accept_length=1.5)
    assert config.room_tokens(page_size) == room


@pytest.mark.parametrize("fast_forward", [True, False])
def test_whoever_came_last_is_retracted_when_drafts_do_not_fit(fast_forward: bool) -> None:
    """18 slots: prompts of 4 and outputs of 6 fit in the end, but 2 x 3 free slots before a pass do not."""
    none = {**EAGLE, "accepted_tokens": [0]}
    options = {"page_size": 1, "num_gpu_blocks": 18, "ignore_eos": False, "schedule_conservativeness": 0.0}
    result = serve((4, 6), (4, 6), speculation=none, fast_forward=fast_forward, **options)
    requests = result.record.requests
    assert list(requests.preemptions) == [0, 1]
    assert list(requests.output_tokens) == [6, 6]
    assert set(requests.status) == {Status.COMPLETED}


def test_who_is_alone_and_has_no_room_for_drafts_is_given_up_with_the_reason() -> None:
    wide = {"algorithm": "eagle", "num_steps": 4, "eagle_topk": 4, "num_draft_tokens": 16, "accepted_tokens": [0]}
    result = serve((8, 8), speculation=wide, page_size=1, num_gpu_blocks=22)
    assert list(result.record.requests.status) == [Status.FAILED]
    assert "beside the 16 that drafts need" in result.record.requests.reasons[0]


def test_a_full_pool_drains() -> None:
    """S52: five pages of 4, prompts in chunks of 4."""
    sends = ((6, 7), (4, 5))
    speculation = {"algorithm": "nextn", "num_steps": 2, "acceptance_rates": [0.5, 0.5]}
    result = serve(*sends, speculation=speculation, num_gpu_blocks=5, chunked_prefill_size=4, max_running_requests=4)
    assert list(result.record.requests.output_tokens) == [7, 5]


def test_only_accepted_tokens_are_kept_and_cached() -> None:
    """A second turn quotes the first: prompt and output but the last token are hit, whatever was drafted."""
    first = Send(((7, 0, 8),), 9, None, 0.0)
    quote = Send(((7, 0, 8), (-1, 0, 9), (8, 0, 3)), 1, 0, 1.0)
    fields = {"kind": "sglang", "page_size": 4, "num_gpu_blocks": 50, "speculation": {**EAGLE, "accepted_tokens": [1]}}
    scenario = Scenario((first, quote), fields, timing=FlatTiming(1.0))
    result = simulate(scenario.config(), workload=scenario.workload(), timing=scenario.timing)
    assert list(result.record.requests.hit_tokens) == [0, 16]


class Shapes(FlatTiming):
    """1 ms a pass, and what it was asked."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.seen: list[tuple[int, int, int]] = []

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        self.seen.append((shape.num_decodes, shape.decode_context_tokens, shape.draft_tokens))
        return 1.0

    def price_pass_ms(self, shape: PassShape) -> float:
        return 1.0


def test_a_tree_is_priced_with_all_that_it_verifies() -> None:
    tree = {"algorithm": "eagle", "num_steps": 2, "eagle_topk": 4, "num_draft_tokens": 8, "accepted_tokens": [1]}
    scenario = deployment((10, 5), (20, 5), speculation=tree)
    timing = Shapes()
    simulate(scenario.config(fast_forward=False), workload=scenario.workload(), timing=timing)
    assert timing.seen == [(2, 30 + 2 * 8, 14), (2, 34 + 2 * 8, 14)]


def test_drafting_takes_time_for_each_step() -> None:
    plain = serve((4, 5), speculation={**EAGLE, "accepted_tokens": [2]})
    slow = serve((4, 5), speculation={**EAGLE, "accepted_tokens": [2], "draft_ms": 0.25})
    assert slow.record.end_ms == plain.record.end_ms + 3 * 2 * 0.25


def test_accept_length_is_reported() -> None:
    result = serve((4, 7), (4, 7), speculation={**EAGLE, "accepted_tokens": [2]})
    summary = summarize(result.workload, result.record, result.config.slo)
    assert summary["accept_length"] == 14 / 6
    assert TokenTimes(result.record).of_request(0).tolist() == [1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("speculation", "engine", "message"),
    [
        ({"method": "eagle", "num_steps": 2}, {}, "algorithm"),
        ({"algorithm": "eagle"}, {}, "num_steps"),
        ({"algorithm": "ngram", "num_steps": 2, "num_draft_tokens": 4}, {}, "no effect"),
        ({"algorithm": "ngram"}, {}, "num_draft_tokens"),
        ({"algorithm": "eagle", "num_steps": 3, "eagle_topk": 2}, {}, "num_draft_tokens"),
        ({"algorithm": "eagle", "num_steps": 3, "num_draft_tokens": 8}, {}, "chain"),
        ({"algorithm": "eagle", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 3}, {}, "at least 4"),
        (EAGLE, {"overlap_schedule": True}, "overlap_schedule"),
        (EAGLE, {"enable_mixed_chunk": True}, "enable_mixed_chunk"),
        (EAGLE, {"offload": {"host_gib": 1.0}}, "offload"),
    ],
)
def test_what_does_not_go_together_is_refused(
    speculation: dict[str, Any], engine: dict[str, Any], message: str
) -> None:
    fields = {"kind": "sglang", "speculation": {**speculation, "mean_accept_length": 1.5}, **engine}
    with pytest.raises((ValidationError, ValueError), match=message):
        Config.model_validate({"engine": fields})


def test_speculation_switches_overlap_off_and_admits_fewer() -> None:
    engine = Config.model_validate(
        {"engine": {"kind": "sglang", "speculation": {**EAGLE, "accepted_tokens": [1]}}}
    ).engine
    assert engine.kind == "sglang"
    assert (engine.overlap_schedule, engine.max_running_requests) == (False, 48)


def speculating(scenario: Scenario, entropy: bytes) -> Scenario:
    """The same deployment with drafts."""
    dice = Dice(entropy)
    steps = dice.number(1, 4)
    speculation: dict[str, object] = {"algorithm": "eagle", "num_steps": steps, "draft_ms": dice.pick(0.0, 0.25)}
    if dice.pick(False, True):
        branches = dice.number(2, 3)
        speculation |= {"eagle_topk": branches, "num_draft_tokens": steps + dice.number(1, 3)}
    if dice.pick(False, True):
        speculation["mean_accept_length"] = 1.0 + steps * dice.pick(0.0, 0.3, 0.7)
    else:
        speculation["accepted_tokens"] = [dice.number(0, steps) for _ in range(dice.number(1, 4))]
    engine = {**scenario.engine, "overlap_schedule": False, "enable_mixed_chunk": False, "speculation": speculation}
    return replace(scenario, engine=engine)


def outcome(scenario: Scenario, *, fast_forward: bool = True, checked: bool = False) -> dict[str, Any]:
    """The record of a run, every turn of it checked if wanted."""

    def build(*args: Any) -> SglangSpeculation:
        scheduler = SglangSpeculation(*args)
        if checked:
            scheduler.observer = Checker(scheduler)
        return scheduler

    with mock.patch.object(engines, "SglangSpeculation", build):
        config = scenario.config(fast_forward=fast_forward)
        result = simulate(config, workload=scenario.workload(), timing=scenario.timing)
    return columns_of(result.record)


@given(sglang_deployments(), st.binary(min_size=16, max_size=16))
@fuzz(100)
def test_runs_give_the_record_of_single_passes(scenario: Scenario, entropy: bytes) -> None:
    drafting = speculating(scenario, entropy)
    fast, slow = outcome(drafting), outcome(drafting, fast_forward=False)
    assert {name: column for name, column in fast.items() if column != slow[name]} == {}


@given(sglang_deployments(), st.binary(min_size=16, max_size=16), st.booleans())
@fuzz(60)
def test_the_parts_agree_after_every_turn(scenario: Scenario, entropy: bytes, fast_forward: bool) -> None:
    drafting = speculating(scenario, entropy)
    watched = outcome(drafting, fast_forward=fast_forward, checked=True)
    fast = outcome(drafting)
    assert {name: column for name, column in fast.items() if column != watched[name]} == {}


@given(sglang_deployments())
@fuzz(60)
def test_drafts_that_are_never_accepted_yield_the_tokens_of_single_decodes(scenario: Scenario) -> None:
    """With room for all of them nothing else is decided either: the same passes, of the same requests."""
    roomy = {**scenario.engine, "overlap_schedule": False, "enable_mixed_chunk": False, "num_gpu_blocks": 10_000}
    flat = replace(scenario, timing=FlatTiming(1.0))
    plain = replace(flat, engine=roomy)
    rejected = replace(flat, engine={**roomy, "speculation": {**EAGLE, "accepted_tokens": [0]}})
    expected = columns_of(simulate(plain.config(), workload=plain.workload(), timing=plain.timing).record)
    found = outcome(rejected)
    assert {name for name in found if found[name] != expected[name] and not name.startswith("requests.burst")} == set()
