"""How the servers of the silicon sample were launched, as far as its rows do not say.

Taken from the launch scripts of the benchmark that it is derived from (InferenceX, SemiAnalysisAI, Apache-2.0;
benchmarks/single_node, as of August 2026). Scripts changed between measurements; where a row's release had another
one, this is wrong for it.
"""

from __future__ import annotations

from dataclasses import dataclass

VLLM_PREFILL_TOKENS = 8192  # vLLM's own default for a server on such GPUs
SGLANG_PREFILL_TOKENS = 8192  # SGLang's own below 160 GB
BLACKWELL = ("b200", "b300", "gb200", "gb300")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch script says.

    Attributes:
        kv: dtype of the KV cache, `bfloat16` or `fp8`; state: of linear attention, None as the model has it.
        prefill_tokens: of a pass.
        receive_interval: passes of decodes between two looks for new requests (SGLang).
    """

    kv: str
    state: str | None
    prefill_tokens: int
    receive_interval: int = 1


def launch(engine: str, model: str, gpu: str, precision: str, tp: int, isl: int, concurrency: int) -> Launch:
    """The launch of a row; `model` without its owner, `precision` as in `fp8`, `?` if it was not said."""
    if engine == "trtllm":
        return Launch("fp8" if precision in ("fp8", "fp4") else "bfloat16", None, VLLM_PREFILL_TOKENS)
    if engine == "vllm":
        tokens = 2 * isl if model == "MiniMax-M2.5" and gpu in BLACKWELL else VLLM_PREFILL_TOKENS
        return Launch(_vllm_kv(model, gpu, precision), None, tokens)
    blackwell = gpu in BLACKWELL
    polls = (30 if concurrency >= 16 else 10) if blackwell and model != "GLM-5" else 1
    if model.startswith("DeepSeek"):
        tokens = 16384 if precision == "fp4" else 8192 if blackwell and tp == 4 else 32768
        return Launch("fp8" if blackwell else "bfloat16", None, tokens, polls)
    if model == "GLM-5":
        return Launch("fp8" if blackwell else "bfloat16", None, 32768 if blackwell else SGLANG_PREFILL_TOKENS)
    if model.startswith("Qwen3.5"):
        if precision == "bf16":
            return Launch("bfloat16", None, 32768, polls)
        return Launch("fp8", "bf16", 32768 if precision == "fp4" and gpu == "b300" else 16384, polls)
    return Launch("bfloat16", None, SGLANG_PREFILL_TOKENS)


def _vllm_kv(model: str, gpu: str, precision: str) -> str:
    if model == "Llama-3.1-70B" and precision in ("fp8", "fp4"):
        return "fp8"
    if model == "MiniMax-M2.5" and gpu != "h100":
        return "fp8"
    if (model == "gpt-oss-120b" and gpu in BLACKWELL) or (model == "Kimi-K2.5" and precision == "fp4"):
        return "fp8"
    return "bfloat16"
