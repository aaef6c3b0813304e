"""Reads the shape of a model from the fields of a Hugging Face `config.json`.

It goes by fields, not by the names of architectures: whatever has attention, MLPs and experts of the kinds that
`ModelShape` describes can be read. A field that means something else (state-space layers, sparse attention) is an
error and never ignored.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from windtunnel.errors import InputError
from windtunnel.timing.catalog.model_shape import LatentAttention, LayerGroup, ModelShape

# Fields that only models with other kinds of layers have, and what those are.
UNMODELLED = {
    "index_topk": "sparse attention with an indexer",
    "sparse_attention_config": "sparse attention",
    "linear_num_key_heads": "linear attention",
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
QK_NORM = ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "gemma3", "gemma3_text", "minimax_m2", "olmo2")


def read_model_shape(config: dict[str, Any], name: str) -> ModelShape:
    """The model that the fields of a `config.json` describe; `name` is how messages call it.

    Raises:
        InputError: a field is missing, is of the wrong kind, or says that the model is of a kind that is not
            modelled.
    """
    fields = _Fields(config, name)
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
    weight_dtype, only_experts = _weight_dtype(fields)
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
        layers=_layers(fields, num_experts),
        mlp_matrices=2 if activation in UNGATED and model_type not in GATED_GELU else 3,
        num_experts=num_experts,
        experts_per_token=fields.first_integer("num_experts_per_tok", "experts_per_token") if num_experts else 0,
        expert_intermediate=expert_intermediate,
        shared_intermediate=shared_intermediate,
        tied_embeddings=bool(fields.get("tie_word_embeddings", model_type in GATED_GELU)),
        qk_norm=bool(fields.get("use_qk_norm", model_type in QK_NORM)),
        weight_dtype=weight_dtype,
        only_experts_quantized=only_experts,
        max_position=fields.integer("max_position_embeddings", 0),
    )


class _Fields:
    """The fields of a config, with those of a model inside a model (`text_config`) before its own."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        text = config.get("text_config")
        self.all: dict[str, Any] = {**config, **text} if isinstance(text, dict) else config
        self.name = name

    def get(self, field: str, default: object = None) -> Any:
        value = self.all.get(field)
        return default if value is None else value

    def integer(self, field: str, default: int | None = None) -> int:
        value = self.get(field, default)
        if value is None:
            raise InputError(f"{self.name}: no '{field}', which a model needs")
        if not isinstance(value, int) or isinstance(value, bool) or value < (1 if default is None else 0):
            raise InputError(f"{self.name}: '{field}' is {value!r}, expected a positive integer")
        return value

    def first_integer(self, *names: str) -> int:
        """The first of these fields that is there, 0 if none is."""
        return next((self.integer(field) for field in names if self.get(field)), 0)


def _layers(fields: _Fields, num_experts: int) -> tuple[LayerGroup, ...]:
    num_layers = fields.integer("num_hidden_layers")
    windows = _windows(fields, num_layers)
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
        groups[LayerGroup(0, windows[layer], 0 if has_experts else intermediate, has_experts)] += 1
    return tuple(
        LayerGroup(count, group.window_tokens, group.intermediate, group.has_experts) for group, count in groups.items()
    )


def _windows(fields: _Fields, num_layers: int) -> list[int]:
    """How far back each layer attends, 0 for all the way."""
    window = fields.integer("sliding_window", 0)
    types = fields.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != num_layers:
            raise InputError(f"{fields.name}: 'layer_types' does not name each of {num_layers} layers")
        other = next((kind for kind in types if kind not in ("full_attention", "sliding_attention")), None)
        if other is not None:
            raise InputError(f"{fields.name}: no timing model here prices layers of type {other!r}")
        if "sliding_attention" in types and not window:
            raise InputError(f"{fields.name}: 'layer_types' has sliding attention but 'sliding_window' is missing")
        return [window if kind == "sliding_attention" else 0 for kind in types]
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


def _weight_dtype(fields: _Fields) -> tuple[str, bool]:
    """What the matrices are stored as, and whether only those of the experts are."""
    quantization = fields.get("quantization_config")
    if not isinstance(quantization, dict):
        return "bf16", False
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(quantization.get("quant_algo", "")).upper()
    if method == "mxfp4":
        return "mxfp4", True  # gpt-oss: attention, router and embeddings stay bf16
    if algorithm == "NVFP4":
        return "nvfp4", False
    if method in ("fp8", "fbgemm_fp8") or algorithm == "FP8":
        return ("fp8_block" if quantization.get("weight_block_size") else "fp8"), False
    if method in ("awq", "gptq") and quantization.get("bits", 4) == 4:
        return "int4", False
    if method == "compressed-tensors":
        groups = quantization.get("config_groups") or {}
        weights = next((group.get("weights") or {} for group in groups.values() if isinstance(group, dict)), {})
        if weights.get("num_bits") == 8 and weights.get("type") == "float":
            return ("fp8_block" if weights.get("strategy") == "block" else "fp8"), False
        if weights.get("num_bits") == 4 and weights.get("type") == "int":
            return "int4", any("self_attn" in str(ignored) for ignored in quantization.get("ignore") or [])
    kind = algorithm or method or "an unnamed method"
    raise InputError(f"{fields.name}: no timing model here prices weights quantised by {kind!r}")
