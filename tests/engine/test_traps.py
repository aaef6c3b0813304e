"""Where schedulers of this kind have hung: each trap ends with a rejection, progress, or a diagnosed error.

Letters and numbers are those of notes on another simulator (docs/fidelity.md has the differences); a pass takes 1 ms.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import windtunnel
from strategies import FlatTiming, Outcome, Scenario, Send
from strategies import run as simulate
from topologies import Run, check
from topologies import run as simulate_pools
from windtunnel.config import Config
from windtunnel.record.columns import RequestColumns, Status
from windtunnel.report.metrics import summarize
from windtunnel.report.token_times import TokenTimes

Sends = tuple[tuple[int, int] | tuple[int, int, float], ...]


def scenario_of(sends: Sends, engine: dict[str, object], **more: Any) -> Scenario:
    """Requests of (prompt, output tokens), all different, at 0 ms or later, on an engine of 4-token blocks."""
    return Scenario(
        tuple(
            Send(((100 + number, 0, send[0]),), send[1], None, send[2] if len(send) > 2 else 0.0)
            for number, send in enumerate(sends)
        ),
        {"block_size": 4, "async_scheduling": False, **engine},
        timing=FlatTiming(1.0),
        **more,
    )


def serve(*sends: Any, publish_events: bool = False, **engine: object) -> Outcome:
    outcome = simulate(scenario_of(sends, engine), publish_events=publish_events)
    assert outcome.error == ""
    return outcome


def hand_over(*sends: Any, **pools: dict[str, object]) -> Run:
    cluster = {"prefill_workers": 1, "decode_workers": 1, **pools.pop("cluster", {})}
    scenario = scenario_of(sends, {"num_gpu_blocks": 16}, topology={"cluster": cluster, **pools})
    outcome = simulate_pools(scenario)
    assert outcome.error == ""
    check(scenario, outcome)
    return outcome


def statuses(requests: RequestColumns) -> list[Status]:
    return [Status(status) for status in requests.status]


def drafting(method: str, rates: list[float]) -> dict[str, object]:
    return {"method": method, "num_speculative_tokens": len(rates), "acceptance_rates": rates}


DONE, REFUSED = Status.COMPLETED, Status.REJECTED


def test_trap_a_a_prompt_beyond_the_budget_without_chunks_is_refused_and_stops_nobody() -> None:
    requests = serve((9, 1), (8, 1), max_num_batched_tokens=8, enable_chunked_prefill=False).record.requests
    assert statuses(requests) == [REFUSED, DONE]
    assert "max_num_batched_tokens" in requests.reasons[0]


@pytest.mark.parametrize(("lengths", "status"), [((8, 1), DONE), ((8, 2), REFUSED), ((7, 2), DONE), ((7, 3), REFUSED)])
def test_trap_b_an_output_that_outgrows_the_pool_is_refused(lengths: tuple[int, int], status: Status) -> None:
    requests = serve(lengths, (4, 1), num_gpu_blocks=2).record.requests
    assert statuses(requests) == [status, DONE]
    assert sum(requests.preemptions) == 0


@pytest.mark.parametrize("method", ["ngram", "eagle", "mtp"])
@pytest.mark.parametrize("lengths", [(8, 1), (7, 2)])
def test_trap_c_the_last_token_of_a_speculating_request_needs_no_block(method: str, lengths: tuple[int, int]) -> None:
    requests = serve(lengths, num_gpu_blocks=2, speculation=drafting(method, [1.0])).record.requests
    assert (statuses(requests), requests.output_tokens[0], requests.preemptions[0]) == ([DONE], lengths[1], 0)


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_trap_d_two_that_speculate_and_fit_alone_do_not_evict_each_other_for_ever(method: str) -> None:
    geometry: dict[str, Any] = {"block_size": 2, "num_gpu_blocks": 4, "max_num_seqs": 2, "max_num_batched_tokens": 4}
    speculation = drafting(method, [0.0, 0.0, 1.0])
    outcome = serve((3, 3), (3, 2), **geometry, enable_prefix_caching=False, speculation=speculation)
    assert statuses(outcome.record.requests) == [DONE, DONE]
    assert outcome.record.end_ms <= 12.0


def test_trap_e_whom_the_budget_leaves_out_goes_on_when_others_have_ended() -> None:
    """Each wants the whole budget, of a token and three drafts."""
    speculation = drafting("ngram", [0.0, 0.0, 0.0])
    requests = serve((4, 6), (4, 6), max_num_batched_tokens=4, speculation=speculation).record.requests
    assert statuses(requests) == [DONE, DONE]
    assert requests.last_token_ms[1] > requests.last_token_ms[0]
    assert requests.last_token_ms[1] <= 14.0


def test_trap_f_a_pass_without_a_batch_takes_no_time_and_is_no_progress() -> None:
    """Asynchronous, the output of the last pass is processed in one; who waited for its slot starts at once."""
    outcome = serve((8, 3), (8, 3), max_num_seqs=1, async_scheduling=True)
    ends = list(outcome.record.passes[0].end_ms)
    assert ends == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_trap_g_a_prompt_that_its_destination_never_holds_is_refused_and_bars_nobody() -> None:
    outcome = hand_over((36, 1), (8, 3), decode_engine={"num_gpu_blocks": 8})
    assert statuses(outcome.record.requests) == [REFUSED, DONE]
    assert outcome.record.requests.reasons[0].startswith("workers that decode: ")


def test_trap_h_a_prefill_pool_full_of_prompts_to_be_sent_goes_on_when_they_are() -> None:
    """A prompt takes 8 ms to send, and both pools hold one at a time."""
    transfer = {"bandwidth_gb_per_s": 1.0, "kv_bytes_per_token": 1_000_000}
    pool: dict[str, object] = {"num_gpu_blocks": 3}
    outcome = hand_over(*[(8, 2)] * 4, cluster={"transfer": transfer}, prefill_engine=pool, decode_engine=pool)
    requests = outcome.record.requests
    assert statuses(requests) == [DONE] * 4
    assert max(requests.last_token_ms) <= 4 * 12.0


def test_trap_i_a_name_that_comes_again_is_another_request() -> None:
    """The first gives up after its preemption, from the front of the queue."""
    scenario = scenario_of(((4, 12), (4, 12), (4, 2, 12.0)), {"num_gpu_blocks": 4}, cancel_after_ms=11.0)
    workload = scenario.workload()
    workload.request_ids = ["a", "b", "b"]
    requests = windtunnel.simulate(scenario.config(), workload=workload, timing=scenario.timing).record.requests
    assert requests.preemptions[1] == 1
    assert statuses(requests) == [Status.CANCELLED, Status.CANCELLED, DONE]


def test_trap_j_a_budget_without_end_does_not_outgrow_a_small_pool() -> None:
    with pytest.raises(ValidationError, match="max_num_batched_tokens"):
        Config.model_validate({"engine": {"max_num_batched_tokens": None}})
    requests = serve(*[(12, 2)] * 5, num_gpu_blocks=4, max_num_batched_tokens=10**12).record.requests
    assert statuses(requests) == [DONE] * 5


# --- scenarios 40 to 45 of the same review: drafts


def tokens_of(outcome: Outcome, number: int) -> list[int]:
    """Tokens that a request got in each pass that gave it any."""
    times = TokenTimes(outcome.record).of_request(number).tolist()
    return [times.count(time_ms) for time_ms in sorted(set(times))]


def test_scenario_40_the_pass_of_the_prompt_gives_one_token_and_each_later_one_a_burst() -> None:
    """The peer's first pass gives a burst of three already."""
    outcome = serve((4, 5), (4, 8), num_gpu_blocks=16, speculation=drafting("mtp", [1.0, 1.0]))
    assert [tokens_of(outcome, number) for number in (0, 1)] == [[1, 3, 1], [1, 3, 3, 1]]


