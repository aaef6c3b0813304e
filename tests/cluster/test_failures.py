"""Workers that crash, get slow or cut off: nothing is lost silently, whatever breaks when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from strategies import FlatTiming, Scenario, Send, fuzz
from topologies import Run, check, differences, failing_scenarios, run
from windtunnel import Workload
from windtunnel.cli import main
from windtunnel.cluster.router.event_line import EventLine
from windtunnel.config.faults import INFINITE, PlannedFault
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.errors import InputError
from windtunnel.record.columns import FaultRecord, Status
from windtunnel.workload.content import Content

Failing = tuple[Scenario, list[PlannedFault]]


def broken(scenario: Failing, fast_forward: bool = True) -> Run:
    return run(scenario[0], fast_forward=fast_forward, faults=scenario[1])


@given(failing_scenarios())
@fuzz(150)
def test_everything_adds_up(scenario: Failing) -> None:
    check(scenario[0], broken(scenario))


@given(failing_scenarios(split=True))
@fuzz(150)
def test_everything_adds_up_with_pools(scenario: Failing) -> None:
    check(scenario[0], broken(scenario))


@given(failing_scenarios(sglang=True))
@fuzz(100)
def test_everything_adds_up_with_sglang(scenario: Failing) -> None:
    check(scenario[0], broken(scenario))


@given(failing_scenarios(split=True, sglang=True))
@fuzz(100)
def test_everything_adds_up_with_pools_of_sglang(scenario: Failing) -> None:
    check(scenario[0], broken(scenario))


@given(failing_scenarios())
@fuzz(100)
def test_runs_give_the_record_of_single_passes(scenario: Failing) -> None:
    assert differences(broken(scenario), broken(scenario, fast_forward=False)) == []


@given(failing_scenarios(split=True))
@fuzz(100)
def test_runs_give_the_record_of_single_passes_with_pools(scenario: Failing) -> None:
    assert differences(broken(scenario), broken(scenario, fast_forward=False)) == []


@given(failing_scenarios(split=True, sglang=True))
@fuzz(100)
def test_runs_give_the_record_of_single_passes_with_pools_of_sglang(scenario: Failing) -> None:
    assert differences(broken(scenario), broken(scenario, fast_forward=False)) == []


# --- small deployments with known numbers

ENGINE = {"block_size": 4, "num_gpu_blocks": 64}
SENDS = tuple(Send(((number, 0, 4),), 10, time_ms=0.0) for number in range(4))


def crash(at_ms: float, for_ms: float = INFINITE, worker: int = 0, pool: str = "") -> PlannedFault:
    return PlannedFault(at_ms, "crash", pool, worker, for_ms, 1.0)


def play(faults: list[PlannedFault], on_crash: str = "retry", workers: int = 2, **fields: object) -> Run:
    """Four requests of 10 tokens at 1 ms a pass, two on each of two workers."""
    failures = {"faults": "unused", "on_crash": on_crash}
    scenario = Scenario(
        SENDS,
        ENGINE,
        workers=workers,
        timing=FlatTiming(1.0),
        topology={"cluster": {"failures": failures, **fields}},
    )
    return run(scenario, faults=faults)


def test_requests_of_a_crashed_worker_start_anew_on_another() -> None:
    record = play([crash(5.5)]).record
    columns = record.requests
    assert [Status(status) for status in columns.status] == [Status.COMPLETED] * 4
    assert list(columns.worker) == [1, 1, 1, 1]
    assert list(columns.terminal_ms) == [16.0, 10.0, 16.0, 10.0]  # the pass in flight ends at 6
    assert list(columns.first_token_ms) == [7.0, 1.0, 7.0, 1.0]
    assert columns.preempted_ms[0] == 5.5
    (fault,) = record.faults
    assert (fault.requests, fault.lost_tokens, fault.recovery_ms) == ([0, 2], 10, 10.5)
    assert [(event.time_ms, event.worker, event.event) for event in record.worker_events] == [(5.5, 0, "removed")]
    assert record.worker_ms == 16.0 + 5.5


def test_a_worker_comes_back_with_an_empty_cache() -> None:
    outcome = play([crash(5.5, for_ms=4.5)], workers=1)
    columns = outcome.record.requests
    assert list(columns.terminal_ms) == [20.0] * 4  # from 10 ms on
    assert list(columns.queued_ms) == [4.5] * 4
    assert [(e.time_ms, e.event) for e in outcome.record.worker_events] == [(5.5, "crashed"), (10.0, "ready")]
    assert outcome.record.worker_ms == 20.0  # it is paid for meanwhile


def test_ranks_that_come_back_have_their_passes_together_as_before() -> None:
    ahead = Send(((9, 0, 60),), 40, time_ms=30.0)  # when there are no faults any more, and to one rank alone
    failures = {"faults": "unused", "on_crash": "retry"}
    scenario = Scenario(
        (*SENDS, ahead),
        ENGINE,
        workers=1,
        timing=FlatTiming(1.0),
        topology={"cluster": {"failures": failures, "dp_size": 2}},
    )
    outcome = run(scenario, faults=[crash(5.5, for_ms=4.5)])
    check(scenario, outcome)
    assert list(outcome.record.requests.terminal_ms) == [20.0] * 4 + [70.0]


class LastIsUrgent(Scenario):
    def workload(self) -> Workload:
        workload = super().workload()
        workload.priorities = {3: 1}
        return workload


@pytest.mark.parametrize("at_ms", [0.0, 0.5])  # before anyone has arrived; when all have been sent to the worker
def test_who_is_urgent_is_so_after_a_wait_for_a_worker_too(at_ms: float) -> None:
    scenario = LastIsUrgent(
        SENDS,
        {**ENGINE, "max_num_seqs": 1, "scheduling_policy": "priority"},
        timing=FlatTiming(1.0),
        topology={"cluster": {"failures": {"faults": "unused", "on_crash": "retry"}}},
    )
    columns = run(scenario, faults=[crash(at_ms, for_ms=2.0)]).record.requests
    assert list(columns.terminal_ms) == [at_ms + 22.0, at_ms + 32.0, at_ms + 42.0, at_ms + 12.0]


def test_requests_fail_if_that_is_the_policy() -> None:
    columns = play([crash(5.5)], on_crash="fail").record.requests
    assert [Status(status).label for status in columns.status] == ["failed", "completed", "failed", "completed"]
    assert columns.reasons[0] == "worker 0 crashed at 5.5 ms"
    assert columns.output_tokens[0] == 5


def test_who_waits_for_a_worker_that_never_comes_fails() -> None:
    columns = play([crash(5.5)], workers=1).record.requests
    assert {Status(status) for status in columns.status} == {Status.FAILED}
    assert columns.reasons[0] == "no worker is left"


def hits_of_a_repeated_prompt(faults: list[PlannedFault], at_ms: float) -> tuple[int, Run]:
    """Where a prompt that worker 0 has cached by 1 ms goes at `at_ms`; worker 1, all else equal, is preferred."""
    sends = (
        Send(((1, 0, 64),), 1, time_ms=0.0),
        Send(((2, 0, 64),), 1, time_ms=0.0),
        Send(((3, 0, 4),), 200, time_ms=2.0),  # keeps worker 0 busy
        Send(((1, 0, 64), (4, 0, 64)), 1, time_ms=at_ms),
    )
    cluster: dict[str, object] = {"failures": {"faults": "unused"}} if faults else {}
    scenario = Scenario(
        sends,
        {"block_size": 4, "num_gpu_blocks": 256},
        workers=2,
        timing=FlatTiming(1.0),
        router="kv",
        router_options={"active_request_weight": 1.0},
        topology={"cluster": cluster},
    )
    outcome = run(scenario, faults=faults)
    assert list(outcome.record.requests.worker)[:2] == [0, 1]
    return outcome.record.requests.worker[3], outcome


def test_a_router_does_not_know_of_blocks_whose_events_are_lost() -> None:
    lost = PlannedFault(0.5, "events-lost", "", 0, 1.0, 1.0)
    assert hits_of_a_repeated_prompt([], 50.0)[0] == 0
    worker, outcome = hits_of_a_repeated_prompt([lost], 50.0)
    assert worker == 1
    assert outcome.record.faults[0].event_blocks == 16  # the prompt of request 0, whose pass ended at 1 ms
    later = PlannedFault(1.5, "events-lost", "", 0, INFINITE, 1.0)
    assert hits_of_a_repeated_prompt([later], 50.0)[0] == 0


def test_late_events_are_known_when_they_have_arrived() -> None:
    late = PlannedFault(0.5, "events-late", "", 0, 1.0, 1.0, 40.0)
    assert [hits_of_a_repeated_prompt([late], at_ms)[0] for at_ms in (40.5, 41.0)] == [1, 0]


def test_events_queue_up_behind_late_ones() -> None:
    line = EventLine()
    record = FaultRecord(0.0, "events-late", "", 0, 5.0)
    events = [CacheEvent(True, Content.of([(1, 0, 8)]), 0, 2)]
    line.delays.append((10.0, record))
    assert line.arrival_ms(events, 4.0) == 14.0
    line.delays.clear()
    assert [line.arrival_ms(events, at_ms) for at_ms in (6.0, 14.5)] == [14.0, 14.5]
    line.losses.append(record)
    assert line.arrival_ms(events, 15.0) is None
    assert record.event_blocks == 4


def test_faults_of_events_that_nobody_reads_are_an_error() -> None:
    with pytest.raises(InputError, match="events-lost has no effect: the router reads no KV events"):
        play([PlannedFault(0.5, "events-lost", "", 0, 1.0, 1.0)])


def test_a_slow_worker_is_slow_from_its_next_pass_on_and_recovers() -> None:
    fault = PlannedFault(2.5, "slow", "", 0, 3.0, 2.0)
    columns = play([fault]).record.requests
    # passes end at 1, 2, 3, then at 5 and 7 (begun at 5, before 5.5), then one by one
    assert list(columns.terminal_ms) == [12.0, 10.0, 12.0, 10.0]


SPLIT = {"prefill_workers": 1, "decode_workers": 2}
LINK = {"bandwidth_gb_per_s": 1.0, "kv_bytes_per_token": 1_000_000}


def split(faults: list[PlannedFault], sends: int = 1, **transfer: object) -> Run:
    scenario = Scenario(
        SENDS[:sends],
        ENGINE,
        timing=FlatTiming(1.0),
        topology={"cluster": {**SPLIT, "transfer": transfer, "failures": {"faults": "unused"}}},
    )
    return run(scenario, faults=faults)


def test_a_prompt_that_is_held_goes_to_another_destination() -> None:
    record = split([crash(3.0, pool="decode")], **LINK).record  # the transfer runs from 1 to 5 ms
    assert record.handoffs is not None
    assert list(record.handoffs.activated_ms[:1]) == [7.0]
    assert record.requests.prefill_ms[0] == 1.0
    assert record.worker_numbers[record.requests.worker[0]] == 1
    assert record.faults[0].requests == []


def test_a_prompt_is_lost_with_its_source() -> None:
    record = split([crash(3.0, for_ms=2.0, pool="prefill")], **LINK).record
    assert record.handoffs is not None
    assert list(record.handoffs.source_held_ms[:1]) == [6.0]
    assert list(record.handoffs.activated_ms[:1]) == [10.0]
    assert record.faults[0].requests == [0]


def test_transfers_start_again_when_the_link_is_up() -> None:
    record = split([PlannedFault(3.0, "link-down", "decode", 0, 10.0, 1.0)], **LINK).record
    assert record.handoffs is not None
    assert list(record.handoffs.activated_ms[:1]) == [17.0]
    free = split([PlannedFault(0.5, "link-down", "prefill", 0, 10.0, 1.0)]).record
    assert free.handoffs is not None
    assert list(free.handoffs.activated_ms[:1]) == [10.5]


# --- the file, the report


def test_a_file_that_makes_no_sense_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "faults.yaml"
    for text, message in (
        ("{}", "expected a list of entries"),
        ("- 3", "entry 1: found 3"),
        ("- {what: crash, worker: 0}", "entry 1: at_s: found None"),
        ("- {at_s: 1, what: burns, worker: 0}", "what: found 'burns', expected crash, slow, link-down"),
        ("- {at_s: 1, what: crash, worker: x}", "worker: found 'x'"),
        ("- {at_s: 1, what: crash, worker: 0, factor: 2}", "factor: expected for what: slow"),
        ("- {at_s: 1, what: slow, worker: 0}", "factor: expected for what: slow"),
        ("- {at_s: 1, what: slow, worker: 0, factor: 0}", "factor: found 0"),
        ("- {at_s: 1, what: crash, worker: 0, pool: decode}", "unknown field 'pool'"),
        ("- {at_s: 1, what: link-down, worker: 0}", "link-down has no effect"),
        ("- {at_s: 1, what: crash, worker: 9}", "found worker 9, expected a number below 2"),
        ("- {at_s: 1, what: crash, worker: 0, for_s: -1}", "for_s: found -1"),
    ):
        file.write_text(text)
        assert main(["run", "--limit", "5", "--set", f"cluster.failures.faults={file}"]) == 2
        assert message in capsys.readouterr().err


def test_the_report_lists_what_went_wrong(tmp_path: Path) -> None:
    file = tmp_path / "faults.yaml"
    file.write_text("- {at_s: 2, what: crash, worker: 1, for_s: 3}\n- {at_s: 4, what: slow, worker: 0, factor: 1.3}\n")
    report = tmp_path / "report.json"
    flags = ["--limit", "20", "--set", f"cluster.failures.faults={file}", "--report", str(report)]
    assert main(["run", *flags, "--quiet"]) == 0
    written = json.loads(report.read_text())
    crashed, slowed = written["faults"]
    assert (crashed["what"], crashed["worker"], crashed["until_ms"]) == ("crash", 1, 5000.0)
    assert crashed["requests"] > 0
    assert crashed["recovery_ms"] > 0
    assert (slowed["what"], slowed["until_ms"], slowed["recovery_ms"]) == ("slow", None, None)
    assert [event["event"] for event in written["worker_events"]] == ["crashed", "ready"]
