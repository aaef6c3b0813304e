"""The engines that a configuration describes, and their KV tiers."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.cluster.agenda import Agenda
from windtunnel.cluster.alarm import Alarm
from windtunnel.cluster.worker import Clock
from windtunnel.config.schema import Config, VllmConfig
from windtunnel.config.sizing import memory_plan
from windtunnel.engine.acceptance import Acceptance, build_acceptance
from windtunnel.engine.engine import Engine
from windtunnel.engine.kv.levels import Levels
from windtunnel.engine.overlap import OverlapEngine
from windtunnel.engine.rank_engine import RankEngine
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_speculation import SglangSpeculation
from windtunnel.engine.speculative import SpeculativeScheduler
from windtunnel.engine.speculative_engine import SpeculativeEngine, SpeculativeRankEngine
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import TimingModel
from windtunnel.timing.drafting import DraftingTiming


def shared_acceptance(config: Config) -> Acceptance | None:
    """What all engines of `engine` ask how many drafts are accepted; None if they do not speculate."""
    wanted = config.engine
    return None if wanted.speculation is None else build_acceptance(wanted.speculation, config.seed)


def build_engine(config: Config, timing: TimingModel, passes: PassColumns, acceptance: Acceptance | None) -> Engine:
    """The engine that `engine` describes, writing to its own pass columns."""
    wanted = config.engine
    is_rank = config.cluster.dp_size > 1
    if isinstance(wanted, VllmConfig):
        ahead = int(wanted.async_scheduling)
        if wanted.speculation is not None and acceptance is not None:
            speculating = SpeculativeScheduler(wanted, passes, acceptance)
            drafting = DraftingTiming(timing, wanted.speculation)
            if is_rank:
                return SpeculativeRankEngine(speculating, drafting, passes)
            return SpeculativeEngine(speculating, drafting, passes, passes_ahead=ahead)
        if is_rank:
            return RankEngine(VllmScheduler(wanted, passes), timing, passes)
        return Engine(VllmScheduler(wanted, passes), timing, passes, passes_ahead=ahead)
    if wanted.speculation is not None and acceptance is not None:
        verifying = SglangSpeculation(wanted, passes, acceptance)
        return SpeculativeEngine(verifying, DraftingTiming(timing, wanted.speculation), passes)
    scheduler = SglangScheduler(wanted, passes)
    if wanted.overlap_schedule:
        return OverlapEngine(scheduler, timing, passes)
    return RankEngine(scheduler, timing, passes) if is_rank else Engine(scheduler, timing, passes)


def build_levels(config: Config, agenda: Agenda, clock: Clock) -> Levels | None:
    """The KV tiers that `engine.offload` describes, which each engine asks for its own; None without any."""
    wanted = config.engine.offload
    if wanted is None:
        return None
    kv_bytes_per_token = wanted.kv_bytes_per_token
    if kv_bytes_per_token is None:
        plan = memory_plan(config.engine, config.timing, config.cluster.dp_size)
        assert plan is not None  # the schema has seen to it
        kv_bytes_per_token = plan.bytes_per_token

    def make_alarm(ring: Callable[[], None]) -> Callable[[float], None]:
        return Alarm(agenda, lambda now_ms: ring()).set

    return Levels(wanted, config.engine.tokens_per_block, kv_bytes_per_token, clock, make_alarm)


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
