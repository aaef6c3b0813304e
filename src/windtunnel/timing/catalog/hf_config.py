"""Reads the shape of a model from the fields of a Hugging Face `config.json`.

It goes by fields, not by the names of architectures: whatever has attention, MLPs and experts of the kinds that
`ModelShape` describes can be read. A field that means something else (state-space layers, attention to blocks) is an
error and never ignored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from windtunnel.errors import InputError
from windtunnel.timing.catalog.fields import Fields
from windtunnel.timing.catalog.model_shape import LatentAttention, LayerGroup, LinearAttention, ModelShape, SparseIndex
from windtunnel.timing.catalog.quantization import read_quantization

# Fields that only models with other kinds of layers have, and what those are.
UNMODELLED = {
    "sparse_attention_config": "sparse attention",
    "linear_attn_config": "linear attention",
    "mamba_num_heads": "state-space layers",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "hybrid_override_pattern": "state-space layers",
    "attention_chunk_size": "chunked attention",
    "block_configs": "layers of many widths",
    "num_kv_shared_layers": "layers that share a KV cache",
    "global_head_dim": "attention heads of two widths",
    "compress_ratios": "compressed attention",
    "is_encoder_decoder": "an encoder",
}
UNGATED = ("relu", "relu2", "gelu", "gelu_new", "gelu_fast")  # activations of MLPs with two matrices
GATED_GELU = ("gemma", "gemma2", "gemma3", "gemma3_text")
QK_NORM = (
    *("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    *("gemma3", "gemma3_text", "minimax_m2", "olmo2"),
)


def read_model_shape(config: dict[str, Any], name: str) -> ModelShape:
    """The model that the fields of a `config.json` describe; `name` is how messages call it.

    Raises:
        InputError: a field is missing, is of the wrong kind, or says that the model is of a kind that is not
            modelled.
    """
    fields = Fields(config, name)
    for field, kind in UNMODELLED.items():
        if fields.get(field):
            raise InputError(f"{name}: '{field}' says that the model has {kind}, which no timing model here prices")
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    latent = None
    if fields.get("kv_lora_rank"):
        latent = LatentAttention(
            kv_rank=fields.integer("kv_lora_rank"),
            q_rank=fields.integer("q_lora_rank", 0),
            nope_dim=fields.integer("qk_nope_head_dim"),
            rope_dim=fields.integer("qk_rope_head_dim"),
            value_dim=fields.integer("v_head_dim"),
        )
    index = None
    if fields.get("index_topk"):
        if latent is None:
            raise InputError(f"{name}: 'index_topk' picks tokens of latent attention, but there is no 'kv_lora_rank'")
        index = SparseIndex(
            heads=fields.integer("index_n_heads"),
            head_dim=fields.integer("index_head_dim"),
            top_k=fields.integer("index_topk"),
        )
    head_dim = fields.integer("head_dim", 0)
    if not head_dim:
        if hidden % heads and latent is None:
            raise InputError(f"{name}: no 'head_dim', and {heads} heads do not divide a 'hidden_size' of {hidden}")
        head_dim = hidden // heads
    num_experts = fields.first_integer("num_experts", "num_local_experts", "n_routed_experts")
    expert_intermediate = 0
    shared_intermediate = 0
    if num_experts:
        intermediate = fields.integer("intermediate_size", 0)
        expert_intermediate = fields.integer("moe_intermediate_size", intermediate)
        shared_intermediate = fields.integer("shared_expert_intermediate_size", 0)
        shared_intermediate = shared_intermediate or fields.integer("n_shared_experts", 0) * expert_intermediate
    weight_dtype, bf16_parts = read_quantization(fields)
    layers = _layers(fields, num_experts)
    model_type = str(fields.get("model_type") or "")
    activation = str(fields.get("hidden_act") or fields.get("hidden_activation") or "silu")
    return ModelShape(
        name=name,
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        latent=latent,
        index=index,
        linear=_linear(fields) if any(group.is_linear for group in layers) else None,
        gates_attention=bool(fields.get("attn_output_gate", model_type == "qwen3_next")),
        layers=layers,
        mlp_matrices=2 if activation in UNGATED and model_type not in GATED_GELU else 3,
        num_experts=num_experts,
        experts_per_token=fields.first_integer("num_experts_per_tok", "experts_per_token") if num_experts else 0,
        expert_intermediate=expert_intermediate,
        shared_intermediate=shared_intermediate,
        tied_embeddings=bool(fields.get("tie_word_embeddings", model_type in GATED_GELU)),
        qk_norm=bool(fields.get("use_qk_norm", model_type in QK_NORM)),
        weight_dtype=weight_dtype,
        bf16_parts=bf16_parts,
        max_position=fields.integer("max_position_embeddings", 0),
    )


def _linear(fields: Fields) -> LinearAttention:
    """The gated delta rule, whose fields are those of Qwen3-Next; states are float32 unless the config says less."""
    return LinearAttention(
        key_heads=fields.integer("linear_num_key_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_heads=fields.integer("linear_num_value_heads"),
        value_dim=fields.integer("linear_value_head_dim"),
        kernel=fields.integer("linear_conv_kernel_dim"),
        state_bytes=2 if fields.get("mamba_ssm_dtype") == "bfloat16" else 4,
    )


def _layers(fields: Fields, num_experts: int) -> tuple[LayerGroup, ...]:
    num_layers = fields.integer("num_hidden_layers")
    kinds = _kinds(fields, num_layers)
    windows = _windows(fields, kinds)
    dense_first = fields.integer("first_k_dense_replace", 0)
    step = fields.integer("decoder_sparse_step", 1) or 1
    frequency = fields.integer("moe_layer_freq", 1) if isinstance(fields.get("moe_layer_freq", 1), int) else 1
    dense_layers = set(fields.get("mlp_only_layers", []))
    intermediate = fields.integer("intermediate_size", 0 if num_experts else None)
    groups: Counter[LayerGroup] = Counter()
    for layer in range(num_layers):
        has_experts = (
            num_experts > 0
            and layer >= dense_first
            and layer not in dense_layers
            and (layer + 1) % step == 0
            and layer % frequency == 0
        )
        is_linear = kinds is not None and kinds[layer] == "linear_attention"
        groups[LayerGroup(0, windows[layer], 0 if has_experts else intermediate, has_experts, is_linear)] += 1
    return tuple(replace(group, count=count) for group, count in groups.items())


def _kinds(fields: Fields, num_layers: int) -> list[str] | None:
    """What each layer is, None where the config does not say layer by layer."""
    kinds = fields.get("layer_types")
    if kinds is None:
        if not fields.get("linear_num_key_heads"):
            return None
        interval = fields.integer("full_attention_interval", 4)  # Qwen3-Next's own default
        return ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise InputError(f"{fields.name}: 'layer_types' does not name each of {num_layers} layers")
    known = ["full_attention", "sliding_attention"]
    if fields.get("linear_num_key_heads"):  # without them, linear attention is of a kind that is not known here
        known.append("linear_attention")
    other = next((kind for kind in kinds if kind not in known), None)
    if other is not None:
        raise InputError(f"{fields.name}: no timing model here prices layers of type {other!r}")
    return kinds


def _windows(fields: Fields, kinds: list[str] | None) -> list[int]:
    """How far back each layer attends, 0 for all the way."""
    num_layers = fields.integer("num_hidden_layers")
    window = fields.integer("sliding_window", 0)
    if kinds is not None:
        if "sliding_attention" in kinds and not window:
            raise InputError(f"{fields.name}: 'layer_types' has sliding attention but 'sliding_window' is missing")
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    if not window or fields.get("use_sliding_window") is False:
        return [0] * num_layers
    if fields.get("use_sliding_window"):  # Qwen2 and 3: the layers from `max_window_layers` on
        first = fields.integer("max_window_layers", 0)
        return [window if layer >= first else 0 for layer in range(num_layers)]
    model_type = fields.get("model_type")
    pattern = fields.integer("sliding_window_pattern", 6 if model_type in ("gemma3", "gemma3_text") else 0)
    if model_type == "gemma2":
        pattern = 2
    if pattern:  # every so many layers one attends to everything
        return [0 if (layer + 1) % pattern == 0 else window for layer in range(num_layers)]
    return [window] * num_layers
