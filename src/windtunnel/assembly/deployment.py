"""Runs what a configuration describes, and hands back the record.

The one place that knows all layers: workload -> cluster -> engine -> timing, with a record beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from windtunnel.assembly.engines import build_engine, build_levels, gpus_per_worker, shared_acceptance
from windtunnel.assembly.pools import connect, note_timing, split_pools
from windtunnel.assembly.pricing import build_timing, checked
from windtunnel.assembly.requests import load_workload
from windtunnel.assembly.surroundings import build_failures, build_handoffs, build_router, build_scaling
from windtunnel.cluster.agenda import Agenda
from windtunnel.cluster.autoscaler import Autoscaler
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.router import Router
from windtunnel.cluster.simulation import Simulation
from windtunnel.cluster.worker import Clock
from windtunnel.config.schema import Config
from windtunnel.engine.engine import Engine
from windtunnel.errors import InputError, PluginError, StalledError
from windtunnel.record.columns import PassColumns, Record
from windtunnel.timing.base import TimingModel
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload

INFINITE = float("inf")

Progress = Callable[[float, int, int], None]


@dataclass(frozen=True)
class Result:
    """A finished (or interrupted) simulation.

    Attributes:
        wall_time_ms: real time the event loop took, without loading and reporting.
    """

    config: Config
    workload: Workload
    record: Record
    wall_time_ms: float


def simulate(
    config: Config,
    *,
    workload: Workload | None = None,
    router: Router | None = None,
    decode_router: Router | None = None,
    timing: TimingModel | None = None,
    autoscaler: Autoscaler | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Result:
    """Run the simulation that `config` describes.

    Args:
        workload, router, timing, autoscaler: objects to use instead of those that `config` names.
        decode_router: with workers that only decode, who places requests on them; `router` if that is given alone.
        progress: called now and then with (virtual ms, requests ended, requests in all).
        should_stop: asked as often; True ends the simulation early with a partial record.

    Raises:
        InputError: something in the configuration or a trace cannot be used; nothing was simulated.
        PluginError: a router or timing model of the user misbehaved.
        StalledError: nothing can happen any more although requests remain.
            Both of these carry the partial result as `partial`.
    """
    if decode_router is not None and not config.cluster.is_split:
        raise InputError("has no effect without workers that only decode", field="decode_router")
    if timing is not None:
        config = _naming(config, "timing", timing)
        timing = checked(timing, type(timing).__name__, config)
    router_name = config.cluster.router.kind
    if router is None:
        router = build_router(config, timing, "prefill" if config.cluster.is_split else "all")
    else:
        decode_router = decode_router or router
        config = _naming(config, "router", router)
        router_name = type(router).__name__
    if workload is None:
        workload = load_workload(config)
    clock = Clock()
    agenda = Agenda()
    levels = build_levels(config, agenda, clock)
    record = Record(workload.num_requests, 0)
    record.speculates = config.engine.speculation is not None
    fleet = Fleet(record, clock)

    def note_landing(number: int) -> None:
        """KV has come back from a tier: the scheduler of an engine is to look at it when its pass has ended."""
        worker = fleet.workers[number]
        if simulation.reach_boundary(worker, clock.now_ms):
            simulation.wake(worker)

    if config.cluster.is_split:
        pools = split_pools(config, timing, router, decode_router, router_name, fleet, workload)
    else:
        record.decode_gpus_per_worker = gpus_per_worker(config)
        dp_size = config.cluster.dp_size
        own_timing = timing or build_timing(config)
        note_timing(record, own_timing)
        acceptance = shared_acceptance(config)

        def build(passes: PassColumns) -> Engine:
            engine = build_engine(config, own_timing, passes, acceptance)
            if levels is not None:
                offload = levels.for_engine()
                engine.scheduler.attach_tiers(offload)
                if levels.is_apart:
                    engine.haulage = offload.haulage
                else:
                    engine.runs_on = False  # what others see begins when passes end
                offload.on_landing = partial(note_landing, len(fleet.workers))
            return engine

        pools = [Pool("", 0, router, router_name, fleet, build, dp_size)]
        pools[0].is_special |= config.cluster.scaling.is_on or autoscaler is not None
        pools[0].tokens_per_block = config.engine.tokens_per_block
        connect(pools[0], fleet, workload)
        for _ in range(config.cluster.workers):
            pools[0].start()
    simulation = Simulation(
        workload,
        Driver(
            workload,
            config.workload.concurrency,
            concurrency_by=config.workload.concurrency_by,
            on_failed_dependency=config.workload.on_failed_dependency,
        ),
        pools,
        fleet,
        agenda=agenda,
        cancel_after_ms=config.workload.cancel_after_ms or INFINITE,
        max_time_ms=INFINITE if config.max_time_s is None else config.max_time_s * 1000.0,
        progress=progress,
        should_stop=should_stop,
    )
    if config.cluster.is_split:
        simulation.handoffs = build_handoffs(config, simulation)
    if config.cluster.scaling.is_on or autoscaler is not None:
        simulation.scaling = build_scaling(config, simulation, autoscaler, timing)
    if config.cluster.failures.faults is not None:
        simulation.failures = build_failures(config, simulation)
    started = time.perf_counter()
    try:
        simulation.run()
    except (PluginError, StalledError) as error:
        simulation.halt(clock.now_ms, "error")
        simulation.close()
        if levels is not None:
            record.offload = levels.counts(record.end_ms)
        error.partial = Result(config, simulation.driver.workload, record, (time.perf_counter() - started) * 1000.0)
        raise
    if levels is not None:
        record.offload = levels.counts(record.end_ms)
    return Result(config, simulation.driver.workload, record, (time.perf_counter() - started) * 1000.0)


def _naming(config: Config, part: str, used: object) -> Config:
    """The configuration with the name of the object that is used, so that reports say what was simulated.

    Raises:
        InputError: an option does not go with such an object.
    """
    kind = f"{type(used).__module__}:{type(used).__qualname__}"
    data = config.model_dump()
    (data["timing"] if part == "timing" else data["cluster"]["router"])["kind"] = kind
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise InputError(str(error.errors()[0]["msg"]), field=part) from None
