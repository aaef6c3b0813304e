"""The deployment that a report is about: model, GPU, and where the memory goes. It follows from the config."""

from __future__ import annotations

from typing import Any

from windtunnel.config.schema import Config
from windtunnel.config.sizing import memory_plan
from windtunnel.timing.capacity import MemoryPlan
from windtunnel.timing.deployment import Deployment


def describe_deployment(config: Config) -> dict[str, Any] | None:
    """The deployment as plain JSON values, if `timing` names one."""
    deployment = config.timing.deployment(config.cluster.dp_size)
    plan = memory_plan(config.engine, config.timing, config.cluster.dp_size)
    if deployment is None or plan is None:
        return None
    return {
        "model": deployment.model.name,
        "gpu": deployment.gpu.name,
        "gpu_source": deployment.gpu.source,
        "gpus": deployment.num_gpus,
        "tp": deployment.tp,
        "pp": deployment.pp,
        "dp": deployment.dp,
        "ep": deployment.ep,
        "weight_dtype": deployment.weight_dtype,
        "kv_dtype": deployment.kv_dtype,
        "kv_cache_blocks": config.engine.num_gpu_blocks,
        "kv_cache_tokens": config.engine.kv_capacity_tokens,
        "kv_cache_from": _source(config, plan),
        "memory_plan": plan.as_dict(),
    }


def deployment_lines(config: Config) -> list[tuple[str, str]]:
    """The same in words, as name and value."""
    deployment = config.timing.deployment(config.cluster.dp_size)
    plan = memory_plan(config.engine, config.timing, config.cluster.dp_size)
    if deployment is None or plan is None:
        return []
    lines = [("Deployment", _in_words(deployment))]
    engine = config.engine
    size = f"{engine.num_gpu_blocks:,} x {engine.tokens_per_block:,} tokens"
    if _source(config, plan) != "memory plan":
        lines.append(("KV cache", f"{size}, as given; {plan.tokens:,} tokens would fit by the memory plan"))
    else:
        lines.append(("KV cache", f"{size}: {_plan_in_words(plan)}"))
    return lines


def _in_words(deployment: Deployment) -> str:
    split = [
        f"{name} {size}"
        for name, size in (("tp", deployment.tp), ("pp", deployment.pp), ("dp", deployment.dp), ("ep", deployment.ep))
        if size > 1
    ]
    gpus = deployment.gpu.name if deployment.num_gpus == 1 else f"{deployment.num_gpus} x {deployment.gpu.name}"
    how = f" ({', '.join(split)})" if split else ""
    return f"{deployment.model.name} on {gpus}{how}, {deployment.weight_dtype} weights, {deployment.kv_dtype} KV cache"


def _source(config: Config, plan: MemoryPlan) -> str:
    """Where the number of KV blocks came from, as far as numbers tell: a plan that is given back is the plan."""
    if config.timing.engine_log is not None:
        return "engine log"
    blocks = plan.tokens // config.engine.tokens_per_block
    return "memory plan" if config.engine.num_gpu_blocks in (blocks, blocks - 1) else "given"


def _plan_in_words(plan: MemoryPlan) -> str:
    parts = [("weights", plan.weights)]
    if plan.holds_activations:
        parts += [
            ("activations", plan.activations),
            ("graphs and libraries", plan.runtime),
            ("collectives", plan.collectives),
        ]
    parts += [("sliding windows", plan.windows), ("states of linear attention", plan.states)]
    taken = "".join(f" - {size / 1e9:,.1f} {name}" for name, size in parts if size > 0.0)
    return (
        f"{plan.share:.0%} of {plan.total / 1e9:,.1f} GB{taken} = {plan.kv_cache / 1e9:,.1f} GB, "
        f"{plan.bytes_per_token:,} bytes a token"
    )
