"""Workers that come and go: who starts, who drains, what counts, and what an autoscaler sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from pydantic import ValidationError

from strategies import FlatTiming, Scenario, Send, fuzz
from topologies import RandomScaler, Run, check, differences, run, scaled_scenarios
from windtunnel import simulate
from windtunnel.cli import main
from windtunnel.cluster.autoscaler import (
    ClusterSnapshot,
    PoolSnapshot,
    ScalingDecision,
    SloAutoscaler,
    ThresholdAutoscaler,
    TrafficWindow,
    WorkerSnapshot,
)
from windtunnel.config import Config
from windtunnel.errors import InputError, PluginError
from windtunnel.record.columns import Status
from windtunnel.report.metrics import summarize
from windtunnel.workload.session import Workload

ENGINE = {"block_size": 4, "num_gpu_blocks": 64}


def scaled(scenario: tuple[Scenario, RandomScaler], fast_forward: bool = True) -> Run:
    return run(scenario[0], fast_forward=fast_forward, autoscaler=scenario[1])


@given(scaled_scenarios())
@fuzz(200)
def test_everything_adds_up(scenario: tuple[Scenario, RandomScaler]) -> None:
    outcome = scaled(scenario)
    check(scenario[0], outcome)
    check_lives(outcome)


@given(scaled_scenarios(split=True))
@fuzz(200)
def test_everything_adds_up_with_pools(scenario: tuple[Scenario, RandomScaler]) -> None:
    outcome = scaled(scenario)
    check(scenario[0], outcome)
    check_lives(outcome)


@given(scaled_scenarios())
@fuzz(100)
def test_runs_give_the_record_of_single_passes(scenario: tuple[Scenario, RandomScaler]) -> None:
    fast = scaled(scenario)
    seen = scenario[1].seen
    slow = scaled(scenario, fast_forward=False)
    assert differences(fast, slow) == []
    assert seen == scenario[1].seen


@given(scaled_scenarios(split=True))
@fuzz(100)
def test_runs_give_the_record_of_single_passes_with_pools(scenario: tuple[Scenario, RandomScaler]) -> None:
    assert differences(scaled(scenario), scaled(scenario, fast_forward=False)) == []


def check_lives(outcome: Run) -> None:
    """Workers come in the order of their numbers, and serve nobody before they are ready or after they are gone."""
    columns = outcome.record.requests
    known = [event.time_ms for event in outcome.record.worker_events]
    assert known == sorted(known)
    for pool in outcome.simulation.pools:
        for life in pool.lives:
            assert life.start_ms <= life.end_ms
            for rank in life.ranks:
                ends = outcome.record.passes[rank.index].end_ms
                assert not ends or life.start_ms <= ends[0]
                served = [n for n, index in enumerate(columns.worker) if index == rank.index]
                for number in served:
                    if columns.status[number] == Status.COMPLETED:
                        assert life.start_ms <= columns.terminal_ms[number] <= life.end_ms


# --- a schedule


def play(
    schedule: list[tuple[float, dict[str, int]]], sends: int = 1, workers: int = 1, startup_ms: float = 0.0
) -> Run:
    """Play a schedule beside requests 1 s apart, each of which takes 2 ms."""

    class Player:
        def first_tick_ms(self) -> float:
            return schedule[0][0]

        def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
            place = snapshot.tick
            return ScalingDecision(schedule[place][1], schedule[place + 1][0] if place + 1 < len(schedule) else None)

    scenario = Scenario(
        tuple(Send(((number, 0, 4),), 2, time_ms=1000.0 * number) for number in range(sends)),
        ENGINE,
        workers=workers,
        timing=FlatTiming(1.0),
        topology={"cluster": {"scaling": {"schedule": "unused", "startup_s": startup_ms / 1000.0}}},
    )
    return run(scenario, autoscaler=Player())


def events(outcome: Run) -> list[tuple[float, int, str]]:
    return [(event.time_ms, event.worker, event.event) for event in outcome.record.worker_events]


def test_who_is_starting_is_given_up_first_and_was_paid_for() -> None:
    """Scenario 69."""
    outcome = play([(5000.0, {"workers": 2}), (8000.0, {"workers": 1})], sends=21, startup_ms=10_000.0)
    assert events(outcome) == [(5000.0, 1, "starting"), (8000.0, 1, "cancelled")]
    assert outcome.record.worker_ms == pytest.approx(20_002.0 + 3000.0)


def test_the_highest_numbers_drain_first_and_numbers_are_never_used_again() -> None:
    """Scenario 70."""
    outcome = play([(500.0, {"workers": 1}), (1500.0, {"workers": 2})], sends=4, workers=3)
    assert events(outcome) == [
        (500.0, 2, "draining"),
        (500.0, 2, "removed"),
        (500.0, 1, "draining"),
        (500.0, 1, "removed"),
        (1500.0, 3, "starting"),
        (1500.0, 3, "ready"),
    ]
    assert set(outcome.record.requests.worker) <= {0, 3}


def test_round_robin_goes_on_among_those_that_are_left() -> None:
    """Scenario 76."""
    outcome = play([(1500.0, {"workers": 2})], sends=4, workers=3)
    assert list(outcome.record.requests.worker) == [0, 1, 0, 1]  # next was 2, of 2


def test_requests_wait_for_a_worker_and_are_served_in_order() -> None:
    outcome = play([(500.0, {"workers": 0}), (2500.0, {"workers": 1})], sends=4, startup_ms=100.0)
    columns = outcome.record.requests
    assert list(columns.first_admit_ms) == [0.0, 2600.0, 2600.0, 3000.0]
    assert columns.queued_ms[1] == 1600.0


def test_a_cluster_without_workers_for_ever_is_a_stall_with_its_reason() -> None:
    outcome = play([(500.0, {"workers": 0})], sends=2)
    assert "1 wait for a worker" in outcome.error


def test_a_replayed_schedule_takes_the_peers_times(tmp_path: Path) -> None:
    """Scenario 56: the schedule that the peer's planner came to."""
    schedule = tmp_path / "schedule.yaml"
    schedule.write_text(
        "- {at_s: 10, workers: 2}\n- {at_s: 30, workers: 1}\n- {at_s: 40, workers: 2}\n- {at_s: 60, workers: 1}\n"
    )
    workload = Workload("scenario 56")
    for number in range(1200):
        workload.add([(number, 0, 2048)], 50, time_ms=50.0 * number)
    config = Config.model_validate(
        {
            "engine": {"num_gpu_blocks": 4000, "async_scheduling": False},
            "cluster": {"scaling": {"schedule": str(schedule), "startup_s": 10}},
        }
    )
    result = simulate(config, workload=workload)
    summary = summarize(result.workload, result.record, config.slo)
    assert [(round(e.time_ms, 3), e.worker, e.event) for e in result.record.worker_events] == [
        (10_000.0, 1, "starting"),
        (20_000.0, 1, "ready"),
        (30_000.0, 1, "draining"),
        (30_455.664, 1, "removed"),
        (40_000.0, 2, "starting"),
        (50_000.0, 2, "ready"),
        (60_000.0, 2, "draining"),
        (60_356.558, 2, "removed"),
    ]
    assert summary["duration_ms"] == pytest.approx(60415.428376, abs=1e-3)
    assert summary["decode_worker_seconds"] == pytest.approx(101.22764987, abs=1e-6)
    assert summary["gpu_hours"] == pytest.approx(0.0281187916306, abs=1e-9)
    assert summary["mean_ttft_ms"] == pytest.approx(843.618196058, abs=1e-3)
    assert summary["mean_itl_ms"] == pytest.approx(100.660268752, abs=1e-3)


