"""No valid configuration stalls or spins: every run ends, in a time that its tokens bound."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sglang_strategies import sglang_deployments
from strategies import FlatTiming, Scenario, Send, fuzz, scenarios
from topologies import check, run, split_scenarios
from windtunnel.record.columns import Status

DRAFTS = {"method": "mtp", "num_speculative_tokens": 3, "acceptance_rates": [0.7, 0.5, 0.9]}
ENDED = (Status.COMPLETED, Status.CANCELLED, Status.REJECTED, Status.NOT_ARRIVED)  # the last after one that gave up


def ends(scenario: Scenario) -> None:
    """Within a second for each token, had each request to compute those of all again."""
    scenario = replace(scenario, max_time_s=None)
    outcome = run(scenario)
    assert outcome.error == ""
    check(scenario, outcome)
    is_vllm = "kind" not in scenario.engine
    assert all(status in ENDED for status in outcome.record.requests.status) or not is_vllm
    tokens = sum(send.prompt_tokens + send.output_tokens for send in scenario.sends)
    waits_ms = sum(send.time_ms for send in scenario.sends if send.time_ms == send.time_ms)
    assert outcome.record.end_ms <= waits_ms + 1000.0 * tokens * len(scenario.sends)


@given(st.one_of(scenarios(), split_scenarios(), sglang_deployments(), split_scenarios(sglang=True)))
@fuzz(150)
def test_every_run_ends(scenario: Scenario) -> None:
    ends(scenario)


@given(scenarios(), st.sampled_from(["mtp", "ngram"]), st.booleans())
@fuzz(80)
def test_every_run_with_drafts_ends(scenario: Scenario, method: str, is_async: bool) -> None:
    speculation = {**DRAFTS, "method": method}
    ends(replace(scenario, engine={**scenario.engine, "speculation": speculation, "async_scheduling": is_async}))


@given(st.integers(0, 3))
@fuzz(4)
def test_the_last_tokens_below_the_models_length_are_computed_when_drafts_in_flight_are_rejected(seed: int) -> None:
    """Asynchronous, drafts in flight fill the length, so that nothing is scheduled until they are known to be wrong."""
    engine = {"block_size": 1, "num_gpu_blocks": 40, "max_model_len": 6, "async_scheduling": True}
    sends = (Send(((100, 0, 1),), 6, None, 0.0),)
    for fast_forward in (True, False):
        fields = {**engine, "speculation": {**DRAFTS, "method": "mtp"}}
        scenario = Scenario(sends, fields, timing=FlatTiming(1.0), seed=seed)
        assert run(scenario, fast_forward=fast_forward).error == ""
