"""Builds the parts that a configuration names, runs them, and hands back the record.

The one place that knows all layers: workload -> cluster -> engine -> timing, with a record beside them.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from windtunnel.cluster.agenda import Agenda
from windtunnel.cluster.autoscaler import Autoscaler, SloAutoscaler, ThresholdAutoscaler
from windtunnel.cluster.fabric import Fabric
from windtunnel.cluster.failures import Failures
from windtunnel.cluster.handoff import Handoffs
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.router import Router, TrackingRouter
from windtunnel.cluster.router.builtin import Role, builtin_router
from windtunnel.cluster.router.feed import RouterFeed
from windtunnel.cluster.scaling import Scaling
from windtunnel.cluster.simulation import Simulation
from windtunnel.cluster.traffic import Traffic
from windtunnel.cluster.worker import Clock
from windtunnel.config.faults import read_faults
from windtunnel.config.schedule import read_schedule
from windtunnel.config.schema import ROUTERS, TIMING_MODELS, Config, VllmConfig
from windtunnel.config.sizing import memory_plan
from windtunnel.config.timing import NEEDS_DEPLOYMENT
from windtunnel.config.topology import AUTOSCALERS
from windtunnel.engine.acceptance import build_acceptance
from windtunnel.engine.engine import Engine
from windtunnel.engine.kv.levels import Levels
from windtunnel.engine.overlap import OverlapEngine
from windtunnel.engine.rank_engine import RankEngine
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_handoff import SglangDestination, SglangSource
from windtunnel.engine.speculative import SpeculativeScheduler
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.engine.vllm_handoff import VllmDestination, VllmSource
from windtunnel.errors import InputError, PluginError, StalledError
from windtunnel.plugins import load_object
from windtunnel.record.columns import HandoffColumns, PassColumns, Record
from windtunnel.timing.aiconfigurator import aiconfigurator_timing
from windtunnel.timing.base import CheckedTiming, ScaledTiming, TimingModel
from windtunnel.timing.calibrated import CalibratedTiming
from windtunnel.timing.drafting import DraftingTiming
from windtunnel.timing.layer_profile import LayerProfile, layer_stack
from windtunnel.timing.measured_range import measured_range, timing_notes
from windtunnel.timing.overhead import NO_OVERHEAD, Overhead, WithOverhead, overhead_of
from windtunnel.timing.polynomial import PolynomialTiming
from windtunnel.timing.profile import PROFILE_PREFIX, load_profile
from windtunnel.timing.roofline import RooflineTiming
from windtunnel.timing.tabulated import TabulatedTiming
from windtunnel.workload.driver import Driver
from windtunnel.workload.mixture import mixed_workload
from windtunnel.workload.retiming import retime
from windtunnel.workload.session import Workload
from windtunnel.workload.synthetic import synthetic_workload
from windtunnel.workload.traces import load_trace

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
        timing = _checked(timing, type(timing).__name__, config)
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
    levels = build_levels(config, Traffic(agenda, clock))
    record = Record(workload.num_requests, 0)
    record.speculates = isinstance(config.engine, VllmConfig) and config.engine.speculation is not None
    fleet = Fleet(record, clock)

    def note_landing(number: int) -> None:
        """KV has come back from a tier: the scheduler of an engine is to look at it when its pass has ended."""
        worker = fleet.workers[number]
        if simulation.reach_boundary(worker, clock.now_ms):
            simulation.wake(worker)

    if config.cluster.is_split:
        pools = _split_pools(config, timing, router, decode_router, router_name, fleet, workload)
    else:
        record.decode_gpus_per_worker = gpus_per_worker(config)
        dp_size = config.cluster.dp_size
        own_timing = timing or build_timing(config)
        _note_timing(record, own_timing)

        def build(passes: PassColumns) -> Engine:
            engine = build_engine(config, own_timing, passes)
            if levels is not None:
                offload = levels.for_engine()
                engine.scheduler.attach_tiers(offload)
                offload.on_landing = partial(note_landing, len(fleet.workers))
            return engine

        pools = [Pool("", 0, router, router_name, fleet, build, dp_size)]
        pools[0].is_special |= config.cluster.scaling.is_on or autoscaler is not None
        pools[0].tokens_per_block = config.engine.tokens_per_block
        _connect(pools[0], fleet, workload)
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
            record.offload = levels.counts()
        error.partial = Result(config, simulation.driver.workload, record, (time.perf_counter() - started) * 1000.0)
        raise
    if levels is not None:
        record.offload = levels.counts()
    return Result(config, simulation.driver.workload, record, (time.perf_counter() - started) * 1000.0)


def load_workload(config: Config) -> Workload:
    """The requests that a configuration describes.

    Raises:
        InputError: there is none, or a trace cannot be read.
    """
    wanted = config.workload
    if wanted.synthetic is not None:
        return synthetic_workload(
            wanted.synthetic,
            block_size=config.engine.tokens_per_block,
            concurrency=wanted.concurrency,
            arrival=wanted.arrival,
            seed=config.seed,
            speedup=wanted.speedup,
        )
    if wanted.classes:
        block_size = config.engine.tokens_per_block
        return mixed_workload(wanted.classes, block_size=block_size, seed=config.seed, speedup=wanted.speedup)
    if not wanted.path:
        raise InputError("no workload: give trace files or a synthetic load", field="workload.path")
    workload = load_trace(
        wanted.path,
        format=wanted.format,
        block_size=wanted.trace_block_size,
        limit=wanted.limit,
        speedup=wanted.speedup,
        spread=wanted.spread,
        on_bad_row=wanted.on_bad_row,
        on_hash_mismatch=wanted.on_hash_mismatch,
        on_overlong=wanted.on_overlong,
        max_model_len=config.engine.max_sequence_tokens,
        missing_output_tokens=wanted.missing_output_tokens,
        time_unit=wanted.time_unit,
        prefix_ratio=wanted.trace_prefix_ratio,
        prefix_groups=wanted.trace_prefix_groups,
    )
    if wanted.arrival is not None:
        retime(workload, wanted.arrival, seed=config.seed, speedup=wanted.speedup)
    return workload


def build_engine(config: Config, timing: TimingModel, passes: PassColumns) -> Engine:
    """The engine that `engine` describes, writing to its own pass columns."""
    wanted = config.engine
    engine_type = Engine if config.cluster.dp_size == 1 else RankEngine
    if isinstance(wanted, VllmConfig):
        if config.cluster.dp_size > 1:
            return RankEngine(VllmScheduler(wanted, passes), timing, passes)
        ahead = int(wanted.async_scheduling)
        if wanted.speculation is None:
            return Engine(VllmScheduler(wanted, passes), timing, passes, passes_ahead=ahead)
        speculating = SpeculativeScheduler(wanted, passes, build_acceptance(wanted.speculation, config.seed))
        return Engine(speculating, DraftingTiming(timing, wanted.speculation), passes, passes_ahead=ahead)
    scheduler = SglangScheduler(wanted, passes)
    if wanted.overlap_schedule:
        return OverlapEngine(scheduler, timing, passes)
    return engine_type(scheduler, timing, passes)


def build_levels(config: Config, traffic: Traffic) -> Levels | None:
    """The KV tiers that `engine.offload` describes, which each engine asks for its own; None without any."""
    wanted = config.engine.offload
    if wanted is None:
        return None
    kv_bytes_per_token = wanted.kv_bytes_per_token
    if kv_bytes_per_token is None:
        plan = memory_plan(config.engine, config.timing, config.cluster.dp_size)
        assert plan is not None  # the schema has seen to it
        kv_bytes_per_token = plan.bytes_per_token
    return Levels(wanted, config.engine.tokens_per_block, kv_bytes_per_token, traffic)


def _note_timing(record: Record, timing: TimingModel) -> None:
    """What reports say about the timing model."""
    record.timing_range = measured_range(timing)
    record.timing_notes = timing_notes(timing)
    record.timing_overhead = overhead_of(timing)


def gpus_per_worker(config: Config) -> int:
    """GPUs of a worker: those of an engine for each data-parallel rank."""
    return config.cluster.dp_size * config.timing.tp * config.timing.pp


def _split_pools(
    config: Config,
    timing: TimingModel | None,
    router: Router,
    decode_router: Router | None,
    router_name: str,
    fleet: Fleet,
    workload: Workload,
) -> list[Pool]:
    """The workers that prefill, and those that decode."""
    prefill, decode = pool_configs(config)
    fleet.record.handoffs = HandoffColumns(fleet.record.requests.num_requests)
    fleet.record.prefill_gpus_per_worker = gpus_per_worker(config)
    fleet.record.decode_gpus_per_worker = gpus_per_worker(config)
    prefill_timing = timing or build_timing(prefill)
    decode_timing = timing or build_timing(decode)
    _note_timing(fleet.record, decode_timing)

    def build_source(passes: PassColumns) -> Engine:
        wanted = prefill.engine
        if isinstance(wanted, VllmConfig):
            return Engine(VllmSource(wanted, passes), prefill_timing, passes)
        engine_type = OverlapEngine if wanted.overlap_schedule else Engine
        return engine_type(SglangSource(wanted, passes), prefill_timing, passes)

    def build_destination(passes: PassColumns) -> Engine:
        wanted = decode.engine
        if isinstance(wanted, VllmConfig):
            return Engine(VllmDestination(wanted, passes), decode_timing, passes)
        engine_type = OverlapEngine if wanted.overlap_schedule else Engine
        return engine_type(SglangDestination(wanted, passes), decode_timing, passes)

    decode_router = decode_router or build_router(config, decode_timing, "decode")
    if decode_router is router and isinstance(router, TrackingRouter) and router.follows:
        raise InputError("follows one pool of workers: give the other a router of its own", field="cluster.router")
    pools = [
        Pool("prefill", 0, router, router_name, fleet, build_source),
        Pool("decode", 1, decode_router, router_name, fleet, build_destination),
    ]
    for pool, workers in zip(pools, (config.cluster.prefill_workers, config.cluster.decode_workers), strict=True):
        pool.is_special = True
        pool.tokens_per_block = config.engine.tokens_per_block
        _connect(pool, fleet, workload)
        for _ in range(workers or 0):
            pool.start()
    return pools


def pool_configs(config: Config) -> tuple[Config, Config]:
    """The configuration as the workers that prefill see it, and those that decode: with their own engine."""
    configs = []
    for engine in (config.prefill_engine, config.decode_engine):
        own = config.model_copy()
        own.__dict__["engine"] = engine or config.engine
        configs.append(own)
    return configs[0], configs[1]


def build_handoffs(config: Config, simulation: Simulation) -> Handoffs:
    """Hand-offs between the two pools of a simulation."""
    wanted = config.cluster.transfer
    fabric = Fabric(
        simulation.agenda,
        wanted.bandwidth_gb_per_s or INFINITE,
        wanted.fabric_bandwidth_gb_per_s or INFINITE,
        wanted.latency_ms,
        wanted.shared,
    )
    columns = simulation.record.handoffs
    assert columns is not None
    return Handoffs(
        simulation,
        simulation.pools[0],
        simulation.pools[1],
        fabric,
        simulation.workload,
        columns,
        destination_first=config.engine.kind == "sglang",
        kv_bytes_per_token=config.kv_bytes_per_token or 0,
        sends_missing_only=wanted.bytes == "destination_missing",
    )


def build_scaling(
    config: Config, simulation: Simulation, autoscaler: Autoscaler | None, timing: TimingModel | None
) -> Scaling:
    """What makes the workers of a simulation come and go.

    Raises:
        InputError: a schedule or a policy cannot be used.
    """
    wanted = config.cluster.scaling
    startup_ms = wanted.startup_s * 1000.0
    pools = simulation.pools
    if wanted.schedule is not None and autoscaler is None:
        schedule = read_schedule(wanted.schedule, [pool.name or "workers" for pool in pools])
        return Scaling(simulation, pools, startup_ms, schedule)
    name = type(autoscaler).__name__ if autoscaler is not None else wanted.autoscaler or ""
    if autoscaler is None:
        autoscaler = build_autoscaler(config, timing)
    return Scaling(simulation, pools, startup_ms, (), autoscaler, f"autoscaler {name}")


def build_failures(config: Config, simulation: Simulation) -> Failures:
    """What goes wrong in a simulation.

    Raises:
        InputError: the file of faults cannot be used.
    """
    wanted = config.cluster.failures
    assert wanted.faults is not None
    faults = read_faults(wanted.faults, [pool.name for pool in simulation.pools])
    fabric = simulation.handoffs.fabric if simulation.handoffs is not None else None
    return Failures(
        simulation,
        simulation.pools,
        faults,
        retries=wanted.on_crash == "retry",
        fabric=fabric,
        is_scaled=simulation.scaling is not None,
    )


def build_autoscaler(config: Config, timing: TimingModel | None) -> Autoscaler:
    """The policy that `cluster.scaling` names."""
    wanted = config.cluster.scaling
    interval_ms = wanted.interval_s * 1000.0
    if wanted.autoscaler == "threshold":
        assert wanted.requests_per_worker is not None
        return ThresholdAutoscaler(
            wanted.requests_per_worker,
            interval_ms,
            wanted.stabilization_s * 1000.0,
            wanted.min_workers,
            wanted.max_workers,
        )
    if wanted.autoscaler == "slo":
        assert wanted.itl_ms is not None
        configs = {"workers": config}
        if config.cluster.is_split:
            configs = dict(zip(("prefill", "decode"), pool_configs(config), strict=True))
        return SloAutoscaler(
            {name: timing or build_timing(own) for name, own in configs.items()},
            {name: own.engine.kv_capacity_tokens for name, own in configs.items()},
            wanted.itl_ms,
            interval_ms,
            wanted.min_workers,
            wanted.max_workers,
        )
    assert wanted.autoscaler is not None
    policy = load_object(wanted.autoscaler, "cluster.scaling.autoscaler", AUTOSCALERS)
    if callable(policy) and (inspect.isclass(policy) or not hasattr(policy, "on_tick")):
        policy = _built(policy, wanted.autoscaler, {})
    for method in ("first_tick_ms", "on_tick"):
        if not callable(getattr(policy, method, None)):
            raise InputError(
                f"{wanted.autoscaler!r} is no autoscaler: it has no method {method}", field="cluster.scaling.autoscaler"
            )
    return policy  # type: ignore[return-value]  # its methods were looked up just above


def _connect(pool: Pool, fleet: Fleet, workload: Workload) -> None:
    """Let the router of a pool follow what happens there, if it wants to."""
    if isinstance(pool.router, TrackingRouter) and pool.router.follows:
        pool.feed = RouterFeed(pool.router, pool, fleet.clock, workload)


def build_router(config: Config, timing: TimingModel | None = None, role: Role = "all") -> Router:
    """The router that `cluster.router` names, for workers that do all, or only prefill, or only decode.

    `timing` is the model that it may ask, if not the one that is named.
    """
    builtin = builtin_router(config, lambda: build_timing(config) if timing is None else timing, role)
    if builtin is not None:
        return builtin
    wanted = config.cluster.router
    found = load_object(wanted.kind, "cluster.router.kind", ROUTERS)
    if wanted.tie_break != "lowest":
        raise InputError(f"has no effect on the router {wanted.kind!r}", field="cluster.router.tie_break")
    router = found
    if callable(found) and (inspect.isclass(found) or not hasattr(found, "route")):
        router = _built(found, wanted.kind, {})
    if not callable(getattr(router, "route", None)):
        raise InputError(
            f"{wanted.kind!r} is no router: it has no method route(request, workers, now_ms)",
            field="cluster.router.kind",
        )
    return router  # type: ignore[return-value]  # a user's object; what it returns is checked at each call


def build_timing(config: Config) -> TimingModel:
    """The timing model that `timing` names, for the KV capacity of `engine`."""
    wanted = config.timing
    capacity = config.engine.kv_capacity_tokens
    if wanted.kind == "polynomial":
        mixes = isinstance(config.engine, VllmConfig)  # prompts and decodes, in the passes of one engine
        return PolynomialTiming(capacity, wanted.speedup, wanted.decode_speedup, first_tokens_decode=mixes)
    deployment = wanted.deployment(config.cluster.dp_size)
    is_as_measured = wanted.decode_scale == wanted.prefill_scale == 1.0
    if wanted.kind == "roofline" and deployment is not None and is_as_measured:
        overhead = wanted.overhead or NO_OVERHEAD
        return _scaled(RooflineTiming(deployment, overhead, cuda_graph_padding=wanted.cuda_graph_padding), config)
    if wanted.kind in NEEDS_DEPLOYMENT or wanted.is_profile:
        kernels, overhead = build_kernels(config)
        if is_as_measured:
            return _scaled(WithOverhead(kernels, overhead) if overhead != NO_OVERHEAD else kernels, config)
        calibrated = CalibratedTiming(
            kernels,
            decode_scale=wanted.decode_scale,
            prefill_scale=wanted.prefill_scale,
            pass_ms=overhead.pass_ms,
            request_ms=overhead.request_ms,
        )
        return _scaled(calibrated, config)
    found = load_object(wanted.kind, "timing.kind", TIMING_MODELS)
    model = found
    if callable(found) and (inspect.isclass(found) or not hasattr(found, "price_pass_ms")):
        takes_capacity = "kv_capacity_tokens" in _parameters(found)
        model = _built(found, wanted.kind, {"kv_capacity_tokens": capacity} if takes_capacity else {})
    for method in ("price_pass_ms", "price_run_ms"):
        if not callable(getattr(model, method, None)):
            raise InputError(f"{wanted.kind!r} is no timing model: it has no method {method}", field="timing.kind")
    return _checked(model, wanted.kind, config)  # type: ignore[arg-type]  # its methods were looked up just above


def build_kernels(config: Config) -> tuple[TimingModel, Overhead]:
    """What `timing` prices without overhead and calibration, and the overhead that comes on top.

    Raises:
        InputError: it names no model on a GPU and no measured profile, or data for it is missing.
    """
    wanted = config.timing
    deployment = wanted.deployment(config.cluster.dp_size)
    if wanted.kind == "roofline" and deployment is not None:
        roofline = RooflineTiming(deployment, cuda_graph_padding=wanted.cuda_graph_padding)
        return roofline, wanted.overhead_on(Overhead())
    if wanted.kind == "aiconfigurator" and deployment is not None:
        tables = aiconfigurator_timing(deployment, config.engine.kind, config.engine.max_decodes)
        return tables, wanted.overhead_on(Overhead())
    if wanted.is_profile:
        stack = None if deployment is None else layer_stack(deployment)
        table = load_profile(wanted.kind.removeprefix(PROFILE_PREFIX), stack)
        default = Overhead() if isinstance(table, LayerProfile) else NO_OVERHEAD
        return TabulatedTiming(table), wanted.overhead_on(default)
    raise InputError(
        f"{wanted.kind!r} has no kernels apart from an overhead: expected a model on a GPU, or profile:PATH",
        field="timing.kind",
    )


def _built(factory: Callable[..., object], name: str, arguments: dict[str, int]) -> object:
    """What a user's class or function makes."""
    try:
        return factory(**arguments)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{name}: making it raised {error!r}") from error


def _parameters(factory: Callable[..., object]) -> list[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except ValueError:  # some builtins do not tell
        return []


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


def _checked(model: TimingModel, name: str, config: Config) -> TimingModel:
    return _scaled(CheckedTiming(model, name), config)


def _scaled(model: TimingModel, config: Config) -> TimingModel:
    return ScaledTiming(model, config.timing.speedup) if config.timing.speedup != 1.0 else model
