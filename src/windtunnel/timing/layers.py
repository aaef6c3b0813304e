"""What the layers of a model take in a pass, attention over the KV cache left out: it depends on tokens alone.

Projections, MLPs, routed experts, norms and the collectives between GPUs. Tokens of prompts and of decodes count the
same here: that is why a mixed pass has one price and reads its weights once.
"""

from __future__ import annotations

import numpy as np

from windtunnel.timing.base import FloatArray
from windtunnel.timing.catalog import LayerGroup
from windtunnel.timing.deployment import WEIGHT_BYTES, Deployment
from windtunnel.timing.kernels import ACTIVATION_BYTES, MS, Kernels

# Engines run shared experts on a stream of their own, beside the routed ones, in passes up to this size: vLLM by
# VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD; SGLang has 1,024 for DeepSeek on NVIDIA.
OVERLAPPED_TOKENS = 256


def expert_coverage(num_experts: int, experts_per_token: int, tokens: FloatArray) -> FloatArray:
    """Distinct experts that `tokens` tokens are routed to, on average, if each chooses uniformly: E (1 - (1 - k/E)^m).

    Real routers favour some experts, so that fewer are hit; published ones are trained to be near this.
    """
    missed: FloatArray = (1.0 - experts_per_token / num_experts) ** tokens
    return num_experts * (1.0 - missed)


def layers_ms(deployment: Deployment, kernels: Kernels, tokens: FloatArray) -> FloatArray:
    """Time in ms of all layers for passes of `tokens` tokens, with the embedding and what stages send each other."""
    model = deployment.model
    residual = tokens * model.hidden * ACTIVATION_BYTES
    total = kernels.elementwise_ms(residual * 2.0)  # the embedding
    norms = 2.0 * kernels.elementwise_ms(residual * 4.0)  # each reads two streams and writes two
    reduced = kernels.all_reduce_ms(residual, deployment.tp)
    for group in model.layers:
        inner = _linear_projections_ms if group.is_linear else _projections_ms
        layer = inner(deployment, kernels, tokens) + norms + reduced
        mlp = _mlp_ms(deployment, kernels, group, tokens)
        if group.has_experts:
            experts = _experts_ms(deployment, kernels, tokens)
            beside = np.where(tokens <= OVERLAPPED_TOKENS, np.maximum(mlp, experts), mlp + experts)
            layer = layer + beside + _dispatch_ms(deployment, kernels, residual)
        else:
            layer = layer + mlp + reduced
        total = total + group.count * layer
    if deployment.pp > 1:
        total = total + (deployment.pp - 1) * kernels.send_ms(residual)
    return total


def sharing_experts_ms(deployment: Deployment, kernels: Kernels, everywhere: FloatArray) -> FloatArray:
    """What of `layers_ms` depends on the tokens of all ranks, which these are: routed experts of all layers."""
    layers = sum(group.count for group in deployment.model.layers if group.has_experts)
    return layers * _routed_ms(deployment, kernels, everywhere)


def lm_head_ms(deployment: Deployment, kernels: Kernels, rows: FloatArray) -> FloatArray:
    """Time in ms of the logits of `rows` sampled tokens."""
    return kernels.gemm_ms(rows, deployment.model.vocab / deployment.tp, deployment.model.hidden, "bf16")


def sparse_host_ms(deployment: Deployment, kernels: Kernels, tokens: FloatArray) -> FloatArray:
    """What sparse attention adds to its projections at least: its many small kernels are launched one by one."""
    launched = kernels.efficiency.sparse.host_us / MS
    waited = np.maximum(launched - _projections_ms(deployment, kernels, tokens), 0.0)
    return deployment.model.num_attention_layers * waited


