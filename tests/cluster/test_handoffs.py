"""Requests that prefill on one worker and decode on another: nothing is lost, whatever waits for what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from strategies import Scenario, Send, fuzz
from topologies import check, differences, run, split_scenarios
from windtunnel import Workload, simulate
from windtunnel.cli import main
from windtunnel.cluster.handoff import Handoffs
from windtunnel.config import Config
from windtunnel.config.vllm import VllmConfig
from windtunnel.record.columns import Status
from windtunnel.report.metrics import summarize


@given(split_scenarios())
@fuzz(250)
def test_everything_adds_up(scenario: Scenario) -> None:
    check(scenario, run(scenario))


@given(split_scenarios())
@fuzz(250)
def test_runs_give_the_record_of_single_passes(scenario: Scenario) -> None:
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


@given(split_scenarios(sglang=True))
@fuzz(200)
def test_everything_adds_up_with_sglang(scenario: Scenario) -> None:
    check(scenario, run(scenario))


@given(split_scenarios(sglang=True))
@fuzz(200)
def test_runs_give_the_record_of_single_passes_with_sglang(scenario: Scenario) -> None:
    assert differences(run(scenario), run(scenario, fast_forward=False)) == []


# --- small deployments with known numbers

SMALL = {"block_size": 4, "num_gpu_blocks": 16, "max_num_batched_tokens": 64, "max_num_seqs": 4}
SLOW_LINK = {"bandwidth_gb_per_s": 1.0, "kv_bytes_per_token": 1_000_000}  # 1 ms a token


def small(sends: tuple[Send, ...], transfer: dict[str, object], engine: dict[str, object] | None = None) -> Scenario:
    cluster = {"prefill_workers": 1, "decode_workers": 1, "transfer": transfer}
    return Scenario(sends, {**SMALL, **(engine or {})}, topology={"cluster": cluster})


TABLE = (
    Send(((1, 0, 8),), 3, time_ms=0.0),
    Send(((1, 0, 8),), 3, time_ms=200.0),
    Send(((1, 0, 8), (2, 0, 2)), 1, time_ms=400.0),
)


@pytest.mark.parametrize(
    ("transfer", "activated_ms", "first_ms", "last_ms"),
    [
        (
            {**SLOW_LINK},
            (24.622914, 224.562160, 426.531789),
            (36.711977, 236.651223, 440.082434),
            (63.088760, 263.028006, 440.082434),
        ),
        (
            {**SLOW_LINK, "bytes": "destination_missing"},
            (24.622914, 216.562160, 420.531789),
            (36.711977, 228.651223, 434.082434),
            (63.088760, 255.028006, 434.082434),
        ),
        (
            {},
            (16.622914, 216.562160, 416.531789),
            (28.711977, 228.651223, 430.082434),
            (55.088760, 255.028006, 430.082434),
        ),
    ],
)
def test_three_requests_that_share_a_prompt_take_the_peers_times(
    transfer: dict[str, object],
    activated_ms: tuple[float, ...],
    first_ms: tuple[float, ...],
    last_ms: tuple[float, ...],
) -> None:
    record = run(small(TABLE, transfer)).record
    handoffs = record.handoffs
    assert handoffs is not None
    assert list(handoffs.source_held_ms) == pytest.approx([16.622914, 216.562160, 416.531789], abs=1e-5)
    assert list(handoffs.reserved_ms) == list(handoffs.source_held_ms)
    assert list(record.requests.reused_tokens) == [0, 4, 8]
    assert list(handoffs.missing_tokens) == [8, 0, 4]
    assert list(handoffs.activated_ms) == list(handoffs.decode_admit_ms) == list(handoffs.released_ms)
    assert list(handoffs.activated_ms) == pytest.approx(activated_ms, abs=1e-5)
    assert list(record.requests.first_token_ms) == pytest.approx(first_ms, abs=1e-5)
    assert list(record.requests.last_token_ms) == pytest.approx(last_ms, abs=1e-5)


def test_two_transfers_share_a_link_unless_told_otherwise() -> None:
    sends = (Send(((1, 0, 8),), 1, time_ms=0.0), Send(((2, 0, 8),), 1, time_ms=0.0))
    for shared, expected_ms in ((True, 16.0), (False, 8.0)):
        record = run(small(sends, {**SLOW_LINK, "shared": shared})).record
        assert record.handoffs is not None
        assert list(record.requests.transfer_ms) == pytest.approx([expected_ms, expected_ms])


def test_a_fabric_is_shared_by_workers_whose_interfaces_are_not() -> None:
    sends = (Send(((1, 0, 8),), 1, time_ms=0.0), Send(((2, 0, 8),), 1, time_ms=0.0))
    cluster = {"prefill_workers": 2, "decode_workers": 2, "transfer": {**SLOW_LINK, "fabric_bandwidth_gb_per_s": 1.0}}
    record = run(Scenario(sends, SMALL, topology={"cluster": cluster})).record
    assert list(record.requests.transfer_ms) == pytest.approx([16.0, 16.0])


def test_a_full_destination_holds_the_source_back() -> None:
    # 16 blocks: the first prompt takes 8 of them, so that the second, of 9, has to wait for its end
    sends = (Send(((1, 0, 32),), 30, time_ms=0.0), Send(((2, 0, 36),), 1, time_ms=0.0))
    record = run(small(sends, {}, {"num_gpu_blocks": 16})).record
    handoffs = record.handoffs
    assert handoffs is not None
    assert handoffs.reserved_ms[1] == record.requests.terminal_ms[0] > handoffs.source_held_ms[1]
    assert record.requests.transfer_ms[1] == handoffs.reserved_ms[1] - handoffs.source_held_ms[1]


def test_who_asks_for_no_output_is_not_handed_over() -> None:
    outcome = run(small((Send(((1, 0, 8),), 0, time_ms=0.0),), SLOW_LINK))
    record = outcome.record
    assert record.requests.status[0] == Status.COMPLETED
    assert record.handoffs is not None
    assert record.handoffs.prefill_worker[0] == -1
    check(small((Send(((1, 0, 8),), 0, time_ms=0.0),), SLOW_LINK), outcome)


def test_a_prompt_is_refused_by_the_pool_that_could_never_hold_it() -> None:
    scenario = small((Send(((1, 0, 32),), 1, time_ms=0.0),), {})
    topology = {**scenario.topology, "decode_engine": {"num_gpu_blocks": 7}}
    record = run(replace(scenario, topology=topology)).record
    assert record.requests.status[0] == Status.REJECTED
    assert record.requests.reasons[0].startswith("workers that decode: ")


def test_both_pools_count_in_gpu_hours() -> None:
    outcome = run(small((Send(((1, 0, 8),), 3, time_ms=0.0),), {}))
    summary = summarize(outcome.simulation.workload, outcome.record, Config().slo)
    assert summary["prefill_worker_seconds"] == summary["decode_worker_seconds"] == summary["duration_ms"] / 1000.0
    assert summary["gpu_hours"] == pytest.approx(2 * summary["duration_ms"] / 3.6e6)
    assert summary["prefill_gpus_per_worker"] == summary["decode_gpus_per_worker"] == 1


# --- the configuration


@pytest.mark.parametrize("bandwidth", [64.0, None])
def test_sglang_reserves_before_it_computes(bandwidth: float | None) -> None:
    """Scenario 49, less the decode step that the peer adds to the pass of a prompt (docs/fidelity.md)."""
    transfer = {} if bandwidth is None else {"kv_bytes_per_token": 131_072, "bandwidth_gb_per_s": bandwidth}
    workload = Workload("scenario 49")
    workload.add([(1, 0, 512)], 3, time_ms=0.0)
    workload.add([(1, 0, 512), (2, 0, 512)], 3, time_ms=200.0)
    data = {
        "engine": {"kind": "sglang", "page_size": 64, "num_gpu_blocks": 1000, "overlap_schedule": False},
        "cluster": {"prefill_workers": 1, "decode_workers": 1, "transfer": transfer},
        "timing": {"kind": "polynomial"},
    }
    record = simulate(Config.model_validate(data), workload=workload).record
    columns, handoffs = record.requests, record.handoffs
    assert handoffs is not None
    assert list(handoffs.reserved_ms) == [0.0, 200.0]
    assert list(columns.reused_tokens) == [0, 512]
    peers = {  # held, activated, first and last token
        64.0: ((30.556137, 31.604713, 37.775146, 50.118524), (230.983275, 233.080427, 239.677998, 252.875633)),
        None: ((30.556137, 30.556137, 36.72657, 49.069948), None),
    }
    for number, (expected, step_ms) in enumerate(zip(peers[bandwidth], (6.170433, 6.597571), strict=True)):
        if expected is not None:
            steps = (handoffs.source_held_ms, handoffs.activated_ms, columns.first_token_ms, columns.last_token_ms)
            assert [step[number] + step_ms for step in steps] == pytest.approx(expected, abs=1e-3)
            assert handoffs.released_ms[number] == handoffs.activated_ms[number] == handoffs.decode_admit_ms[number]


class Unscanned(dict[int, object]):
    """Hand-offs by number, none of which is looked at unless it is asked for by its number."""

    scans = 0

    def __iter__(self) -> Iterator[int]:
        Unscanned.scans += 1
        return super().__iter__()

    def values(self) -> Any:
        Unscanned.scans += 1
        return super().values()

    def items(self) -> Any:
        Unscanned.scans += 1
        return super().items()


def handoff_lines(requests: int) -> tuple[int, int]:
    """Lines of the hand-offs' module that are executed while so many requests wait, and hand-offs that are made."""
    executed = 0

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal executed
        if not frame.f_code.co_filename.endswith(("cluster/handoff.py", "cluster/handoff_state.py")):
            return None
        executed += event == "line"
        return watch

    sends = tuple(Send(((number, 0, 8),), 30) for number in range(requests))
    scenario = small(sends, {}, {"num_gpu_blocks": 4096, "max_num_batched_tokens": 8})
    sys.settrace(watch)
    try:
        outcome = run(scenario)
    finally:
        sys.settrace(None)
    assert outcome.complete
    return executed, requests


