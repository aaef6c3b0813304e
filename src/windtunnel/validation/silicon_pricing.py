"""Timing models for the rows of the silicon sample: the roofline, or AIConfigurator's tables, as if nothing were known.

Where a row's exact dtype has no kernel measurements, the next one that the engine could have run is taken: block-scaled
FP8 for FP8, what the checkpoint has for the rest.
"""

from __future__ import annotations

from functools import cache

from pydantic import ValidationError

from windtunnel.config.schema import Config
from windtunnel.errors import InputError
from windtunnel.timing.aic_library import AicDeployment
from windtunnel.timing.aic_tables import load_tables
from windtunnel.timing.base import TimingModel
from windtunnel.timing.overhead import Overhead, WithOverhead
from windtunnel.timing.roofline import RooflineTiming
from windtunnel.timing.tabulated import TabulatedTiming
from windtunnel.validation.silicon import SiliconRow

AMPLE_BLOCKS = 1_000_000  # where no memory model says how many there are

# Names of the sample that others have under another one; of the same shape.
CATALOG_NAMES = {
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5-FP8",
}
# Checkpoints of four bits, which leave other parts in bf16 than those of eight.
FP4_NAMES = {
    "deepseek-ai/DeepSeek-R1": "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/DeepSeek-R1-NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "deepseek-ai/DeepSeek-V3": "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/DeepSeek-V3.1-NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "zhipuai/GLM-5": "nvidia/GLM-5-NVFP4",
    "moonshotai/Kimi-K2.5": "nvidia/Kimi-K2.5-NVFP4",
    "MiniMaxAI/MiniMax-M2.5": "nvidia/MiniMax-M2.5-NVFP4",
    "Qwen/Qwen3.5-397B-A17B": "nvidia/Qwen3.5-397B-A17B-NVFP4",
}
AIC_NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
DENSE = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B")
DTYPES = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4"}


def roofline_pricer(row: SiliconRow) -> TimingModel | str:
    """The roofline with the default overhead, or why the catalog cannot price the row."""
    return _roofline(*_deployed(row))


@cache
def _roofline(
    model: str, gpu: str, tp: int, dp: int, ep: int, dtype: str, kv: str, state: str | None
) -> TimingModel | str:
    config = _config(model, gpu, tp, dp, ep, dtype, kv, state)
    if isinstance(config, str):
        return config
    deployment = config.timing.deployment(dp)
    assert deployment is not None
    return RooflineTiming(deployment, Overhead())


def aiconfigurator_pricer(row: SiliconRow) -> TimingModel | str:
    """AIConfigurator's tables with the default overhead, or why it has no data for the row."""
    found = _tables(*_aic_key(row), max(64, -(-row.concurrency // 64) * 64))
    return found if isinstance(found, str) else WithOverhead(found, Overhead())


def blocks_of(row: SiliconRow) -> int:
    """KV blocks of 16 tokens by the memory model, or ample ones where that knows the model or the GPU not."""
    sized = _config(*_deployed(row))
    return AMPLE_BLOCKS if isinstance(sized, str) else sized.engine.num_gpu_blocks


def _deployed(row: SiliconRow) -> tuple[str, str, int, int, int, str, str, str | None]:
    dtype = DTYPES.get(row.moe or "", "") if not row.model.endswith(DENSE) else DTYPES.get(row.gemm or "", "")
    if "gpt-oss" in row.model or dtype == "int4":
        dtype = ""  # as the checkpoint has them
    name = CATALOG_NAMES.get(row.model, row.model)
    if dtype == "nvfp4":
        name = FP4_NAMES.get(row.model, name)
    launch = row.launch
    return name, row.gpu, row.tp, row.dp, row.moe_ep, dtype, launch.kv, launch.state


@cache
def _config(model: str, gpu: str, tp: int, dp: int, ep: int, dtype: str, kv: str, state: str | None) -> Config | str:
    timing = {
        "kind": "roofline",
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "dtype": dtype or None,
        "kv_dtype": "fp8" if kv == "fp8" else "bf16",
        "state_dtype": state,
    }
    if ep > 1:
        timing["ep"] = ep
    engine = {"block_size": 16, "max_num_seqs": 256}
    try:
        return Config.model_validate({"timing": timing, "engine": engine, "cluster": {"dp_size": dp}})
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")[:160]
    except InputError as error:
        return str(error)[:160]


def _aic_key(row: SiliconRow) -> tuple[str, str, str, int, int, int, int, str | None, str | None, str]:
    system = row.gpu if row.gpu.startswith("gb") else f"{row.gpu}_sxm"
    name = AIC_NAMES.get(row.model, row.model)
    gemm, moe = row.gemm, row.moe
    if row.moe == "nvfp4":
        name = FP4_NAMES.get(row.model, name)
    if "gpt-oss" in name or name in FP4_NAMES.values() or row.moe == "int4_wo":
        gemm = moe = None  # as the checkpoint has them: its attention is not of four bits
    return name, system, row.engine, row.tp, row.dp, row.moe_tp, row.moe_ep, gemm, moe, row.launch.kv


@cache
def _tables(
    name: str,
    system: str,
    engine: str,
    tp: int,
    dp: int,
    moe_tp: int,
    moe_ep: int,
    gemm: str | None,
    moe: str | None,
    kv: str,
    max_decodes: int,
) -> TabulatedTiming | str:
    has_experts = not name.endswith(DENSE)
    kinds = [(gemm, moe), (gemm, "fp8_block" if moe == "fp8" else moe)]
    kinds += [("fp8_block", "fp8_block")] if gemm == "fp8" else []
    kinds += [(None, None)]
    failure = ""
    for other_kv in dict.fromkeys((kv, "bfloat16", "fp8")):
        for weights, experts in dict.fromkeys(kinds):
            asked = AicDeployment(
                name,
                system,
                engine,
                tp=tp,
                attention_dp=dp,
                moe_tp=moe_tp if has_experts else None,
                moe_ep=moe_ep if has_experts else None,
                gemm=weights,
                moe=experts if has_experts else None,
                kv=other_kv,
            )
            try:
                return TabulatedTiming(load_tables(asked, max_decodes))
            except InputError as error:
                failure = failure or str(error)
    return failure[:160]
