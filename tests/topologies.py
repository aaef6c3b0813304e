"""Random topologies over the small random deployments of the strategies, how to run them, and what must hold after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast
from unittest import mock

from hypothesis import strategies as st

from sglang_strategies import sglang_deployments
from strategies import MAX_POLLS, Dice, Scenario, columns_of, fields_of, scenarios
from windtunnel import Result, simulate
from windtunnel.assembly import deployment, surroundings
from windtunnel.cluster.autoscaler import ClusterSnapshot, ScalingDecision
from windtunnel.cluster.router.cache_view import CACHED, LANES
from windtunnel.cluster.router.kv import KvRouter
from windtunnel.cluster.simulation import Simulation
from windtunnel.config.faults import INFINITE, PlannedFault
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.errors import SimulationError
from windtunnel.record.columns import Record, Status

TIME_PARTS = ("queued_ms", "prefill_ms", "stalled_ms", "preempted_ms", "transfer_ms", "decode_ms")
HANDOFF_STEPS = ("source_held_ms", "activated_ms", "decode_admit_ms")
ENDED = (Status.COMPLETED, Status.CANCELLED, Status.REJECTED, Status.FAILED)


@dataclass
class Run:
    """What a scenario came to.

    Attributes:
        error: the message of the `SimulationError` that ended it, else "".
    """

    record: Record
    simulation: Simulation
    error: str

    @property
    def complete(self) -> bool:
        return not self.error and not self.record.interrupted


def run(
    scenario: Scenario, *, fast_forward: bool = True, faults: list[PlannedFault] | None = None, **objects: Any
) -> Run:
    """Simulate a scenario through the public entry point; a hang is a failure. `faults` is what its file says."""
    simulations: list[Simulation] = []
    polls = 0

    def build(*arguments: Any, **fields: Any) -> Simulation:
        simulations.append(Simulation(*arguments, **fields))
        return simulations[-1]

    def hangs() -> bool:
        nonlocal polls
        polls += 1
        assert polls < MAX_POLLS, "the simulation goes on and on"
        return False

    message = ""

    def read(path: str, pools: list[str]) -> list[PlannedFault]:
        return faults or []

    with mock.patch.object(deployment, "Simulation", build), mock.patch.object(surroundings, "read_faults", read):
        try:
            result = simulate(
                scenario.config(fast_forward=fast_forward),
                workload=scenario.workload(),
                timing=scenario.timing,
                should_stop=hangs,
                **objects,
            )
        except SimulationError as error:
            result, message = cast(Result, error.partial), str(error)
    return Run(result.record, simulations[0], message)


def differences(found: Run, expected: Run) -> list[str]:
    """What two runs do not agree on, to the last bit."""
    ours, theirs = everything(found.record), everything(expected.record)
    assert ours.keys() == theirs.keys()
    result = [f"{name}: {ours[name]}, expected {theirs[name]}" for name in theirs if ours[name] != theirs[name]]
    if found.error != expected.error:
        result.append(f"error: {found.error!r}, expected {expected.error!r}")
    return result


def everything(record: Record) -> dict[str, object]:
    """Everything a record says."""
    found = columns_of(record)
    if record.handoffs is not None:
        for name, column in fields_of(record.handoffs).items():
            found[f"handoffs.{name}"] = [value.hex() if isinstance(value, float) else value for value in column]
    found["faults"] = [fault.as_dict() | {"numbers": fault.requests} for fault in record.faults]
    found["worker_events"] = record.worker_events
    found["prefill_worker_ms"] = record.prefill_worker_ms.hex()
    return found


def check(scenario: Scenario, outcome: Run) -> None:
    """One terminal state each, times that add up and are in order, tokens that were asked for, and nothing held."""
    record = outcome.record
    columns = record.requests
    for number, send in enumerate(scenario.sends):
        status = Status(columns.status[number])
        arrival_ms, terminal_ms = columns.arrival_ms[number], columns.terminal_ms[number]
        if status in (Status.COMPLETED, Status.CANCELLED, Status.FAILED) and arrival_ms == arrival_ms:
            parts = sum(getattr(columns, part)[number] for part in TIME_PARTS)
            assert abs(parts - (terminal_ms - arrival_ms)) <= 1e-9 * max(1.0, terminal_ms), status.label
            assert all(getattr(columns, part)[number] >= -1e-9 for part in TIME_PARTS)
        steps = [arrival_ms, columns.first_admit_ms[number]]
        if record.handoffs is not None:
            steps += [getattr(record.handoffs, name)[number] for name in HANDOFF_STEPS]
        steps += [columns.first_token_ms[number], columns.last_token_ms[number], terminal_ms]
        happened = [time_ms for time_ms in steps if time_ms == time_ms]
        assert happened == sorted(happened)
        assert columns.output_tokens[number] <= send.output_tokens
        assert 0 <= columns.hit_tokens[number] <= columns.reused_tokens[number] <= send.prompt_tokens
        if outcome.complete:
            assert status is not Status.UNFINISHED
            assert status is not Status.NOT_ARRIVED or scenario.cancel_after_ms is not None
    for passes in record.passes:
        ends = list(passes.end_ms)
        assert ends == sorted(ends)
    if outcome.complete:
        assert not outcome.simulation.live
        for worker in outcome.simulation.workers:
            assert worker.num_requests == 0
            check_empty(worker.engine.scheduler)
        check_routers(outcome)


def check_routers(outcome: Run) -> None:
    """A KV router holds no request any more, and has heard of all that its workers have cached, if events arrive."""
    lossy = {fault.what for fault in outcome.record.faults} & {"events-lost", "events-late"}
    for pool in outcome.simulation.pools:
        router = pool.router
        if not isinstance(router, KvRouter):
            continue
        view = router.view
        assert not router._placed
        assert not view.active_blocks.any()
        if lossy or not view.reads_events or view.dates_events:
            continue
        assert (view.index.refused, view.index.unknown) == (0, 0)
        for worker in pool.workers:
            scheduler = worker.engine.scheduler
            is_known = worker.is_routable and not scheduler.pool.events  # what came last may not be told any more
            if is_known and isinstance(scheduler, VllmScheduler) and scheduler.caching:
                lane = LANES * worker.number + CACHED
                held = view.index.blocks[lane] if lane < len(view.index.blocks) else 0  # nobody was sent there
                assert held == cached_blocks(scheduler)


def cached_blocks(scheduler: VllmScheduler) -> int:
    """Distinct blocks in the cache of an engine."""
    nodes = list(scheduler.pool.tree.root.children.values())
    for node in nodes:
        nodes += node.children.values()
    return sum(node.size for node in nodes)


def check_empty(scheduler: object) -> None:
    """An engine that all requests have left holds nothing."""
    assert isinstance(scheduler, VllmScheduler | SglangScheduler)
    assert scheduler.pool.free_blocks == scheduler.pool.num_blocks
    assert not scheduler.waiting
    assert not getattr(scheduler, "held", {})
    assert not getattr(scheduler, "built", ())
    if isinstance(scheduler, VllmScheduler):
        assert not scheduler.running
        assert not scheduler.decodes.by_output
    else:
        assert not scheduler.ledger.live
        assert scheduler.ledger.free_rows == scheduler.max_running_requests
        assert scheduler.pool.protected_tokens == 0


@st.composite
def split_scenarios(draw: st.DrawFn, sglang: bool = False) -> Scenario:
    """Scenarios whose requests prefill and decode on different workers."""
    scenario = draw(sglang_deployments() if sglang else scenarios())
    dice = Dice(draw(st.binary(min_size=8, max_size=8)))
    transfer: dict[str, object] = {"latency_ms": dice.pick(0.0, 0.0, 2.0, 7.5)}
    if dice.pick(True, False):
        transfer |= {
            "bandwidth_gb_per_s": dice.pick(1.0, 0.25, 100.0),
            "kv_bytes_per_token": dice.pick(1_000, 100_000, 1_000_000),
            "bytes": dice.pick("full_prompt", "destination_missing"),
            "shared": dice.pick(True, True, False),
            "fabric_bandwidth_gb_per_s": dice.pick(None, None, 0.5),
        }
    cluster = {
        "prefill_workers": dice.number(1, 3),
        "decode_workers": dice.number(1, 3),
        "transfer": transfer,
    }
    return replace(scenario, topology={"cluster": cluster})


@st.composite
def scaled_scenarios(draw: st.DrawFn, split: bool = False) -> tuple[Scenario, RandomScaler]:
    """Scenarios whose workers come and go."""
    scenario = draw(split_scenarios() if split else scenarios())
    dice = Dice(draw(st.binary(min_size=12, max_size=12)))
    pools = ("prefill", "decode") if split else ("workers",)
    interval_ms = dice.pick(3.0, 10.0, 41.5)
    decisions = [{pool: dice.pick(1, 2, 3, 0) for pool in pools} for _ in range(dice.number(1, 5))]
    decisions.append(dict.fromkeys(pools, 1))  # at the end there is somebody
    startup_s = dice.pick(0.0, 0.004, 0.02)
    cluster = {**scenario.topology.get("cluster", {}), "scaling": {"schedule": "unused", "startup_s": startup_s}}
    return replace(scenario, topology={"cluster": cluster}), RandomScaler(interval_ms, decisions)


class RandomScaler:
    """Wants what it was given, one decision a tick, and keeps what it saw."""

    def __init__(self, interval_ms: float, decisions: list[dict[str, int]]) -> None:
        self.interval_ms = interval_ms
        self.decisions = decisions
        self.seen: list[ClusterSnapshot] = []

    def __repr__(self) -> str:
        return f"RandomScaler({self.interval_ms}, {self.decisions})"

    def first_tick_ms(self) -> float:
        self.seen = []
        return self.interval_ms

    def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
        self.seen.append(snapshot)
        number = len(self.seen)
        next_ms = snapshot.now_ms + self.interval_ms if number < len(self.decisions) else None
        return ScalingDecision(self.decisions[number - 1], next_ms)


@st.composite
def failing_scenarios(
    draw: st.DrawFn, split: bool = False, sglang: bool = False
) -> tuple[Scenario, list[PlannedFault]]:
    """Scenarios in which things go wrong."""
    if split:
        scenario = draw(split_scenarios(sglang=sglang))
    else:
        scenario = draw(sglang_deployments() if sglang else scenarios())
    dice = Dice(draw(st.binary(min_size=24, max_size=24)))
    if not split and not sglang and dice.pick(False, True):
        scenario = replace(scenario, topology={"cluster": {"dp_size": 2}})
    cluster = dict(scenario.topology.get("cluster", {}))
    counts = {"": scenario.workers}
    if split:
        counts = {"prefill": cast(int, cluster["prefill_workers"]), "decode": cast(int, cluster["decode_workers"])}
    faults: list[PlannedFault] = []
    for _ in range(dice.number(1, 4)):
        pool = dice.pick(*counts)
        what = dice.pick("crash", "crash", "slow", "link-down" if split else "crash")
        at_ms = dice.pick(0.0, 1.0, 5.0, 12.5, 40.0, 100.0)
        for_ms = dice.pick(0.0, 3.0, 20.0, 100.0, INFINITE)
        if what == "link-down" and for_ms == INFINITE:
            for_ms = 50.0
        worker = dice.number(0, counts[pool] - 1)
        faults.append(PlannedFault(at_ms, what, pool, worker, for_ms, 1.3 if what == "slow" else 1.0))
    cluster["failures"] = {"faults": "unused", "on_crash": dice.pick("retry", "fail")}
    scenario = replace(scenario, topology={"cluster": cluster})
    if dice.pick(False, True):
        return _with_event_faults(scenario, faults, counts, dice), faults
    return scenario, faults


def _with_event_faults(scenario: Scenario, faults: list[PlannedFault], counts: dict[str, int], dice: Dice) -> Scenario:
    """The same behind a router that reads KV events, some of which get lost or come late."""
    pool = next(iter(counts))  # who decodes is chosen without events
    for _ in range(dice.number(1, 2)):
        what = dice.pick("events-lost", "events-late")
        delay_ms = dice.pick(2.5, 30.0) if what == "events-late" else 0.0
        at_ms = dice.pick(0.0, 1.0, 12.5, 40.0)
        for_ms = dice.pick(3.0, 20.0, 100.0, INFINITE)
        faults.append(PlannedFault(at_ms, what, pool, dice.number(0, counts[pool] - 1), for_ms, 1.0, delay_ms))
    options = dice.pick({}, {}, {"event_delay_ms": 2.5}, {"predicted_ttl_s": 0.05})
    return replace(scenario, router="kv", router_options=options, tie_break="lowest")


@st.composite
def bypassing_scenarios(draw: st.DrawFn, sglang: bool = False) -> tuple[Scenario, list[PlannedFault]]:
    """Scenarios with pools for prefill and decode where some requests run on one worker, and things may go wrong."""
    scenario, faults = draw(failing_scenarios(split=True, sglang=sglang))
    dice = Dice(draw(st.binary(min_size=8, max_size=8)))
    policy = dice.pick("isl-bounding", "prefill-load", "isl-or-load")
    bypass: dict[str, object] = {"policy": policy, "decode_busy_threshold": dice.pick(None, None, 0.5)}
    if policy != "prefill-load":
        bypass |= {"uncached_tokens": dice.pick(2048, 12, 5), "uncached_share": dice.pick(0.7, 1.0, 0.4)}
    if policy != "isl-bounding":
        bypass["prefill_busy_threshold"] = dice.pick(0.0, 0.5, 1.0)
    options: dict[str, object] = dict(scenario.router_options) if scenario.router == "kv" else {}
    cluster = {**scenario.topology["cluster"], "bypass": bypass}
    if dice.pick(True, False):
        del cluster["failures"]
        faults = []
    scenario = replace(scenario, router="kv", router_options=options, tie_break="lowest")
    return replace(scenario, topology={"cluster": cluster}), faults
