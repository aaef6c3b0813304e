"""The order of events at one instant, refusals, sessions, and the ways a simulation ends early."""

from __future__ import annotations

import pytest

from strategies import FlatTiming, JaggedTiming, Outcome, Scenario, Send, run
from windtunnel import Config, Workload, simulate
from windtunnel.record.columns import Status

ENGINE: dict[str, object] = {"block_size": 4, "num_gpu_blocks": 100}
POLYNOMIAL_ENGINE: dict[str, object] = {"block_size": 64, "num_gpu_blocks": 1000}


def scenario(*sends: Send, engine: dict[str, object] | None = None, price_ms: float = 1.0, **rest: object) -> Scenario:
    return Scenario(sends, {**ENGINE, **(engine or {})}, timing=FlatTiming(price_ms), **rest)  # type: ignore[arg-type]


def statuses(outcome: Outcome) -> list[Status]:
    return [Status(status) for status in outcome.record.requests.status]


# --- one instant


def test_a_pass_that_ends_when_its_client_gives_up_is_still_delivered() -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 3), cancel_after_ms=3.0))
    assert statuses(outcome) == [Status.COMPLETED]
    assert outcome.record.requests.output_tokens[0] == 3


def test_a_client_that_gives_up_has_left_its_place_when_another_arrives() -> None:
    sends = (Send(((1, 0, 4),), 10), Send(((2, 0, 4),), 2, time_ms=3.0))
    outcome = run(scenario(*sends, engine={"max_num_seqs": 1}, cancel_after_ms=3.0))
    requests = outcome.record.requests
    assert statuses(outcome) == [Status.CANCELLED, Status.COMPLETED]
    assert (requests.output_tokens[0], requests.terminal_ms[0]) == (3, 3.0)
    assert (requests.arrival_ms[1], requests.first_admit_ms[1]) == (3.0, 3.0)


def test_a_completed_request_counts_no_more_when_another_is_placed() -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 3), Send(((2, 0, 4),), 3, time_ms=3.0), workers=2, router="least-loaded"))
    assert outcome.record.requests.worker.tolist() == [0, 0]


def test_a_request_that_arrives_when_a_pass_ends_is_in_the_next() -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 9), Send(((2, 0, 4),), 2, time_ms=3.0)))
    assert outcome.record.requests.first_admit_ms[1] == 3.0
    assert outcome.record.requests.first_token_ms[1] == 4.0


def test_requests_that_arrive_together_share_their_first_pass() -> None:
    sends = tuple(Send(((number, 0, 512),), 2) for number in range(2))
    requests = run(Scenario(sends, POLYNOMIAL_ENGINE)).record.requests
    assert requests.first_token_ms.tolist() == pytest.approx([39.088283, 39.088283], abs=1e-6)
    assert requests.last_token_ms.tolist() == pytest.approx([45.687516, 45.687516], abs=1e-6)


def test_a_turn_without_delay_joins_the_pass_that_starts_when_the_one_before_ends() -> None:
    requests = run(scenario(Send(((1, 0, 4),), 2), Send(((1, 0, 8),), 2, after=0, time_ms=0.0))).record.requests
    assert requests.terminal_ms[0] == requests.arrival_ms[1] == requests.first_admit_ms[1] == 2.0


# --- refusals


@pytest.mark.parametrize(
    ("engine", "output_tokens", "reason", "remedy"),
    [
        (
            {"max_model_len": 10},
            1,
            "prompt of 10 tokens does not fit max_model_len 10: it needs at least 11",
            {"max_model_len": 11},
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 9},
            1,
            "prompt of 10 tokens does not fit a pass without chunked prefill: "
            "it needs max_num_batched_tokens of at least 10",
            {"max_num_batched_tokens": 10},
        ),
        (
            {"num_gpu_blocks": 3},
            4,
            "10 prompt and 4 output tokens need 4 KV blocks of 4 tokens: num_gpu_blocks is 3 and must be at least 4",
            {"num_gpu_blocks": 4},
        ),
        (
            {"num_gpu_blocks": 2},
            0,
            "10 prompt and 0 output tokens need 3 KV blocks of 4 tokens: num_gpu_blocks is 2 and must be at least 3",
            {"num_gpu_blocks": 3},
        ),
    ],
)
def test_a_refusal_names_the_smallest_setting_that_would_serve(
    engine: dict[str, object], output_tokens: int, reason: str, remedy: dict[str, object]
) -> None:
    send = Send(((1, 0, 10),), output_tokens, time_ms=5.0)
    refused = run(scenario(send, engine=engine)).record.requests
    assert Status(refused.status[0]) is Status.REJECTED
    assert refused.reasons == {0: reason}
    assert refused.arrival_ms[0] == refused.terminal_ms[0] == 5.0
    assert refused.worker[0] == 0
    assert Status(run(scenario(send, engine={**engine, **remedy})).record.requests.status[0]) is Status.COMPLETED


def test_the_last_token_takes_no_block() -> None:
    outcome = run(scenario(Send(((1, 0, 10),), 3), engine={"num_gpu_blocks": 3}))
    assert statuses(outcome) == [Status.COMPLETED]


def test_the_length_of_the_model_ends_a_request_early() -> None:
    outcome = run(scenario(Send(((1, 0, 10),), 30), engine={"max_model_len": 16, "num_gpu_blocks": 4}))
    assert statuses(outcome) == [Status.COMPLETED]
    assert outcome.record.requests.output_tokens[0] == 6
    assert outcome.workload.output_tokens[0] == 30


# --- sessions


