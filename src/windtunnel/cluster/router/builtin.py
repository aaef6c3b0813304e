"""Makes the router that a configuration names, of those that come with the package."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal, TypeAlias

from windtunnel.cluster.router.base import Router
from windtunnel.cluster.router.cache_view import CacheView
from windtunnel.cluster.router.kv import KvRouter, KvWeights
from windtunnel.cluster.router.least_loaded import LeastLoadedRouter
from windtunnel.cluster.router.power_of_two import PowerOfTwoRouter
from windtunnel.cluster.router.prefix_hash import PrefixHashRouter
from windtunnel.cluster.router.round_robin import RoundRobinRouter
from windtunnel.cluster.router.session_affinity import SessionAffinityRouter
from windtunnel.cluster.router.uniform import RandomRouter
from windtunnel.cluster.router.weighted import WeightedRouter
from windtunnel.config.policy_classes import PolicyClasses, read_policy_file, single_class
from windtunnel.config.router import RouterConfig
from windtunnel.config.schema import Config, VllmConfig
from windtunnel.timing.base import PassShape, TimingModel
from windtunnel.workload.streams import named_stream

Role: TypeAlias = Literal["all", "prefill", "decode"]  # what the workers behind a router do


def builtin_router(config: Config, timing: Callable[[], TimingModel], role: Role = "all") -> Router | None:
    """The router that `cluster.router` names, for workers of one role; None if none of ours has that name.

    Raises:
        InputError: a file of policy classes cannot be used.
    """
    wanted = config.cluster.router
    stream = named_stream(config.seed, "decode router" if role == "decode" else "router")
    tie_stream = stream if wanted.tie_break == "random" else None
    if wanted.kind == "round-robin":
        return RoundRobinRouter(config.cluster.dp_size)
    if wanted.kind == "random":
        return RandomRouter(stream)
    if wanted.kind == "least-loaded":
        return LeastLoadedRouter(tie_stream, wanted.load)
    if wanted.kind == "power-of-two":
        return PowerOfTwoRouter(stream, wanted.load)
    if wanted.kind == "session-affinity":
        return SessionAffinityRouter(tie_stream, wanted.load)
    if wanted.kind == "prefix-hash":
        return PrefixHashRouter(wanted.prefix_tokens, wanted.load_factor)
    if wanted.kind == "weighted":
        view = _cache_view(wanted, config.engine.tokens_per_block)
        return WeightedRouter(view, wanted.prefix_weight, wanted.queue_weight, wanted.kv_weight, tie_stream)
    if wanted.kind == "kv":
        return _kv_router(config, timing, stream, role)
    return None


def _cache_view(wanted: RouterConfig, block_size: int) -> CacheView:
    if wanted.index == "approximate":
        return CacheView(block_size, False, 0.0, wanted.ttl_s * 1000.0)
    return CacheView(block_size, True, wanted.event_delay_ms, (wanted.predicted_ttl_s or 0.0) * 1000.0)


def _kv_router(config: Config, timing: Callable[[], TimingModel], stream: Random, role: Role) -> KvRouter:
    """As a peer splits it: who prefills is chosen by prompt work and cache, who decodes by active blocks alone."""
    wanted = config.cluster.router
    engine = config.engine
    if role == "decode":
        bypasses = config.cluster.bypass.policy != "never"  # then it matters what decode workers have cached
        return KvRouter(
            _cache_view(wanted, engine.tokens_per_block)
            if bypasses
            else CacheView(engine.tokens_per_block, False, 0.0, 0.0),
            KvWeights(
                overlap_credit=0.0,
                decode_credit=wanted.overlap_credit if bypasses else 0.0,
                active_request_weight=wanted.active_request_weight,
                track_prefill_tokens=False,
                assume_kv_reuse=False,
            ),
            stream,
            temperature=wanted.temperature,
            tie_break_random=wanted.tie_break == "random",
        )
    classes: PolicyClasses | None = None
    if wanted.policy_file is not None:
        classes = read_policy_file(wanted.policy_file)
    elif wanted.queue_threshold is not None:
        classes = single_class(wanted.queue_threshold, wanted.queue_policy)
    expect: Callable[[int, int], float] | None = None
    if wanted.prefill_load_decay:
        model = timing()

        def expect(cached_tokens: int, uncached_tokens: int) -> float:
            shape = PassShape()
            shape.add_chunk(cached_tokens, uncached_tokens, cached_tokens + uncached_tokens, False)
            return model.price_pass_ms(shape)

    return KvRouter(
        _cache_view(wanted, engine.tokens_per_block),
        KvWeights(
            wanted.overlap_credit,
            wanted.overlap_credit_decay,
            wanted.prefill_load_scale,
            wanted.active_request_weight,
            wanted.track_prefill_tokens,
            wanted.track_active_blocks and role == "all",
            wanted.assume_kv_reuse,
        ),
        stream,
        temperature=wanted.temperature,
        tie_break_random=wanted.tie_break == "random",
        classes=classes,
        max_batched_tokens=(
            engine.max_num_batched_tokens if isinstance(engine, VllmConfig) else engine.max_prefill_tokens
        ),
        expect_prefill_ms=expect,
    )
