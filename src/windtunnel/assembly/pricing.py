"""The timing model that a configuration names."""

from __future__ import annotations

import inspect

from windtunnel.config.schema import TIMING_MODELS, Config, VllmConfig
from windtunnel.config.timing import NEEDS_DEPLOYMENT
from windtunnel.errors import InputError
from windtunnel.plugins import load_object, make_object, parameters_of
from windtunnel.timing.aiconfigurator import aiconfigurator_timing
from windtunnel.timing.base import TimingModel
from windtunnel.timing.calibrated import CalibratedTiming
from windtunnel.timing.checked import CheckedTiming
from windtunnel.timing.layer_profile import LayerProfile, layer_stack
from windtunnel.timing.overhead import NO_OVERHEAD, Overhead, WithOverhead
from windtunnel.timing.polynomial import PolynomialTiming
from windtunnel.timing.profile import PROFILE_PREFIX, load_profile
from windtunnel.timing.roofline import RooflineTiming
from windtunnel.timing.scaled import ScaledTiming
from windtunnel.timing.tabulated import TabulatedTiming


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
        return scaled(RooflineTiming(deployment, overhead, cuda_graph_padding=wanted.cuda_graph_padding), config)
    if wanted.kind in NEEDS_DEPLOYMENT or wanted.is_profile:
        kernels, overhead = build_kernels(config)
        if is_as_measured:
            return scaled(WithOverhead(kernels, overhead) if overhead != NO_OVERHEAD else kernels, config)
        calibrated = CalibratedTiming(
            kernels,
            decode_scale=wanted.decode_scale,
            prefill_scale=wanted.prefill_scale,
            pass_ms=overhead.pass_ms,
            request_ms=overhead.request_ms,
        )
        return scaled(calibrated, config)
    found = load_object(wanted.kind, "timing.kind", TIMING_MODELS)
    model = found
    if callable(found) and (inspect.isclass(found) or not hasattr(found, "price_pass_ms")):
        takes_capacity = "kv_capacity_tokens" in parameters_of(found)
        model = make_object(found, wanted.kind, {"kv_capacity_tokens": capacity} if takes_capacity else {})
    for method in ("price_pass_ms", "price_run_ms"):
        if not callable(getattr(model, method, None)):
            raise InputError(f"{wanted.kind!r} is no timing model: it has no method {method}", field="timing.kind")
    return checked(model, wanted.kind, config)  # type: ignore[arg-type]  # its methods were looked up just above


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


def checked(model: TimingModel, name: str, config: Config) -> TimingModel:
    return scaled(CheckedTiming(model, name), config)


def scaled(model: TimingModel, config: Config) -> TimingModel:
    return ScaledTiming(model, config.timing.speedup) if config.timing.speedup != 1.0 else model