# --- policies


def snapshot(now_ms: float, requests: list[int], tick: int = 0, **traffic: float) -> ClusterSnapshot:
    workers = tuple(WorkerSnapshot(number, count, 0, count, 10, 10) for number, count in enumerate(requests))
    window = TrafficWindow(10_000.0, int(traffic.get("arrived", 0)), 1, 1000.0, 100.0, 1.0, 1.0, 0.0)
    return ClusterSnapshot(now_ms, tick, {"workers": PoolSnapshot(workers, len(workers), 0, 0, 0)}, window)


def test_a_threshold_scales_by_the_ratio_and_remembers_the_larger_number() -> None:
    policy = ThresholdAutoscaler(10.0, interval_ms=1000.0, stabilization_ms=3000.0, max_workers=5)
    wanted = [
        dict(policy.on_tick(snapshot(now_ms, requests)).targets)["workers"]
        for now_ms, requests in (
            (1000.0, [15, 16]),  # 31 for 2 at 10 each
            (2000.0, [11, 10]),  # within the tolerance
            (3000.0, [1, 1]),  # 4 is remembered
            (4500.0, [1, 1]),  # 2 is remembered
            (9000.0, [1, 1]),
            (10_000.0, [90]),  # bounded
        )
    ]
    assert wanted == [4, 4, 4, 2, 1, 5]


