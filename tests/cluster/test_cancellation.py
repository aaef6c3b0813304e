"""What becomes of a request whose client gives up, and when nothing can happen any more."""

from __future__ import annotations

import pytest

from strategies import FlatTiming, Outcome, Scenario, Send, run
from windtunnel import Config, Result, StalledError, Workload, simulate
from windtunnel.engine import vllm
from windtunnel.record.columns import Status

ENGINE: dict[str, object] = {"block_size": 4, "num_gpu_blocks": 100}


def scenario(*sends: Send, engine: dict[str, object] | None = None, **rest: object) -> Scenario:
    return Scenario(sends, {**ENGINE, **(engine or {})}, timing=FlatTiming(1.0), **rest)  # type: ignore[arg-type]


def statuses(outcome: Outcome) -> list[Status]:
    return [Status(status) for status in outcome.record.requests.status]


@pytest.mark.parametrize(
    ("cancel_after_ms", "tokens", "passes"), [(0.5, 0, 1), (1.0, 1, 1), (1.5, 1, 2), (2.0, 2, 2), (8.25, 8, 9)]
)
@pytest.mark.parametrize("fast_forward", [True, False])
def test_the_token_of_the_pass_in_flight_is_computed_and_not_delivered(
    cancel_after_ms: float, tokens: int, passes: int, fast_forward: bool
) -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 20), cancel_after_ms=cancel_after_ms), fast_forward=fast_forward)
    requests = outcome.record.requests
    assert statuses(outcome) == [Status.CANCELLED]
    assert requests.reasons == {0: f"client gave up after {cancel_after_ms:g} ms"}
    assert requests.terminal_ms[0] == cancel_after_ms
    assert requests.output_tokens[0] == tokens
    assert len(outcome.record.passes[0].end_ms) == passes
    assert outcome.schedulers[0].pool.free_blocks == 100
    assert outcome.record.end_ms == passes  # its blocks are held until the pass has ended


def test_a_request_that_would_complete_in_the_pass_in_flight_is_cancelled_all_the_same() -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 3), cancel_after_ms=2.5))
    assert statuses(outcome) == [Status.CANCELLED]
    assert outcome.record.requests.output_tokens[0] == 2


def test_a_request_that_waits_is_never_admitted() -> None:
    outcome = run(
        scenario(Send(((1, 0, 4),), 9), Send(((2, 0, 4),), 9), engine={"max_num_seqs": 1}, cancel_after_ms=4.5)
    )
    requests = outcome.record.requests
    assert statuses(outcome) == [Status.CANCELLED, Status.CANCELLED]
    assert requests.terminal_ms[1] == requests.queued_ms[1] == 4.5
    assert requests.first_admit_ms[1] != requests.first_admit_ms[1]
    assert len(outcome.record.passes[0].end_ms) == 5


def test_the_place_of_a_cancelled_request_is_taken_in_the_next_pass() -> None:
    sends = (Send(((1, 0, 4),), 9), Send(((2, 0, 4),), 1, time_ms=2.0))
    requests = run(scenario(*sends, engine={"max_num_seqs": 1}, cancel_after_ms=4.5)).record.requests
    assert requests.first_admit_ms.tolist() == [0.0, 5.0]
    assert requests.terminal_ms.tolist() == [4.5, 6.0]


def test_blocks_that_a_cancelled_request_filled_can_be_hit() -> None:
    sends = (Send(((1, 0, 40),), 9), Send(((1, 0, 41),), 1, time_ms=8.0))
    assert run(scenario(*sends, cancel_after_ms=4.5)).record.requests.hit_tokens.tolist() == [0, 40]


def test_a_session_ends_with_the_request_that_its_client_gave_up() -> None:
    sends = (Send(((1, 0, 4),), 9), Send(((1, 0, 8),), 9, after=0), Send(((2, 0, 4),), 2, time_ms=20.0))
    outcome = run(scenario(*sends, cancel_after_ms=4.5))
    assert statuses(outcome) == [Status.CANCELLED, Status.NOT_ARRIVED, Status.COMPLETED]


