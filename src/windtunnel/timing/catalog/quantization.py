"""What a checkpoint's matrices are stored as, by its `quantization_config`, and which parts are left in bf16.

Checkpoints of four bits usually leave attention alone, and some the shared experts: which ones, their lists of modules
that are not converted say. A part counts as left alone if a pattern names it, or more than one layer.
"""

from __future__ import annotations

import re
from typing import Any

from windtunnel.errors import InputError
from windtunnel.timing.catalog.fields import Fields
from windtunnel.timing.catalog.model_shape import PARTS

IGNORED = ("ignore", "exclude_modules", "modules_to_not_convert")  # by method
# Part and the modules that make it; `self_attn` without a module is all of it.
_MODULES = (
    ("attention", re.compile(r"self_attn(?!\w)(?!\.\w)|\b(?:q|k|v|qkv|q_a|q_b|kv_a|kv_b)_proj|kv_a_proj_with_mqa")),
    ("output", re.compile(r"self_attn(?!\w)(?!\.\w)|self_attn\.o_proj")),
    ("linear", re.compile(r"linear_attn(?!\w)(?!\.\w)|linear_attn\.in_proj_qkvz?\b")),
    ("mlp", re.compile(r"mlp\\?\.\(?(?:gate|up|gate_up|down)(?:_proj|\|)")),
    ("shared", re.compile(r"shared_experts?(?!\w)")),
)
_LAYER = re.compile(r"\blayers\.(\d+)\b")


def read_quantization(fields: Fields) -> tuple[str, frozenset[str]]:
    """What the matrices are stored as, and which of `PARTS` are bf16 nevertheless.

    Raises:
        InputError: it is a kind of quantisation that is not priced.
    """
    quantization = fields.get("quantization_config")
    if not isinstance(quantization, dict):
        return "bf16", frozenset()
    dtype = _dtype(fields, quantization)
    if dtype == "mxfp4":  # gpt-oss: attention, router and embeddings stay bf16
        return dtype, frozenset(PARTS)
    return dtype, _left_alone(quantization)


def _dtype(fields: Fields, quantization: dict[str, Any]) -> str:
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(quantization.get("quant_algo", "")).upper()
    if method == "mxfp4":
        return "mxfp4"
    if algorithm == "NVFP4":
        return "nvfp4"
    if method in ("fp8", "fbgemm_fp8") or algorithm == "FP8":
        return "fp8_block" if quantization.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq") and quantization.get("bits", 4) == 4:
        return "int4"
    if method == "compressed-tensors":
        groups = quantization.get("config_groups") or {}
        weights = next((group.get("weights") or {} for group in groups.values() if isinstance(group, dict)), {})
        if weights.get("num_bits") == 8 and weights.get("type") == "float":
            return "fp8_block" if weights.get("strategy") == "block" else "fp8"
        if weights.get("num_bits") == 4 and weights.get("type") == "float" and weights.get("group_size") == 16:
            return "nvfp4"
        if weights.get("num_bits") == 4 and weights.get("type") == "int":
            return "int4_g32" if weights.get("group_size") == 32 else "int4"
    kind = algorithm or method or "an unnamed method"
    raise InputError(f"{fields.name}: no timing model here prices weights quantised by {kind!r}")


def _left_alone(quantization: dict[str, Any]) -> frozenset[str]:
    names = [str(name) for key in IGNORED for name in quantization.get(key) or []]
    found = set()
    for part, modules in _MODULES:
        layers = set()
        for name in names:
            if modules.search(name):
                layer = _LAYER.search(name)
                layers.add(layer.group(1) if layer else "*")
        if len(layers) > 1 or "*" in layers:
            found.add(part)
    return frozenset(found)
