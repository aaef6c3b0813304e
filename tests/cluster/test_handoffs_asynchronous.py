"""Requests handed from one asynchronous engine to another: what is done during a pass counts a pass later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies import FlatTiming, Scenario, Send
from topologies import Run, check, run
from windtunnel.record.columns import HandoffColumns, Status


def serve(*sends: tuple[int, int, float], is_async: bool, **topology: object) -> Run:
    """Requests of (prompt, output tokens, arrival ms), all different; a pass takes 1 ms, a transfer nothing."""
    engine = {"block_size": 4, "num_gpu_blocks": 100, "max_num_seqs": 8, "async_scheduling": is_async}
    scenario = Scenario(
        tuple(Send(((100 + k, 0, prompt),), output, None, at_ms) for k, (prompt, output, at_ms) in enumerate(sends)),
        engine,
        timing=FlatTiming(1.0),
        topology={"cluster": {"prefill_workers": 1, "decode_workers": 1}, **topology},  # type: ignore[dict-item]
    )
    outcome = run(scenario)
    check(scenario, outcome)
    stepwise = run(replace(scenario, engine={**engine, "fast_forward": False}))
    assert list(stepwise.record.requests.last_token_ms) == list(outcome.record.requests.last_token_ms)
    return outcome


def handoffs_of(outcome: Run) -> HandoffColumns:
    assert outcome.record.handoffs is not None
    return outcome.record.handoffs


def test_what_is_free_after_the_last_pass_lets_in_who_waits_for_room() -> None:
    """The destination's last request is known to have ended only when there is no other pass to end: it once hung."""
    outcome = serve((32, 5, 0.0), (36, 2, 0.0), is_async=True, decode_engine={"num_gpu_blocks": 10})
    requests = outcome.record.requests
    assert list(requests.status) == [Status.COMPLETED, Status.COMPLETED]
    assert handoffs_of(outcome).reserved_ms[1] == requests.terminal_ms[0]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_place_at_the_source_comes_free_a_pass_later(is_async: bool) -> None:
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "long_prefill_token_threshold": 4}
    sends = (40, 1, 0.0), (4, 1, 0.0), (4, 1, 0.0)
    outcome = serve(*sends, is_async=is_async, prefill_engine=limits)
    assert outcome.record.requests.first_admit_ms[2] == (2.0 if is_async else 1.0)


@pytest.mark.parametrize("is_async", [True, False])
def test_blocks_at_the_source_come_free_a_pass_later(is_async: bool) -> None:
    """The short prompt is sent at once; the third lacks just the block that it had."""
    limits = {"num_gpu_blocks": 10, "max_num_batched_tokens": 3, "long_prefill_token_threshold": 1}
    outcome = serve((36, 1, 0.0), (1, 1, 0.0), (36, 1, 0.0), is_async=is_async, prefill_engine=limits)
    assert handoffs_of(outcome).released_ms[1] == 1.0
    assert outcome.record.requests.first_admit_ms[2] == (2.0 if is_async else 1.0)


@pytest.mark.parametrize("is_async", [True, False])
def test_who_is_let_in_at_the_destination_decodes_a_pass_later(is_async: bool) -> None:
    """The second leaves at 4 ms; the third, which has waited for its blocks, is in the pass after the next."""
    sends = (8, 30, 0.0), (24, 3, 0.0), (24, 3, 0.0)
    outcome = serve(*sends, is_async=is_async, decode_engine={"num_gpu_blocks": 13})
    handoffs = handoffs_of(outcome)
    assert outcome.record.requests.terminal_ms[1] == 4.0
    assert handoffs.reserved_ms[2] == handoffs.activated_ms[2] == 4.0
    assert handoffs.decode_admit_ms[2] == (5.0 if is_async else 4.0)


def test_who_has_ended_at_a_source_is_not_preempted_while_its_prompt_is_sent() -> None:
    """Two long prompts pass the check together and do not fit together; the short one behind them has ended."""
    limits = {
        "num_gpu_blocks": 4,
        "max_num_batched_tokens": 12,
        "long_prefill_token_threshold": 4,
        "scheduler_reserve_full_isl": False,
    }
    outcome = serve((12, 1, 0.0), (12, 1, 0.0), (4, 1, 0.0), is_async=True, prefill_engine=limits)
    requests = outcome.record.requests
    assert list(requests.status) == [Status.COMPLETED] * 3
    assert sum(requests.preemptions) > 0
    assert requests.preemptions[2] == 0