def test_a_session_goes_on_after_a_refused_turn() -> None:
    outcome = run(
        scenario(
            Send(((1, 0, 4),), 2),
            Send(((1, 0, 600),), 2, after=0, time_ms=10.0),
            Send(((1, 0, 8),), 2, after=1, time_ms=5.0),
        )
    )
    assert statuses(outcome) == [Status.COMPLETED, Status.REJECTED, Status.COMPLETED]
    assert outcome.record.requests.arrival_ms.tolist() == [0.0, 12.0, 17.0]


def test_turns_that_are_refused_one_after_the_other_are_refused_at_one_instant() -> None:
    outcome = run(
        scenario(
            Send(((1, 0, 600),), 2, time_ms=3.0),
            Send(((1, 0, 600),), 2, after=0, time_ms=0.0),
            Send(((1, 0, 8),), 2, after=1, time_ms=0.0),
        )
    )
    assert statuses(outcome) == [Status.REJECTED, Status.REJECTED, Status.COMPLETED]
    assert outcome.record.requests.arrival_ms.tolist() == [3.0, 3.0, 3.0]


def test_a_request_without_output_ends_with_its_prefill() -> None:
    requests = run(Scenario((Send(((1, 0, 512),), 0),), POLYNOMIAL_ENGINE)).record.requests
    assert requests.terminal_ms[0] == pytest.approx(24.385704, abs=1e-6)
    assert requests.output_tokens[0] == 0
    assert requests.first_token_ms[0] != requests.first_token_ms[0]


# --- the time cap


def test_a_time_cap_leaves_what_had_happened_until_then() -> None:
    """The peer's numbers for five arrivals, one a second, capped at 2,010 ms."""
    sends = tuple(Send(((number, 0, 512),), 5, time_ms=1000.0 * number) for number in range(5))
    outcome = run(Scenario(sends, POLYNOMIAL_ENGINE, workers=2, max_time_s=2.01))
    assert statuses(outcome) == [Status.COMPLETED] * 2 + [Status.UNFINISHED] + [Status.NOT_ARRIVED] * 2
    assert outcome.record.requests.terminal_ms[1] == pytest.approx(1055.246242, abs=1e-6)
    assert outcome.record.interrupted == "time cap"
    assert outcome.record.end_ms == 2000.0
    assert outcome.record.worker_ms == 4000.0


def test_what_happens_exactly_at_the_time_cap_happens() -> None:
    sends = (Send(((1, 0, 4),), 9), Send(((2, 0, 4),), 1, time_ms=2.0), Send(((3, 0, 4),), 1, time_ms=3.0))
    outcome = run(scenario(*sends, max_time_s=0.003))
    assert statuses(outcome) == [Status.UNFINISHED, Status.COMPLETED, Status.UNFINISHED]
    requests = outcome.record.requests
    assert requests.output_tokens.tolist() == [3, 1, 0]
    assert requests.terminal_ms[1] == 3.0
    assert requests.arrival_ms[2] == 3.0
    assert outcome.record.end_ms == 3.0


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("max_time_s", [0.0, 0.0005, 0.001, 0.0075, 0.02])
def test_tokens_until_the_time_cap_are_delivered(max_time_s: float, fast_forward: bool) -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 50), max_time_s=max_time_s), fast_forward=fast_forward)
    assert outcome.record.requests.output_tokens[0] == int(max_time_s * 1000.0)
    assert outcome.record.passes[0].end_ms.tolist() == [1.0 + number for number in range(int(max_time_s * 1000.0))]
    assert statuses(outcome) == [Status.UNFINISHED]


def test_a_time_cap_after_the_end_interrupts_nothing() -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 3), max_time_s=0.003))
    assert outcome.record.interrupted == ""
    assert statuses(outcome) == [Status.COMPLETED]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_the_time_of_a_request_cancelled_in_a_pass_that_the_cap_cut_off_adds_up(fast_forward: bool) -> None:
    """Running, and waiting, when the client gives up at 2.5 ms; the pass then in flight would have ended at 3 ms."""
    sends = (Send(((1, 0, 4),), 9), Send(((2, 0, 4),), 9))
    case = scenario(*sends, engine={"max_num_seqs": 1}, cancel_after_ms=2.5, max_time_s=0.0027)
    requests = run(case, fast_forward=fast_forward).record.requests
    assert requests.terminal_ms.tolist() == [2.5, 2.5]
    assert requests.prefill_ms.tolist() == [1.0, 0.0]
    assert requests.decode_ms.tolist() == [1.5, 0.0]
    assert requests.queued_ms.tolist() == [0.0, 2.5]


# --- progress and interruption


def lonely_requests(count: int) -> Workload:
    workload = Workload()
    for number in range(count):
        workload.add([(number, 0, 4)], 1, time_ms=10.0 * number)
    return workload


def test_progress_is_told_of_requests_that_have_ended() -> None:
    calls: list[tuple[float, int, int]] = []
    simulate(Config(), workload=lonely_requests(400), progress=lambda *now: calls.append(now), timing=FlatTiming())
    assert calls == [
        # an arrival and the end of its pass are two events; progress is told every 256
        (1271.0, 128, 400),
        (2551.0, 256, 400),
        (3831.0, 384, 400),
        (3991.0, 400, 400),
    ]


def test_a_stop_is_a_time_cap_that_is_now() -> None:
    answers = iter([False, True])
    result = simulate(Config(), workload=lonely_requests(400), should_stop=lambda: next(answers), timing=FlatTiming())
    states = list(result.record.requests.status)
    assert result.record.interrupted == "interrupt"
    assert result.record.end_ms == 2551.0
    assert states == [Status.COMPLETED] * 256 + [Status.NOT_ARRIVED] * 144


def test_nothing_to_send_is_no_simulation() -> None:
    result = simulate(Config(), workload=Workload(), timing=JaggedTiming())
    assert result.record.end_ms == 0.0
    assert result.record.interrupted == ""