def test_in_a_closed_loop_the_next_session_starts_when_the_client_gives_up() -> None:
    outcome = run(scenario(Send(((1, 0, 4),), 9), Send(((2, 0, 4),), 2), cancel_after_ms=4.5, concurrency=1))
    requests = outcome.record.requests
    assert statuses(outcome) == [Status.CANCELLED, Status.COMPLETED]
    assert requests.arrival_ms.tolist() == [0.0, 4.5]
    assert requests.first_admit_ms.tolist() == [0.0, 5.0]  # the pass in flight goes on


def test_each_turn_is_waited_for_from_its_own_arrival() -> None:
    sends = (Send(((1, 0, 4),), 4), Send(((1, 0, 8),), 4, after=0, time_ms=100.0))
    outcome = run(scenario(*sends, cancel_after_ms=4.5))
    assert statuses(outcome) == [Status.COMPLETED, Status.COMPLETED]


# --- what is refused could never be served: without that, a request that outgrows the pool can never come back


@pytest.fixture
def refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "refusal", lambda *_: "")


STALL: dict[str, object] = {"block_size": 4, "num_gpu_blocks": 4, "async_scheduling": False}
ONE_THAT_GROWS = (Send(((1, 0, 4),), 4), Send(((2, 0, 4),), 14))


@pytest.mark.usefixtures("refuses_nobody")
def test_a_simulation_that_cannot_go_on_says_who_waits_for_what() -> None:
    workload = Workload()
    for origin, output_tokens in enumerate((4, 14)):
        workload.add([(origin, 0, 4)], output_tokens)
    workload.request_ids = ["first", "second"]
    with pytest.raises(StalledError) as caught:
        simulate(Config.model_validate({"engine": STALL}), workload=workload, timing=FlatTiming())
    message = str(caught.value)
    assert message.startswith("stalled at 14.000 ms: nothing can run, and requests second remain. worker 0: ")
    assert "17 tokens to compute" in message
    assert "budget of 8192" in message
    assert "4 of 4 KV blocks are free" in message
    partial = caught.value.partial
    assert isinstance(partial, Result)
    assert list(partial.record.requests.status) == [Status.COMPLETED, Status.UNFINISHED]
    assert partial.record.requests.output_tokens.tolist() == [4, 13]
    assert partial.record.interrupted == "error"


@pytest.mark.usefixtures("refuses_nobody")
@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_stall_comes_to_the_same_in_runs_and_in_single_passes(fast_forward: bool) -> None:
    outcome = run(Scenario(ONE_THAT_GROWS, STALL, timing=FlatTiming()), fast_forward=fast_forward)
    assert outcome.error.startswith("stalled at 14.000 ms")
    assert outcome.record.requests.preemptions.tolist() == [0, 1]


@pytest.mark.usefixtures("refuses_nobody")
def test_a_stall_names_a_few_requests_and_counts_the_others() -> None:
    sends = ONE_THAT_GROWS + tuple(Send(((9 + number, 0, 13),), 1, time_ms=6.0) for number in range(6))
    outcome = run(Scenario(sends, STALL, timing=FlatTiming()))
    assert "requests 1, 2, 3, 4, 5 and 2 more remain" in outcome.error


@pytest.mark.usefixtures("refuses_nobody")
def test_clients_that_give_up_end_a_stall() -> None:
    outcome = run(Scenario(ONE_THAT_GROWS, STALL, timing=FlatTiming(), cancel_after_ms=30.0))
    requests = outcome.record.requests
    assert outcome.error == ""
    assert statuses(outcome) == [Status.COMPLETED, Status.CANCELLED]
    assert requests.terminal_ms[1] == outcome.record.end_ms == 30.0
    assert requests.preempted_ms[1] == 30.0 - requests.prefill_ms[1] - requests.decode_ms[1]


@pytest.mark.usefixtures("refuses_nobody")
def test_an_idle_engine_goes_on_at_once_when_the_client_of_its_stuck_head_gives_up() -> None:
    sends = (*ONE_THAT_GROWS, Send(((3, 0, 4),), 1, time_ms=25.0))
    requests = run(Scenario(sends, STALL, timing=FlatTiming(), cancel_after_ms=30.0)).record.requests
    assert requests.first_admit_ms[2] == 30.0
    assert requests.terminal_ms.tolist() == [4.0, 30.0, 31.0]