def _projections_ms(deployment: Deployment, kernels: Kernels, tokens: FloatArray) -> FloatArray:
    """What comes before and after attention: projections, rotary embedding, and writing the KV cache."""
    model = deployment.model
    dtype = deployment.dtype_of("attention")
    output_dtype = deployment.dtype_of("output")
    heads = model.heads / deployment.tp
    latent = model.latent
    if latent is None:
        kv_heads = deployment.kv_heads_per_gpu
        queries = heads * (2.0 if model.gates_attention else 1.0)
        total = kernels.gemm_ms(tokens, (queries + 2 * kv_heads) * model.head_dim, model.hidden, dtype)
        total = total + kernels.gemm_ms(tokens, model.hidden, heads * model.head_dim, output_dtype)
        moved = (2.0 * (heads + kv_heads) + 4.0 * kv_heads) * model.head_dim * ACTIVATION_BYTES
        if model.gates_attention:
            total = total + kernels.elementwise_ms(tokens * heads * model.head_dim * 3.0 * ACTIVATION_BYTES)
        return total + kernels.elementwise_ms(tokens * moved, kernels=0.0)  # their floor is in that of attention
    query_dim = latent.nope_dim + latent.rope_dim
    total = kernels.gemm_ms(tokens, latent.q_rank + latent.kv_rank + latent.rope_dim, model.hidden, dtype)
    total = total + kernels.gemm_ms(tokens, heads * query_dim, latent.q_rank or model.hidden, dtype)
    # keys are folded into queries and values out of the latent result, head by head: two batched products in bf16
    total = total + kernels.gemm_ms(tokens, heads * latent.kv_rank, latent.nope_dim, "bf16")
    total = total + kernels.gemm_ms(tokens, heads * latent.value_dim, latent.kv_rank, "bf16")
    total = total + kernels.gemm_ms(tokens, model.hidden, heads * latent.value_dim, output_dtype)
    moved = (latent.q_rank + 2.0 * (latent.kv_rank + latent.rope_dim) + 2.0 * heads * latent.rope_dim) * 2.0
    total = total + kernels.elementwise_ms(tokens * moved * ACTIVATION_BYTES, kernels=2.0)
    index = model.index
    if index is not None:  # every GPU has all of its heads: they are not split
        width = index.heads * index.head_dim
        total = total + kernels.gemm_ms(tokens, width, latent.q_rank or model.hidden, dtype)
        total = total + kernels.gemm_ms(tokens, index.head_dim + index.heads, model.hidden, "bf16")
        total = total + kernels.elementwise_ms(tokens * width * 4.0 * ACTIVATION_BYTES, kernels=1.0)
    return total


def _linear_projections_ms(deployment: Deployment, kernels: Kernels, tokens: FloatArray) -> FloatArray:
    """Of linear attention: queries, keys, values and their gate at once, two numbers a head, and the way out."""
    model = deployment.model
    linear = model.linear
    assert linear is not None
    dtype = deployment.dtype_of("linear")
    values = linear.value_heads * linear.value_dim / deployment.tp
    inward = linear.channels / deployment.tp + values
    total = kernels.gemm_ms(tokens, inward, model.hidden, dtype)
    total = total + kernels.gemm_ms(tokens, 2.0 * linear.value_heads / deployment.tp, model.hidden, "bf16")
    total = total + kernels.gemm_ms(tokens, model.hidden, values, dtype)
    return total + kernels.elementwise_ms(tokens * values * 3.0 * ACTIVATION_BYTES)  # the gated norm


def _mlp_ms(deployment: Deployment, kernels: Kernels, group: LayerGroup, tokens: FloatArray) -> FloatArray:
    """The dense MLP of a layer, or its shared experts."""
    model = deployment.model
    width = (model.shared_intermediate if group.has_experts else group.intermediate) / deployment.tp
    if not width:
        return np.zeros_like(tokens)
    dtype = deployment.dtype_of("shared" if group.has_experts else "mlp")
    total = kernels.gemm_ms(tokens, (model.mlp_matrices - 1) * width, model.hidden, dtype)
    total = total + kernels.gemm_ms(tokens, model.hidden, width, dtype)
    return total + kernels.elementwise_ms(tokens * width * model.mlp_matrices * ACTIVATION_BYTES)


def _experts_ms(deployment: Deployment, kernels: Kernels, tokens: FloatArray) -> FloatArray:
    """The router and the routed experts that are on one GPU, where other ranks have as many tokens."""
    model = deployment.model
    router = kernels.gemm_ms(tokens, model.num_experts, model.hidden, "bf16")
    return router + _routed_ms(deployment, kernels, tokens * deployment.dp)


def _routed_ms(deployment: Deployment, kernels: Kernels, everywhere: FloatArray) -> FloatArray:
    """The routed experts on one GPU, for the tokens of all ranks that share them."""
    model = deployment.model
    distinct = expert_coverage(model.num_experts, model.experts_per_token, everywhere) / deployment.ep
    pairs = everywhere * (model.experts_per_token / deployment.ep)
    parameters = model.expert_parameters / deployment.expert_split
    width = model.expert_intermediate / deployment.expert_split
    return kernels.experts_ms(
        pairs,
        distinct * (parameters * WEIGHT_BYTES[deployment.weight_dtype]),
        parameters,
        (2.0 * model.hidden + model.mlp_matrices * width) * ACTIVATION_BYTES,
        deployment.weight_dtype,
    )


def _dispatch_ms(deployment: Deployment, kernels: Kernels, residual_bytes: FloatArray) -> FloatArray:
    """How tokens get to experts on other GPUs and back: reduced among the GPUs of a rank, gathered among ranks."""
    dp = deployment.dp
    if dp == 1:
        return kernels.all_reduce_ms(residual_bytes, deployment.tp)
    return 2.0 * kernels.all_gather_ms(residual_bytes * dp, dp * deployment.tp)