def test_scenario_41_a_first_draft_that_is_rejected_takes_the_rest_with_it() -> None:
    outcome = serve((3, 5), block_size=2, num_gpu_blocks=8, speculation=drafting("mtp", [0.0, 1.0]))
    assert tokens_of(outcome, 0) == [1, 1, 1, 1, 1]


def test_scenario_42_the_models_length_ends_a_burst() -> None:
    """Three tokens as in the peer, in two passes; there in one."""
    outcome = serve((5, 8), num_gpu_blocks=16, max_model_len=8, speculation=drafting("mtp", [1.0, 1.0]))
    assert tokens_of(outcome, 0) == [1, 2]
    assert statuses(outcome.record.requests) == [DONE]


def test_scenario_43_a_pool_that_preempts_while_drafts_are_rejected_drains() -> None:
    geometry: dict[str, Any] = {"num_gpu_blocks": 6, "max_num_batched_tokens": 12, "max_num_seqs": 3}
    sends = (8, 7), (8, 7), (12, 7)
    outcome = serve(*sends, **geometry, speculation=drafting("mtp", [0.0, 1.0]), publish_events=True)
    assert sum(outcome.record.requests.output_tokens) == 21
    assert any(not event.stored for event in outcome.schedulers[0].pool.events)


@pytest.mark.parametrize(("rates", "tokens"), [([0.0, 1.0], 1), ([1.0, 1.0], 3), ([1.0, 0.0, 1.0], 2)])
def test_scenario_44_rates_are_conditional_and_bursts_end_with_the_output(rates: list[float], tokens: int) -> None:
    outcome = serve((4, 1 + 2 * tokens), num_gpu_blocks=16, speculation=drafting("mtp", rates))
    assert tokens_of(outcome, 0) == [1, tokens, tokens]
    short = serve((4, 3), num_gpu_blocks=16, speculation=drafting("mtp", rates))
    assert tokens_of(short, 0) == ([1, 2] if tokens > 1 else [1, 1, 1])
    assert tokens_of(serve((4, 0), num_gpu_blocks=16, speculation=drafting("mtp", rates)), 0) == []


def test_scenario_45_who_asks_for_no_output_counts_in_no_accept_length() -> None:
    """3 tokens in 2 passes of the request that has any: the peer gives them in one, and says 3."""
    outcome = serve((4, 0), (4, 3), num_gpu_blocks=16, speculation=drafting("mtp", [1.0, 1.0]))
    assert [tokens_of(outcome, number) for number in (0, 1)] == [[], [1, 2]]
    assert statuses(outcome.record.requests) == [DONE, DONE]
    assert summarize(outcome.workload, outcome.record, Config().slo)["accept_length"] == 3 / 2
