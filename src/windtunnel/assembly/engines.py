"""The engines that a configuration describes, their KV tiers, and the pools of workers around them."""

from __future__ import annotations

from windtunnel.assembly.pricing import build_timing
from windtunnel.assembly.surroundings import build_router
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.router import Router, TrackingRouter
from windtunnel.cluster.router.feed import RouterFeed
from windtunnel.cluster.traffic import Traffic
from windtunnel.config.schema import Config, VllmConfig
from windtunnel.config.sizing import memory_plan
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
from windtunnel.errors import InputError
from windtunnel.record.columns import HandoffColumns, PassColumns, Record
from windtunnel.timing.base import TimingModel
from windtunnel.timing.drafting import DraftingTiming
from windtunnel.timing.measured_range import measured_range, timing_notes
from windtunnel.timing.overhead import overhead_of
from windtunnel.workload.session import Workload


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


def gpus_per_worker(config: Config) -> int:
    """GPUs of a worker: those of an engine for each data-parallel rank."""
    return config.cluster.dp_size * config.timing.tp * config.timing.pp


def pool_configs(config: Config) -> tuple[Config, Config]:
    """The configuration as the workers that prefill see it, and those that decode: with their own engine."""
    configs = []
    for engine in (config.prefill_engine, config.decode_engine):
        own = config.model_copy()
        own.__dict__["engine"] = engine or config.engine
        configs.append(own)
    return configs[0], configs[1]


def note_timing(record: Record, timing: TimingModel) -> None:
    """What reports say about the timing model."""
    record.timing_range = measured_range(timing)
    record.timing_notes = timing_notes(timing)
    record.timing_overhead = overhead_of(timing)


def connect(pool: Pool, fleet: Fleet, workload: Workload) -> None:
    """Let the router of a pool follow what happens there, if it wants to."""
    if isinstance(pool.router, TrackingRouter) and pool.router.follows:
        pool.feed = RouterFeed(pool.router, pool, fleet.clock, workload)


def split_pools(
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
    note_timing(fleet.record, decode_timing)

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
        connect(pool, fleet, workload)
        for _ in range(workers or 0):
            pool.start()
    return pools
