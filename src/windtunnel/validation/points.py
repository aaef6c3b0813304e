"""Single passes: a real sweep against any model, and tables of AIConfigurator against what it said when asked directly.

The sweep is 38 decodes of Llama-3.1-8B-FP8 on one H200 under vLLM, up to the engine's 1,024 running requests (published
with NVIDIA Dynamo, Apache-2.0). The direct answers are files of points for some 40 deployments; tables are made at
run time from the library, never from them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError
from windtunnel.timing.aic_library import AicDeployment
from windtunnel.timing.aic_tables import load_tables
from windtunnel.timing.base import PassShape, TimingModel
from windtunnel.timing.planner_profile import PlannerProfile
from windtunnel.timing.profile import load_profile
from windtunnel.timing.tabulated import TabulatedTiming
from windtunnel.validation.errors import Comparison

SWEEP = "dynamo-h200-llama-3.1-8b-fp8.json"
MOST_RUNNING = 1024  # of the engine that was swept: beyond, the batch is unknown
POINTS = "aic_points"


def compare_sweep(timing: TimingModel, name: str) -> list[Comparison]:
    """The decodes of the sweep, priced by a model that `name` is the name of."""
    profile = load_profile(str(files("windtunnel.validation") / "data" / SWEEP))
    assert isinstance(profile, PlannerProfile)
    found = []
    for batch, context, ms in zip(profile.batches, profile.contexts, profile.itl_ms, strict=True):
        if batch <= MOST_RUNNING:
            shape = PassShape(int(batch), int(batch * context))
            found.append(Comparison((name,), "decode", timing.price_pass_ms(shape), float(ms)))
    return found


def point_files(directory: Path) -> list[Path]:
    """The files of points in a directory of measurements.

    Raises:
        InputError: there are none.
    """
    paths = [path for path in sorted((directory / POINTS).glob("*.json")) if not path.stem.startswith("roofline")]
    if not paths:
        raise InputError("no files of points", source=str(directory / POINTS))
    return paths


def compare_points(path: Path) -> list[Comparison]:
    """A file's points against tables of the same deployment: decodes, prompts alone, and four at a time.

    Raises:
        InputError: the file has another form, or the library no data for the deployment.
    """
    try:
        data = json.loads(path.read_bytes())
        asked, points = _deployment(data, path.stem), (data["decode"], data["prefill"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"is no file of points: {error!r}", source=str(path)) from None
    timing = TabulatedTiming(load_tables(asked, 256))
    group = (path.stem, "latent" if timing.table.has_latent_attention else "split")  # type: ignore[attr-defined]
    found = []
    for point in points[0]:
        if "ms" in point:
            batch = point["batch"]
            shape = PassShape(batch, batch * (point["context"] + 1))  # the library decodes the token after these
            found.append(Comparison(group, "decode", timing.price_pass_ms(shape), point["ms"]))
    for point in points[1]:
        if "ms" in point:
            shape = PassShape()
            for _ in range(point["batch"]):
                end = point["prefix"] + point["new_tokens"]
                shape.add_chunk(point["prefix"], point["new_tokens"], end, sampled=True)
            metric = "prefill" if point["batch"] == 1 else "prefill of 4"
            found.append(Comparison(group, metric, timing.price_pass_ms(shape), point["ms"]))
    return found


def _deployment(data: dict[str, Any], tag: str) -> AicDeployment:
    """The deployment of a file; one that names no KV dtype was asked with the library's default for its weights."""
    parallel = data["parallel"]
    is_fp8 = "fp8" in tag or "deepseek" in tag
    kv = parallel.get("kvcache_quant_mode") or ("fp8" if is_fp8 and "kvbf16" not in tag else "bfloat16")
    return AicDeployment(
        data["model"],
        data["system"],
        data["backend"],
        tp=parallel["tp_size"],
        attention_dp=parallel.get("attention_dp_size", 1),
        moe_tp=parallel.get("moe_tp_size"),
        moe_ep=parallel.get("moe_ep_size"),
        gemm=parallel.get("gemm_quant_mode"),
        kv=kv,
    )
