"""What asynchronous scheduling changes for requests: slots, blocks and first tokens come one pass later."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from strategies import FlatTiming, Scenario, Send, run
from windtunnel.config.vllm import VllmConfig
from windtunnel.record.columns import RequestColumns, Status


def serve(
    *sends: tuple[int, int, float], is_async: bool = True, cancel_after_ms: float | None = None, **engine: object
) -> RequestColumns:
    """Requests of (prompt, output tokens, arrival ms), each of its own content; a pass takes 1 ms."""
    geometry = {"block_size": 4, "num_gpu_blocks": 100, "max_num_seqs": 8, "async_scheduling": is_async}
    scenario = Scenario(
        tuple(
            Send(((100 + number, 0, prompt),), output, None, at_ms)
            for number, (prompt, output, at_ms) in enumerate(sends)
        ),
        {**geometry, **engine},
        timing=FlatTiming(1.0),
        cancel_after_ms=cancel_after_ms,
    )
    return run(scenario).record.requests


def test_tokens_come_at_the_same_times_on_an_engine_that_was_idle() -> None:
    for is_async in (True, False):
        requests = serve((8, 5, 10.25), is_async=is_async)
        assert (requests.first_token_ms[0], requests.last_token_ms[0]) == (11.25, 15.25)


LONG = (8, 40, 0.0)


def test_a_slot_comes_free_a_pass_later() -> None:
    three = LONG, (8, 3, 0.0), (8, 3, 0.0)
    assert serve(*three, max_num_seqs=2).first_admit_ms[2] == 4.0
    assert serve(*three, max_num_seqs=2, is_async=False).first_admit_ms[2] == 3.0


def test_blocks_come_free_a_pass_later() -> None:
    three = LONG, (8, 3, 0.0), (8, 3, 0.0)
    assert serve(*three, num_gpu_blocks=12, max_num_seqs=2).first_admit_ms[2] == 4.0


def test_a_pass_with_nothing_to_compute_takes_no_time() -> None:
    assert serve((8, 3, 0.0), (8, 3, 0.0), max_num_seqs=1).first_admit_ms.tolist() == [0.0, 3.0]


def test_who_arrives_during_a_pass_is_not_in_the_next_one_which_is_decided_already() -> None:
    arrivals = (8, 9, 0.0), (8, 9, 2.5)
    assert serve(*arrivals).first_admit_ms.tolist() == [0.0, 4.0]
    assert serve(*arrivals, is_async=False).first_admit_ms.tolist() == [0.0, 3.0]


def test_the_arrival_that_a_completion_causes_waits_a_pass_if_others_run() -> None:
    arrivals = (8, 9, 0.0), (8, 9, 3.0)  # in the instant in which pass 3 starts
    assert serve(*arrivals).first_admit_ms.tolist() == [0.0, 4.0]


def test_an_engine_whose_last_request_has_ended_takes_the_next_at_once() -> None:
    assert serve((8, 3, 0.0), (8, 3, 2.5)).first_admit_ms.tolist() == [0.0, 3.0]


def test_who_gives_up_during_a_pass_is_still_in_the_next_one() -> None:
    sends = (8, 90, 0.0), (8, 90, 0.0), (8, 2, 1.0)
    late = serve(*sends, max_num_seqs=2, cancel_after_ms=9.5)
    assert [Status(late.status[n]) for n in (0, 1, 2)] == [Status.CANCELLED, Status.CANCELLED, Status.CANCELLED]
    assert late.output_tokens.tolist()[:2] == [9, 9]
    assert late.terminal_ms.tolist() == [9.5, 9.5, 10.5]


@pytest.mark.parametrize(("behaviour", "is_async"), [("0.33", True), ("0.20", True), ("0.11", False)])
def test_it_is_the_default_of_the_releases_that_were_deployed_with_it(behaviour: str, is_async: bool) -> None:
    assert VllmConfig.model_validate({"behaviour": behaviour}).async_scheduling is is_async
    for asked in (True, False):
        assert VllmConfig.model_validate({"behaviour": behaviour, "async_scheduling": asked}).async_scheduling is asked


def test_the_release_that_does_not_draft_with_it_refuses_both() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 1, "accepted_tokens": [1]}
    with pytest.raises(ValidationError, match="async_scheduling"):
        VllmConfig.model_validate({"behaviour": "0.11", "async_scheduling": True, "speculation": drafts})
