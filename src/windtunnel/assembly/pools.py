"""Pools of workers that prefill, or decode, behind a router each."""

from __future__ import annotations

from windtunnel.assembly.engines import gpus_per_worker, pool_configs
from windtunnel.assembly.pricing import build_timing
from windtunnel.assembly.surroundings import build_router
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.router import Router, TrackingRouter
from windtunnel.cluster.router.feed import RouterFeed
from windtunnel.config.schema import Config, VllmConfig
from windtunnel.engine.engine import Engine
from windtunnel.engine.overlap import OverlapEngine
from windtunnel.engine.sglang_handoff import SglangDestination, SglangSource
from windtunnel.engine.vllm_handoff import VllmDestination, VllmSource
from windtunnel.errors import InputError
from windtunnel.record.columns import HandoffColumns, PassColumns, Record
from windtunnel.timing.base import TimingModel
from windtunnel.timing.measured_range import measured_range, timing_notes
from windtunnel.timing.overhead import overhead_of
from windtunnel.workload.session import Workload


def note_timing(record: Record, timing: TimingModel) -> None:
    """What reports say about the timing model."""
    record.timing_range = measured_range(timing)
    record.timing_notes = timing_notes(timing)
    record.timing_overhead = overhead_of(timing)


def connect(pool: Pool, fleet: Fleet, workload: Workload) -> None:
    """Tell a pool what its requests have in common, and let its router follow what happens there, if it wants to."""
    pool.shares_outputs = workload.planned is not None
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
            ahead = int(wanted.async_scheduling)
            return Engine(VllmSource(wanted, passes), prefill_timing, passes, passes_ahead=ahead)
        engine_type = OverlapEngine if wanted.overlap_schedule else Engine
        return engine_type(SglangSource(wanted, passes), prefill_timing, passes)

    def build_destination(passes: PassColumns) -> Engine:
        wanted = decode.engine
        if isinstance(wanted, VllmConfig):
            ahead = int(wanted.async_scheduling)
            return Engine(VllmDestination(wanted, passes), decode_timing, passes, passes_ahead=ahead)
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