def test_work_does_not_grow_with_hand_offs_that_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 5: a pass does not look at all requests for hand-offs; four times as many cost four times as much."""
    few, many = (lines / made for lines, made in (handoff_lines(20), handoff_lines(80)))
    assert many < 1.1 * few
    begin = Handoffs.begin

    def watched(handoffs: Handoffs, *arguments: Any) -> None:
        if not isinstance(handoffs.live, Unscanned):
            handoffs.live = Unscanned()  # type: ignore[assignment]
        begin(handoffs, *arguments)

    monkeypatch.setattr(Handoffs, "begin", watched)
    handoff_lines(20)
    assert Unscanned.scans == 0


def refused(data: dict[str, object]) -> str:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(data)
    return str(caught.value.errors()[0]["msg"])


def test_what_does_not_go_together_is_refused() -> None:
    split = {"prefill_workers": 1, "decode_workers": 1}
    assert "needs decode_workers" in refused({"cluster": {"prefill_workers": 1}})
    assert "give either workers" in refused({"cluster": {**split, "workers": 2}})
    assert "not modelled" in refused({"cluster": {**split, "dp_size": 2}})
    assert "no effect without prefill_workers" in refused({"cluster": {"transfer": {"latency_ms": 1.0}}})
    assert "no effect without" in refused({"cluster": {**split, "transfer": {"kv_bytes_per_token": 1}}})
    assert "no effect without" in refused({"prefill_engine": {"block_size": 64}})
    assert "must be that of" in refused({"cluster": split, "decode_engine": {"block_size": 32}})
    assert "must be that of" in refused({"cluster": split, "decode_engine": {"kind": "sglang"}})


def test_a_pool_has_the_fields_of_the_engine_except_its_own() -> None:
    data = {
        "cluster": {"prefill_workers": 1, "decode_workers": 1},
        "engine": {"block_size": 16, "max_num_seqs": 8},
        "decode_engine": {"max_num_seqs": 99},
    }
    config = Config.model_validate(data)
    assert config.prefill_engine is None
    assert isinstance(config.decode_engine, VllmConfig)
    assert (config.decode_engine.block_size, config.decode_engine.max_num_seqs) == (16, 99)
    assert config.engine.tokens_per_block == 16


def test_the_sample_gets_no_workers_that_exclude_pools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--prefill-workers", "1", "--decode-workers", "1", "--limit", "20"]) == 0
    assert "1 prefill + 1 decode workers" in capsys.readouterr().out
    flags = ["--prefill-workers", "1", "--decode-workers", "1", "--set", "decode_engine.num_gpu_blocks=8192"]
    assert main(["run", *flags, "--print-config"]) == 0
    assert "num_gpu_blocks: 8192" in capsys.readouterr().out
    assert main(["run", "--prefill-workers", "2"]) == 2
    assert "--prefill-workers needs --decode-workers" in capsys.readouterr().err
