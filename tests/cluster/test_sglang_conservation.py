"""Nothing is lost and nothing is made up at SGLang engines: requests, tokens and time all add up."""

from __future__ import annotations

import pytest
from hypothesis import given

from sglang_strategies import run_sglang, sglang_deployments
from strategies import FlatTiming, Scenario, Send, fuzz
from turn_ledger import TurnLedger, emitted_ms, time_by_definition
from windtunnel.engine.sglang_submission import limit_output
from windtunnel.record.columns import Status
from windtunnel.report.token_times import TokenTimes

TIME_PARTS = ("queued_ms", "prefill_ms", "stalled_ms", "preempted_ms", "decode_ms")
ENDED = (Status.COMPLETED, Status.CANCELLED, Status.FAILED)


def rounding_ms(*times_ms: float) -> float:
    """What the contract allows a sum of times to be off."""
    return 1e-9 * max(1.0, *map(abs, times_ms))


@given(sglang_deployments())
@fuzz(100)
def test_every_request_reaches_one_state_that_its_columns_agree_with(scenario: Scenario) -> None:
    columns = run_sglang(scenario).record.requests
    engine = scenario.config().engine
    for number, send in enumerate(scenario.sends):
        status = Status(columns.status[number])
        arrived = columns.arrival_ms[number] == columns.arrival_ms[number]
        terminal = columns.terminal_ms[number] == columns.terminal_ms[number]
        assert arrived == (status is not Status.NOT_ARRIVED)
        assert terminal == (status in (*ENDED, Status.REJECTED))
        assert (number in columns.reasons) == (status in (Status.REJECTED, Status.CANCELLED, Status.FAILED))
        if status is Status.COMPLETED:
            assert columns.output_tokens[number] == limit_output(engine, send.prompt_tokens, send.output_tokens)
        steps = [columns.arrival_ms[number], columns.first_admit_ms[number], columns.first_token_ms[number]]
        steps += [columns.last_token_ms[number], columns.terminal_ms[number]]
        happened = [time_ms for time_ms in steps if time_ms == time_ms]
        assert happened == sorted(happened)


@given(sglang_deployments())
@fuzz(100)
def test_tokens_are_where_the_passes_emitted_them(scenario: Scenario) -> None:
    outcome = run_sglang(scenario, fast_forward=False, observer=TurnLedger)
    found = TokenTimes(outcome.record)
    for number in range(len(scenario.sends)):
        expected = emitted_ms(outcome, number)
        assert found.of_request(number).tolist() == expected
        assert outcome.record.requests.output_tokens[number] == len(expected)


@given(sglang_deployments())
@fuzz(100)
def test_time_goes_where_the_definitions_say_and_adds_up(scenario: Scenario) -> None:
    outcome = run_sglang(scenario, fast_forward=False, observer=TurnLedger)
    columns = outcome.record.requests
    for number in range(len(scenario.sends)):
        if columns.status[number] not in ENDED or outcome.record.interrupted:
            continue  # a client may have given up in a pass that did not end
        spent = time_by_definition(outcome, number)
        allowed_ms = rounding_ms(columns.terminal_ms[number])
        parts = {name: getattr(columns, name)[number] for name in TIME_PARTS}
        for name, part_ms in parts.items():
            assert part_ms == pytest.approx(getattr(spent, name), abs=allowed_ms), name
            assert part_ms >= 0.0
        total_ms = columns.terminal_ms[number] - columns.arrival_ms[number]
        assert sum(parts.values()) == pytest.approx(total_ms, abs=allowed_ms)


@given(sglang_deployments())
@fuzz(60)
def test_hits_leave_the_last_token_to_compute(scenario: Scenario) -> None:
    columns = run_sglang(scenario).record.requests
    for number, send in enumerate(scenario.sends):
        assert columns.hit_tokens[number] <= max(send.prompt_tokens - 1, 0)
        assert columns.hit_tokens[number] <= columns.reused_tokens[number]
        if not scenario.config().engine.enable_prefix_caching:
            assert columns.reused_tokens[number] == 0


@given(sglang_deployments())
@fuzz(60)
def test_the_chunks_of_a_prompt_and_its_hit_are_all_of_it(scenario: Scenario) -> None:
    """At every prefill that ends, also that of a retracted request: hit and chunks add up to what there was."""
    outcome = run_sglang(scenario, fast_forward=False, observer=TurnLedger)
    for ledger in outcome.observers:
        reached: dict[int, int] = {}
        emitted: dict[int, int] = {}
        for number in sorted(ledger.pages):
            page = ledger.pages[number]
            for request, (start, end) in page.chunks.items():
                assert start == reached.get(request, start) < end
                reached[request] = end
            for request in page.emitting:
                if request in page.chunks:
                    assert reached.pop(request) == ledger.prompts[request] + emitted.get(request, 0)
                emitted[request] = emitted.get(request, 0) + 1
            for request in page.retracted:
                reached.pop(request, None)


