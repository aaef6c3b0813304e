"""How many KV blocks an engine has when nobody says: what the memory of its GPU holds, or what a log reports.

A number that is given always wins. Without a model there is nothing to size, and the engine keeps its default.
"""

from __future__ import annotations

from windtunnel.config.section import RuleError
from windtunnel.config.sglang import SglangConfig
from windtunnel.config.timing import TimingConfig
from windtunnel.config.vllm import VllmConfig
from windtunnel.errors import InputError
from windtunnel.timing.capacity import MemoryPlan, plan_memory, read_engine_log, smallest_tp_that_fits
from windtunnel.timing.deployment import Deployment

AnyEngine = VllmConfig | SglangConfig

NULL_BLOCKS = 1  # vLLM keeps its first block for itself


def memory_plan(engine: AnyEngine, timing: TimingConfig, dp_size: int = 1) -> MemoryPlan | None:
    """Where the memory of the GPU goes, if `timing` names one; `dp_size` ranks share the experts."""
    deployment = timing.deployment(dp_size)
    return None if deployment is None else _plan(deployment, engine, timing)


def size_engine(engine: AnyEngine, timing: TimingConfig, dp_size: int = 1) -> AnyEngine:
    """The engine with its KV blocks, if they were not given and something else says how many there are.

    The number is not among the fields that were given: it follows when the deployment changes.

    Raises:
        InputError: the parts of the deployment do not go together; its `field` is one of `timing`.
        RuleError: nothing fits, or two numbers contradict each other. Its fields are relative to the configuration.
    """
    is_given = "num_gpu_blocks" in engine.model_fields_set
    deployment = timing.deployment(dp_size)
    block_size = engine.tokens_per_block
    if timing.engine_log is not None:
        if is_given:
            raise RuleError("give either {engine.num_gpu_blocks} or {timing.engine_log}, not both")
        try:
            tokens = read_engine_log(timing.engine_log, block_size)
        except InputError as error:
            raise RuleError(f"{{timing.engine_log}}: {error.message}") from None
    elif is_given or deployment is None:
        return engine
    else:
        tokens = _plan(deployment, engine, timing).tokens
        if tokens < 2 * block_size:
            raise RuleError(f"{{timing.gpu}}: {_no_room(deployment, engine, timing)}")
    blocks = tokens // block_size
    if isinstance(engine, VllmConfig):
        blocks -= NULL_BLOCKS
    if blocks < 1:
        raise RuleError(f"{{timing.engine_log}}: {tokens:,} tokens are less than two blocks of {block_size}")
    sized = engine.model_copy()
    sized.__dict__["num_gpu_blocks"] = blocks
    return sized


def _plan(deployment: Deployment, engine: AnyEngine, timing: TimingConfig) -> MemoryPlan:
    share, max_rows, max_tokens, holds_activations = _needs(engine, timing)
    return plan_memory(
        deployment, share=share, max_rows=max_rows, max_tokens=max_tokens, holds_activations=holds_activations
    )


def _needs(engine: AnyEngine, timing: TimingConfig) -> tuple[float, int, int, bool]:
    """Share of the memory, most rows and tokens of a pass, and whether the share holds activations too."""
    share = timing.gpu_memory_utilization
    if isinstance(engine, VllmConfig):
        return share or 0.9, engine.max_num_seqs, engine.max_num_batched_tokens, True
    tokens = engine.chunked_prefill_size if engine.chunked_prefill_size > 0 else engine.max_prefill_tokens
    return share or 0.88, engine.max_running_requests, tokens, False


def _no_room(deployment: Deployment, engine: AnyEngine, timing: TimingConfig) -> str:
    share, max_rows, max_tokens, holds_activations = _needs(engine, timing)
    plan = _plan(deployment, engine, timing)
    fits = smallest_tp_that_fits(
        deployment,
        share=share,
        max_rows=max_rows,
        max_tokens=max_tokens,
        holds_activations=holds_activations,
        tokens=2 * engine.tokens_per_block,
    )
    remedy = f"the smallest {{timing.tp}} that fits is {fits}" if fits else "no {timing.tp} within a node fits"
    return (
        f"no room for a KV cache: weights take {plan.weights / 1e9:,.1f} GB and other needs "
        f"{(plan.activations + plan.runtime + plan.collectives + plan.windows + plan.states) / 1e9:,.1f} GB of "
        f"{plan.total * plan.share / 1e9:,.1f} GB ({plan.share:.0%} of the {deployment.gpu.name}); {remedy}"
    )