def test_an_slo_policy_follows_the_rate_and_runs_ahead_of_its_growth() -> None:
    policy = SloAutoscaler({"workers": FlatTiming(10.0)}, {"workers": 4000}, itl_ms=20.0, interval_ms=1000.0)
    # a request: 10 ms for its prompt, 100 steps of 10 ms shared by the 3 that fit; 80 % of the time is planned with
    per_request_s = (10.0 + 100 * 10.0 / 3) / 1000.0 / 0.8
    first = policy.on_tick(snapshot(1000.0, [0], arrived=50)).targets["workers"]
    assert first == int(5.0 * per_request_s) + 1
    grown = policy.on_tick(snapshot(2000.0, [0], tick=1, arrived=100)).targets["workers"]
    assert grown == int(15.0 * per_request_s) + 1


def test_a_window_counts_what_happened_since_the_last_tick() -> None:
    scaler = RandomScaler(1500.0, [{}, {}, {}])
    scenario = Scenario(
        tuple(Send(((7, 0, 8),), 3, time_ms=1000.0 * number) for number in range(4)),
        ENGINE,
        timing=FlatTiming(1.0),
        topology={"cluster": {"scaling": {"schedule": "unused"}}},
    )
    run(scenario, autoscaler=scaler)
    first, second = (tick.traffic for tick in scaler.seen[:2])
    assert (first.arrived, first.completed, second.arrived, second.completed) == (2, 2, 2, 1)
    assert (first.mean_input_tokens, first.mean_output_tokens) == (8.0, 3.0)
    assert (first.mean_ttft_ms, first.mean_itl_ms) == (1.0, 1.0)
    assert first.mean_hit_share == 0.25  # nothing of the first request, one block of two of the second
    assert second.mean_hit_share == 0.5
    assert first.arrivals_per_s == pytest.approx(2 / 1.5)


def test_a_decode_and_a_finishing_prefill_have_an_accept_length_of_one() -> None:
    scaler = RandomScaler(2.5, [{}, {}])
    later = Send(((3, 0, 8),), 1, time_ms=100.0)
    sends = (Send(((1, 0, 8),), 2, time_ms=0.0), Send(((2, 0, 8),), 1, time_ms=0.5), later)  # the pass from 1 to 2 ms
    topology = {"cluster": {"scaling": {"schedule": "unused"}}}
    run(Scenario(sends, ENGINE, timing=FlatTiming(1.0), topology=topology), autoscaler=scaler)
    assert (scaler.seen[0].traffic.completed, scaler.seen[0].traffic.accept_length) == (2, 1.0)


def test_a_burst_keeps_its_ratio_and_a_rejected_request_counts_for_nothing() -> None:
    scaler = RandomScaler(20.0, [{}, {}])
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "acceptance_rates": [1.0, 1.0]}
    sends = (Send(((1, 0, 8),), 10), Send(((2, 0, 4000),), 5), Send(((3, 0, 8),), 1, time_ms=100.0))
    scenario = Scenario(
        sends,
        {**ENGINE, "speculation": speculation},
        timing=FlatTiming(1.0),
        topology={"cluster": {"scaling": {"schedule": "unused"}}},
    )
    record = run(scenario, autoscaler=scaler).record
    assert record.requests.status[1] == Status.REJECTED  # it never fits
    forwards = 10 - record.requests.extra_tokens[0]
    assert forwards < 10
    assert scaler.seen[0].traffic.accept_length == 10 / forwards


