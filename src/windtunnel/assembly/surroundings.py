"""What a configuration puts around the workers: routers, hand-offs, scaling, faults."""

from __future__ import annotations

import inspect

from windtunnel.assembly.engines import pool_configs
from windtunnel.assembly.pricing import build_timing
from windtunnel.cluster.autoscaler import Autoscaler, SloAutoscaler, ThresholdAutoscaler
from windtunnel.cluster.bypass import Bypass
from windtunnel.cluster.fabric import Fabric
from windtunnel.cluster.failures import Failures
from windtunnel.cluster.handoff import Handoffs
from windtunnel.cluster.router import Router
from windtunnel.cluster.router.builtin import Role, builtin_router
from windtunnel.cluster.router.kv import KvRouter
from windtunnel.cluster.scaling import Scaling
from windtunnel.cluster.simulation import Simulation
from windtunnel.config.faults import read_faults
from windtunnel.config.schedule import read_schedule
from windtunnel.config.schema import ROUTERS, Config
from windtunnel.config.topology import AUTOSCALERS
from windtunnel.errors import InputError
from windtunnel.plugins import load_object, make_object
from windtunnel.timing.base import TimingModel

INFINITE = float("inf")


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
        router = make_object(found, wanted.kind, {})
    if not callable(getattr(router, "route", None)):
        raise InputError(
            f"{wanted.kind!r} is no router: it has no method route(request, workers, now_ms)",
            field="cluster.router.kind",
        )
    return router  # type: ignore[return-value]  # a user's object; what it returns is checked at each call


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
    handoffs = Handoffs(
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
    if config.cluster.bypass.policy != "never":
        handoffs.bypass = _build_bypass(config, simulation)
    return handoffs


def _build_bypass(config: Config, simulation: Simulation) -> Bypass:
    """What lets some requests run on one worker."""
    wanted = config.cluster.bypass
    prefill, decode = simulation.pools
    if not isinstance(prefill.router, KvRouter) or not isinstance(decode.router, KvRouter):
        raise InputError("needs the kv router", field="cluster.bypass.policy")
    threshold = wanted.prefill_busy_threshold
    return Bypass(
        prefill,
        prefill.router,
        decode,
        decode.router,
        by_length=wanted.policy in ("isl-bounding", "isl-or-load"),
        uncached_tokens=wanted.uncached_tokens,
        uncached_share=wanted.uncached_share,
        prefill_busy_tokens=None if threshold is None else threshold * prefill.router.max_batched_tokens,
        decode_busy_share=wanted.decode_busy_threshold,
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
        policy = make_object(policy, wanted.autoscaler, {})
    for method in ("first_tick_ms", "on_tick"):
        if not callable(getattr(policy, method, None)):
            raise InputError(
                f"{wanted.autoscaler!r} is no autoscaler: it has no method {method}", field="cluster.scaling.autoscaler"
            )
    return policy  # type: ignore[return-value]  # its methods were looked up just above


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
