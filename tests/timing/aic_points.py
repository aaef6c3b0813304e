"""The published points of AIConfigurator 0.12.0, and the roofline's error at each: `python tests/timing/aic_points.py`.

Points are totals of kernels, for one model on one GPU under one engine. Which of them factors were chosen on, and which
the study behind them found broken, is written down here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.deployment import Deployment, deploy
from windtunnel.timing.points import price_decode_ms, price_prompts_ms
from windtunnel.timing.roofline import RooflineTiming

FOLDER = Path(os.environ.get("WINDTUNNEL_SHARED", Path(__file__).parents[3] / "shared")) / "validation" / "aic_points"

# Factors were chosen on these; on the last two only those of an all-reduce and of routed experts.
CHOSEN_ON = (
    "qwen3-1.7b_h100_sxm_vllm_tp1",
    "qwen3-8b_h100_sxm_vllm_tp1",
    "llama-3.1-8b_h100_sxm_vllm_tp1",
    "llama-3.1-70b_h100_sxm_vllm_tp4",
    "qwen3-32b_h200_sxm_vllm_tp2",
    "llama-3.1-8b_l40s_vllm_tp1",
    "llama-3.1-8b-fp8_h200_sxm_vllm_tp1_kvbf16",
    "qwen3-32b-fp8pt_h200_sxm_vllm_tp1_kvbf16",
    "llama-3.1-70b_h100_sxm_vllm_tp8",
    "qwen3-30b-a3b_h200_sxm_vllm_tp1",
    "gpt-oss-120b_h100_sxm_vllm_tp2",
    "deepseek-v3_h200_sxm_sglang_tp8ep1_kvbf16",
)
# Set aside. Block-scaled FP8 GEMMs under vLLM were collected without CUDA graphs: far too slow at small batches.
# DeepSeek with the library's default FP8 cache takes twice as long as with bf16, the opposite of what it should, and
# under SGLang an FP8 cache hardly helps Qwen3-32B either.
SET_ASIDE = ("qwen3-32b-fp8_b200", "qwen3-32b-fp8_h100", "qwen3-32b-fp8_h200_sxm_vllm")
SET_ASIDE_WITHOUT_KVBF16 = ("deepseek-v3", "qwen3-32b-fp8_h200_sxm_sglang")


@dataclass(frozen=True)
class Errors:
    """Relative errors of the roofline at the points of one configuration."""

    name: str
    deployment: Deployment
    decode: list[float]
    prefill: list[float]

    @property
    def kind(self) -> str:
        """`bf16` and `fp8` of dense models, `experts`, `latent`, or `set aside`."""
        if self.name.startswith(SET_ASIDE):
            return "set aside"
        if self.name.startswith(SET_ASIDE_WITHOUT_KVBF16) and not self.name.endswith("kvbf16"):
            return "set aside"
        if self.deployment.model.latent is not None:
            return "latent"
        if self.deployment.model.num_experts:
            return "experts"
        return self.deployment.weight_dtype.partition("_")[0]

    @property
    def is_held_out(self) -> bool:
        return self.name not in CHOSEN_ON


def read_errors() -> list[Errors]:
    """The errors at all points of the folder."""
    files = sorted(path for path in FOLDER.glob("*.json") if not path.name.startswith("roofline_"))
    return [_errors(path) for path in files]


def _errors(path: Path) -> Errors:
    data = json.loads(path.read_text())
    parallel = data["parallel"]
    model = load_model(data["model"].removesuffix("-Static-PerTensor"))
    per_tensor = "fp8pt" in path.stem or parallel.get("gemm_quant_mode") == "fp8"
    fp8_cache = model.weight_dtype.startswith("fp8") and not path.stem.endswith("kvbf16")  # the library's default
    deployment = deploy(
        model,
        load_gpu(data["system"]),
        tp=parallel["tp_size"],
        dp=parallel.get("attention_dp_size", 1),
        ep=parallel.get("moe_ep_size", 1),
        dtype="fp8" if per_tensor else None,
        kv_dtype="fp8" if fp8_cache else "bf16",
    )
    timing = RooflineTiming(deployment)
    decode = [
        price_decode_ms(timing, point["batch"], point["context"] + 1) / point["ms"] - 1.0
        for point in data["decode"]
        if "ms" in point
    ]
    prefill = [  # the library charges one row of the LM head, whatever the batch
        price_prompts_ms(timing, point["batch"], point["new_tokens"], point["prefix"], 1) / point["ms"] - 1.0
        for point in data["prefill"]
        if "ms" in point
    ]
    return Errors(path.stem, deployment, decode, prefill)


def median_error(errors: list[float]) -> float:
    """Median of the absolute relative errors; NaN without any."""
    return float(np.median(np.abs(errors))) if errors else float("nan")


def _row(errors: Errors) -> str:
    def cell(values: list[float]) -> str:
        if not values:
            return "-"
        return f"{median_error(values):.1%} ({np.median(values):+.1%}, {max(np.abs(values)):.0%})"

    mark = "held out" if errors.is_held_out else "chosen on"
    return f"| {errors.name} | {mark} | {cell(errors.decode)} | {cell(errors.prefill)} |"


def main() -> None:
    everything = read_errors()
    for kind in ("bf16", "fp8", "experts", "latent", "set aside"):
        print(f"\n{kind}\n\n| points | | decode | prompts |\n|---|---|---|---|")
        for errors in sorted((e for e in everything if e.kind == kind), key=lambda e: (e.is_held_out, e.name)):
            print(_row(errors))


if __name__ == "__main__":
    main()