def test_a_retracted_request_generates_what_it_would_have() -> None:
    """Two requests outgrow their pool; all tokens come, none twice, and the time without KV is accounted for."""
    sends = tuple(Send(((number, 0, 10),), 40) for number in range(2))
    engine = {"kind": "sglang", "num_gpu_blocks": 70, "schedule_conservativeness": 0.1, "ignore_eos": False}
    for overlap in (True, False):
        scenario = Scenario(sends, {**engine, "overlap_schedule": overlap}, timing=FlatTiming(1.0))
        columns = run_sglang(scenario).record.requests
        assert list(columns.output_tokens) == [40, 40]
        assert list(columns.preemptions) == [0, 1]
        assert [preempted_ms > 0 for preempted_ms in columns.preempted_ms] == [p > 0 for p in columns.preemptions]


@pytest.mark.parametrize("overlap", [True, False])
def test_time_to_compute_lost_tokens_again_counts_as_preempted_to_the_last_chunk(overlap: bool) -> None:
    """With overlap the next chunk is launched before the result of one is known; it belongs to what was lost too."""
    sends = tuple(Send(((number, 0, 10),), 40) for number in range(2))
    engine = {
        "kind": "sglang",
        "num_gpu_blocks": 70,
        "chunked_prefill_size": 8,
        "enable_prefix_caching": False,
        "schedule_conservativeness": 0.0,
        "ignore_eos": False,
        "overlap_schedule": overlap,
    }
    scenario = Scenario(sends, engine, timing=FlatTiming(1.0))
    outcome = run_sglang(scenario, fast_forward=False, observer=TurnLedger)
    columns = outcome.record.requests
    victim = list(columns.preemptions).index(1)
    (ledger,) = outcome.observers
    chunks = [page.chunks[victim] for _, page in sorted(ledger.pages.items()) if victim in page.chunks]
    assert len([start for start, _ in chunks if start == 0]) == 2
    assert len(chunks) >= 6, "computed again in several chunks"
    spent = time_by_definition(outcome, victim)
    assert columns.preempted_ms[victim] == spent.preempted_ms
    assert columns.prefill_ms[victim] == spent.prefill_ms == 2.0


@pytest.mark.parametrize("overlap", [True, False])
def test_decodes_stall_while_others_compute_their_prompts(overlap: bool) -> None:
    """A prompt of 64 in chunks of 8 arrives while another request decodes; SGLang's decodes wait for all of it."""
    sends = (Send(((0, 0, 4),), 30), Send(((1, 0, 64),), 2, time_ms=10.0))
    engine = {"kind": "sglang", "num_gpu_blocks": 200, "chunked_prefill_size": 8, "overlap_schedule": overlap}
    columns = run_sglang(Scenario(sends, engine, timing=FlatTiming(1.0))).record.requests
    assert (columns.stalled_ms[0], columns.decode_ms[0], columns.prefill_ms[0]) == (8.0, 29.0, 1.0)
    assert (columns.break_before[0], columns.break_after[0]) == ((10, 19) if overlap else (9, 18))
    # with overlap the pass that starts at 10 was launched before: the prompt waits for it
    assert columns.queued_ms[1] == (1.0 if overlap else 0.0)
    assert columns.prefill_ms[1] == 8.0


@pytest.mark.parametrize("overlap", [True, False])
def test_the_first_token_comes_when_the_prefill_pass_ends(overlap: bool) -> None:
    engine = {"kind": "sglang", "num_gpu_blocks": 200, "overlap_schedule": overlap}
    columns = run_sglang(
        Scenario((Send(((0, 0, 4),), 3, time_ms=5.0),), engine, timing=FlatTiming(2.0))
    ).record.requests
    assert (columns.first_admit_ms[0], columns.first_token_ms[0], columns.last_token_ms[0]) == (5.0, 7.0, 11.0)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_that_the_engine_gives_up_has_failed(overlap: bool) -> None:
    """Mixed chunks in a pool of 40: a prompt of 31 finds no room for its last tokens. Whoever waits for it goes on."""
    sends = (Send(((0, 0, 4),), 30), Send(((1, 0, 31),), 1, time_ms=0.5), Send(((2, 0, 3),), 2, after=1))
    engine = {
        "kind": "sglang",
        "num_gpu_blocks": 40,
        "chunked_prefill_size": 4,
        "enable_mixed_chunk": True,
        "ignore_eos": False,
        "schedule_conservativeness": 0.0,
        "overlap_schedule": overlap,
    }
    outcomes = [
        run_sglang(Scenario(sends, engine, timing=FlatTiming(1.0)), fast_forward=fast_forward)
        for fast_forward in (True, False)
    ]
    for outcome in outcomes:
        columns = outcome.record.requests
        assert list(columns.status) == [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
        assert columns.reasons[1].startswith("out of memory: tokens ")
        assert columns.output_tokens[1] == 0
        total_ms = columns.terminal_ms[1] - columns.arrival_ms[1]
        assert sum(getattr(columns, name)[1] for name in TIME_PARTS) == pytest.approx(total_ms, abs=1e-9)
        assert columns.arrival_ms[2] >= columns.terminal_ms[1]