def test_a_window_averages_the_hit_shares_of_requests() -> None:
    """Scenario 71: 0 of 10 blocks, 5 of 10, 20 of 40 are a third, not 25 of 60."""
    scaler = RandomScaler(1e6, [{}, {}])
    block = 4
    sends = (
        Send(((1, 0, 10 * block),), 1, time_ms=0.0),
        Send(((1, 0, 5 * block), (2, 0, 5 * block)), 1, time_ms=1e5),
        Send(((3, 0, 20 * block),), 1, time_ms=2e5),
        Send(((3, 0, 20 * block), (4, 0, 20 * block)), 1, time_ms=3e5),
        Send(((5, 0, block),), 1, time_ms=2e6),
    )
    topology = {"cluster": {"scaling": {"schedule": "unused"}}}
    engine = {"block_size": block, "num_gpu_blocks": 256}
    run(Scenario(sends, engine, timing=FlatTiming(1.0), topology=topology), autoscaler=scaler)
    # the request that fills the cache with the last prefix has a share of none itself
    assert scaler.seen[0].traffic.mean_hit_share == pytest.approx((0 + 5 / 10 + 0 + 20 / 40) / 4)


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: ScalingDecision({"decoders": 1}), "'decoders'"),
        (lambda: ScalingDecision({"workers": -1}), "-1 workers"),
        (lambda: ScalingDecision({}, 5.0), "expected later than"),
    ],
)
def test_a_policy_that_makes_no_sense_is_reported(decision: Callable[[], ScalingDecision], message: str) -> None:
    class Broken:
        def first_tick_ms(self) -> float:
            return 5.0

        def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
            return decision()

    workload = Workload("two")
    workload.add([(1, 0, 4)], 500)
    with pytest.raises(PluginError, match=message):
        simulate(Config(), workload=workload, autoscaler=Broken())


# --- the configuration


def test_a_schedule_that_makes_no_sense_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = tmp_path / "schedule.yaml"
    for text, message in (
        ("{at_s: 1}", "expected a list of entries"),
        ("- 3", "entry 1: found 3, expected a mapping"),
        ("- {at_s: 1, workers: 2}\n- {at_s: -1, workers: 2}", "entry 2: at_s: found -1"),
        ("- {at_s: 1}", "entry 1: workers missing"),
        ("- {at_s: 1, workers: many}", "entry 1: workers: found 'many'"),
        ("- {at_s: 1, decode_workers: 2}", "entry 1: unknown field 'decode_workers': expected workers"),
        ("- [", "is neither YAML nor JSON"),
    ):
        schedule.write_text(text)
        assert main(["run", "--limit", "5", "--set", f"cluster.scaling.schedule={schedule}"]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", "--limit", "5", "--set", "cluster.scaling.schedule=nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read" in capsys.readouterr().err


def test_fields_that_do_not_go_together_are_refused() -> None:
    for fields, message in (
        ({"startup_s": 1.0}, "startup_s has no effect"),
        ({"autoscaler": "threshold"}, "requests_per_worker is missing"),
        ({"autoscaler": "slo"}, "itl_ms is missing"),
        ({"autoscaler": "slo", "itl_ms": 1.0, "requests_per_worker": 1.0}, "has no effect unless autoscaler"),
        ({"autoscaler": "slo", "itl_ms": 1.0, "schedule": "f"}, "not both"),
        ({"autoscaler": "slo", "itl_ms": 1.0, "min_workers": 3, "max_workers": 2}, "must be at least"),
    ):
        with pytest.raises(ValidationError, match=message):
            Config.model_validate({"cluster": {"scaling": fields}})


def test_a_policy_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half.py").write_text("class Half:\n    def on_tick(self, snapshot): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    workload = Workload("one")
    workload.add([(1, 0, 4)], 5)
    config = Config.model_validate({"cluster": {"scaling": {"autoscaler": "half:Half"}}})
    with pytest.raises(InputError, match="it has no method first_tick_ms"):
        simulate(config, workload=workload)
