"""The timing model `aiconfigurator`: a deployment in the words of that library, its tables, and what to beware of.

The KV cache has the dtype of the deployment, which is not what the library assumes for FP8 weights. A table that looks
broken is used nevertheless, and every report says so.
"""

from __future__ import annotations

import json
from pathlib import Path

from windtunnel.errors import InputError
from windtunnel.timing.aic_library import AicDeployment, library_version, shipped_models
from windtunnel.timing.aic_tables import has_tables, load_tables
from windtunnel.timing.catalog import model_config
from windtunnel.timing.data_guard import jump_findings, ratio_findings
from windtunnel.timing.deployment import Deployment
from windtunnel.timing.roofline import RooflineTiming
from windtunnel.timing.tabulated import TabulatedTiming

SYSTEMS = {"rtx-pro-6000": "rtx_pro_6000_server"}  # whose name there is not ours with underscores
DTYPES = {"bf16": "bfloat16", "int4": "int4_wo", "int4_g32": "int4_wo", "mxfp4": "w4a16_mxfp4"}  # likewise
KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}


def aiconfigurator_timing(deployment: Deployment, backend: str, max_decodes: int) -> TabulatedTiming:
    """The model of a deployment, for batches up to `max_decodes`.

    Args:
        backend: the engine whose kernels price it: `vllm`, `sglang` or `trtllm`.

    Raises:
        InputError: the library is missing, or has no data for the deployment.
    """
    asked = aic_deployment(deployment, backend)
    if library_version() is None:  # whose names are then unknown: what is on disk may be under either
        by_name = aic_deployment(deployment, backend, ships_model=True)
        asked = by_name if has_tables(by_name) else asked
    tables = load_tables(asked, max_decodes)
    timing = TabulatedTiming(tables)
    findings = jump_findings(tables.decode_ms, tables.contexts)
    findings += ratio_findings(timing, RooflineTiming(deployment), "the roofline")
    tables.notes += [f"{asked.model} on {asked.system}: {finding}" for finding in findings]
    return timing


def aic_deployment(deployment: Deployment, backend: str, ships_model: bool | None = None) -> AicDeployment:
    """The same deployment as the library names it.

    Args:
        ships_model: whether it has the configuration of this model; None to ask it.

    Raises:
        InputError: it has pipeline stages, which its tables do not price as this engine runs them.
    """
    if deployment.pp > 1:
        raise InputError("aiconfigurator prices one pipeline stage only: expected 1", field="timing.pp")
    name, text = model_config(deployment.model.name)
    is_shipped = name in shipped_models() if ships_model is None else ships_model and bool(name)
    gpu = deployment.gpu.name
    gemm = moe = None
    if not is_shipped or deployment.weight_dtype != deployment.model.weight_dtype:  # not what its checkpoint says
        weights = DTYPES.get(deployment.weight_dtype, deployment.weight_dtype)
        dense = deployment.dtype_of("attention")
        gemm = DTYPES.get(dense, dense)
        moe = weights if deployment.model.num_experts else None
    has_experts = bool(deployment.model.num_experts)
    return AicDeployment(
        model=name if is_shipped else _short_name(deployment.model.name),
        config=None if is_shipped else json.dumps(json.loads(text), sort_keys=True),
        system=SYSTEMS.get(gpu, gpu.replace("-", "_")),
        backend=backend,
        tp=deployment.tp,
        attention_dp=deployment.dp,
        moe_tp=deployment.expert_split if has_experts else None,
        moe_ep=deployment.ep if has_experts else None,
        gemm=gemm,
        moe=moe,
        kv=KV_DTYPES[deployment.kv_dtype],
    )


def _short_name(name: str) -> str:
    """What messages call a model that is known by its directory or file."""
    path = Path(name)
    return path.parent.name if path.name == "config.json" else path.name
