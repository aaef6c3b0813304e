"""How many tokens of KV cache fit beside the model: the memory that an engine plans when it starts.

vLLM takes a share of the GPU (`gpu_memory_utilization`), loads the weights, measures the peak of a pass with a full
token budget and of a sampler with all its rows, and gives the KV cache the rest. SGLang gives weights and cache
together a share (`mem_fraction_static`) and everything else what that leaves. Both log what came of it.

Two constants stand for what cannot be derived from shapes. They were chosen against four measured pools (Llama-3.1-8B
on H200 and RTX 4090, Qwen3-1.7B on H100, and vLLM's own log of Llama-3-8B on an 80 GiB GPU), which they meet within
1 %: docs/timing.md has the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from windtunnel.errors import InputError
from windtunnel.timing.deployment import Deployment

GIB = float(1 << 30)
MIB = float(1 << 20)

SAMPLER_BYTES = 16.0  # per row and vocabulary entry: logits, their float32 copy, and what sorting them takes
RUNTIME_BYTES = 0.66 * GIB  # CUDA graphs, workspaces of libraries, fragments
# Buffers of collectives by the number of GPUs; NCCL on H100, from AIConfigurator 0.12's system data.
COLLECTIVE_BYTES = {1: 0.0, 2: 342 * MIB, 4: 392 * MIB, 8: 392 * MIB}

_LOG_PATTERNS = (  # and whether the number is one of blocks
    (re.compile(r"GPU KV cache size:\s*([\d,]+)\s*tokens"), False),
    (re.compile(r"# (?:GPU|CUDA) blocks:\s*(\d+)"), True),
    (re.compile(r"max_total_num_tokens\s*=\s*(\d+)"), False),
    (re.compile(r"KV Cache is allocated\..*?#tokens:\s*(\d+)"), False),
)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory of a GPU goes, in bytes, on the GPU of the deployment that holds most.

    Attributes:
        total: what the GPU has; share: the part of it that the engine takes.
        weights, activations, runtime, collectives: what that part holds besides the KV cache.
        holds_activations: whether the share holds all of these, or weights and caches alone.
        windows: caches of layers with a sliding window, full for every request that may run.
        states: what layers of linear attention keep, for every request that may run.
        kv_cache: what is left for the layers that attend to everything; may be negative.
        bytes_per_token: what a token takes of it.
    """

    total: float
    share: float
    weights: float
    activations: float
    runtime: float
    collectives: float
    holds_activations: bool
    windows: float
    states: float
    kv_cache: float
    bytes_per_token: int

    @property
    def tokens(self) -> int:
        """Tokens that fit the KV cache."""
        return max(int(self.kv_cache // self.bytes_per_token), 0)

    def as_dict(self) -> dict[str, float | int]:
        """For reports."""
        return {
            "memory_bytes": int(self.total),
            "share": self.share,
            "weight_bytes": int(self.weights),
            "activation_bytes": int(self.activations),
            "runtime_bytes": int(self.runtime),
            "collective_bytes": int(self.collectives),
            "window_cache_bytes": int(self.windows),
            "state_bytes": int(self.states),
            "kv_cache_bytes": int(self.kv_cache),
            "kv_bytes_per_token": self.bytes_per_token,
            "kv_cache_tokens": self.tokens,
        }


def plan_memory(
    deployment: Deployment, *, share: float, max_rows: int, max_tokens: int, holds_activations: bool
) -> MemoryPlan:
    """The memory of one GPU of a deployment.

    Args:
        share: of the GPU's memory that the engine plans with, 0 to 1.
        max_rows: requests that may run at once.
        max_tokens: largest number of tokens of a pass.
        holds_activations: whether that share holds everything (vLLM), or weights and cache alone (SGLang).
    """
    total = float(deployment.gpu.memory_bytes)
    weights = deployment.weight_bytes
    activations = _activation_bytes(deployment, max_rows, max_tokens)
    group = deployment.tp * deployment.dp
    collectives = COLLECTIVE_BYTES.get(group, COLLECTIVE_BYTES[8])
    layers_per_stage = deployment.stage_layers / deployment.model.num_layers
    windows = 0.0
    full_layers = 0.0
    for layers in deployment.model.layers:
        if layers.window_tokens:
            windows += layers.count * layers_per_stage * layers.window_tokens * max_rows * deployment.kv_bytes_per_layer
        elif not layers.is_linear:
            full_layers += layers.count * layers_per_stage
    if not full_layers:  # all layers forget: their blocks are counted for whole contexts, as the engine does
        full_layers = float(deployment.stage_layers)
        windows = 0.0
    states = max_rows * deployment.state_bytes_per_request * layers_per_stage
    kv_cache = total * share - weights - windows - states
    if holds_activations:
        kv_cache -= activations + RUNTIME_BYTES + collectives
    return MemoryPlan(
        total=total,
        share=share,
        weights=weights,
        activations=activations,
        runtime=RUNTIME_BYTES,
        collectives=collectives,
        holds_activations=holds_activations,
        windows=windows,
        states=states,
        kv_cache=kv_cache,
        bytes_per_token=int(-(-full_layers // 1)) * (deployment.kv_bytes_per_layer + deployment.index_bytes_per_layer),
    )


def smallest_tp_that_fits(
    deployment: Deployment, *, share: float, max_rows: int, max_tokens: int, holds_activations: bool, tokens: int
) -> int | None:
    """The smallest power of two of GPUs within a node that leaves room for so many tokens; None if none does."""
    tp = 1
    while tp <= deployment.gpu.gpus_per_node:
        if deployment.model.heads % tp == 0:
            plan = plan_memory(
                replace(deployment, tp=tp, ep=tp * deployment.dp if deployment.ep > 1 else 1),
                share=share,
                max_rows=max_rows,
                max_tokens=max_tokens,
                holds_activations=holds_activations,
            )
            if plan.tokens >= tokens:
                return tp
        tp *= 2
    return None


def _activation_bytes(deployment: Deployment, max_rows: int, max_tokens: int) -> float:
    """The larger peak: of the widest MLP with a full token budget, or of the sampler with all its rows."""
    model = deployment.model
    widest = max(group.intermediate for group in model.layers) / deployment.tp
    mlp = model.mlp_matrices * widest  # gate, up and their product
    if model.num_experts:  # the same for every expert a token goes to, and what comes back from each
        per_expert = model.mlp_matrices * model.expert_intermediate / deployment.expert_split + model.hidden
        mlp = max(mlp, model.experts_per_token * per_expert / deployment.ep)
    in_pass = 2.0 * max_tokens * (mlp + 2 * model.hidden)
    return max(in_pass, SAMPLER_BYTES * max_rows * model.vocab)


def tokens_in_log(text: str, block_size: int) -> int | None:
    """Tokens of KV cache that an engine reported in its log, or in a line of it; None if there is no such line.

    vLLM prints "GPU KV cache size: 945,029 tokens" or "# GPU blocks: 27062", SGLang "max_total_num_tokens=594624" or
    "KV Cache is allocated. #tokens: 594624". Ranks print their own; the smallest counts.
    """
    found = []
    for pattern, unit in _LOG_PATTERNS:
        found += [int(digits.replace(",", "")) * (block_size if unit else 1) for digits in pattern.findall(text)]
    return min(found) if found else None


def read_engine_log(path_or_line: str, block_size: int) -> int:
    """Tokens of KV cache by the log file of an engine, or by one line of it given as text.

    Raises:
        InputError: no such file, or nothing in it says.
    """
    tokens = tokens_in_log(path_or_line, block_size)
    if tokens is not None:
        return tokens
    try:
        with open(path_or_line, encoding="utf-8", errors="replace") as file:
            tokens = tokens_in_log(file.read(), block_size)
    except OSError as error:
        raise InputError(f"{path_or_line!r}: {error.strerror or error}") from None
    if tokens is None:
        raise InputError(
            f"{path_or_line!r}: no line tells the size of the KV cache, such as 'GPU KV cache size: 945,029 tokens' "
            "or 'max_total_num_tokens=594624'"
        )
    return tokens
