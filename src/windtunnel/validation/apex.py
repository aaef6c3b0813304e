"""Replays APEX's runs of vLLM 0.6.0 on H100: mean TTFT and time per token of open loops with recorded requests.

69 of 108 runs are usable, all of vLLM: for the others the server's counters went on over several traces. Of 13 runs the
requests were not recorded; they are those of the data-parallel runs of the same trace, which share them out round-robin
and whose prompts add up to the same number of tokens.

vLLM 0.6.0 is older than any release that is modelled here. With a short context it does not chunk prompts, and prompts
go before decodes in passes of their own: that is the policy of the SGLang engine without chunks and overlap, which
stands in. With the model's whole context it chunks at 512 tokens, and vLLM 0.11 stands in.
Source: microsoft/apex_plus (MIT), vllm/results and traces, commit 8769096.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.assembly import build_timing, simulate
from windtunnel.config.schema import Config
from windtunnel.errors import InputError
from windtunnel.validation.errors import Comparison
from windtunnel.workload.session import Workload

FILE = "apex_vllm_sglang_h100_runs.json"
MODELS = {"meta-llama/Llama-3.1-70B(-Instruct)": "Llama-3.1-70B"}
MODELS["mistralai/Mistral-Large-Instruct-2407 (123B)"] = "Mistral-Large-Instruct-2407"
CHUNK_TOKENS = 512  # of vLLM 0.6 once it chunks
MOST_RUNNING = 256
LARGEST_BF16 = 100e9  # parameters: runs of more are labelled bf16 on GPUs that cannot hold that; they are FP8 too

Requests = list[tuple[float, int, int]]


@dataclass(frozen=True)
class ApexRun:
    """One run of one engine.

    Attributes:
        file: of results, which is its name. model: of the catalog. tp: GPUs.
        workload: creation, lmsys or summarization, and how fast requests came.
        fp8: whether weights and cache are FP8. utilization: share of memory. max_model_len: None for the model's own.
        requests: (offset in ms, prompt tokens, output tokens).
        is_borrowed: whether these were recorded with other runs.
        ttft_ms, tpot_ms: means, the latter over tokens.
    """

    file: str
    model: str
    tp: int
    workload: str
    fp8: bool
    utilization: float
    max_model_len: int | None
    requests: tuple[tuple[float, int, int], ...]
    is_borrowed: bool
    ttft_ms: float
    tpot_ms: float

    @property
    def group(self) -> tuple[str, ...]:
        return (self.model, "h100", f"tp {self.tp}", "fp8" if self.fp8 else "bf16")


def read_apex(directory: Path) -> list[ApexRun]:
    """The usable runs.

    Raises:
        InputError: the file is missing or of another form.
    """
    path = directory / FILE
    try:
        rows = json.loads(path.read_bytes())["runs"]
        by_name = {_place(row["file"]): row for row in rows if row["engine"] == "vllm"}
        return [_run(row, by_name) for row in rows if row.get("usable") and row["engine"] == "vllm"]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"is not the file of APEX's runs: {error}", source=str(path)) from None


def replay_apex(run: ApexRun) -> list[Comparison]:
    """Simulate a run with the roofline and the default overhead, and compare the means."""
    config = _config(run)
    workload = Workload("apex")
    for number, (offset_ms, prompt, output) in enumerate(run.requests):
        workload.add([(number, 0, max(prompt, 1))], max(output, 1), time_ms=offset_ms)
    timing = build_timing(config)
    requests = simulate(config, workload=workload, timing=timing).record.requests
    arrival, first, last = (np.array(t) for t in (requests.arrival_ms, requests.first_token_ms, requests.last_token_ms))
    gaps = np.sum(np.maximum(np.array(requests.output_tokens) - 1, 0))
    return [
        Comparison(run.group, "ttft", float(np.mean(first - arrival)), run.ttft_ms),
        Comparison(run.group, "tpot", float(np.sum(last - first) / gaps), run.tpot_ms),
    ]


def _run(row: dict[str, Any], by_name: dict[tuple[str, ...], dict[str, Any]]) -> ApexRun:
    found = [tuple(request) for request in row.get("requests") or []]
    place = _place(row["file"])
    is_borrowed = not found
    if is_borrowed:
        parts = (f"4DP2TP_{part}" for part in range(4))
        if place[1].startswith("2DP4TP"):  # each of two engines had every other request, each of four every fourth
            parts = (f"4DP2TP_{part}" for part in (int(place[1][-1]), int(place[1][-1]) + 2))
        for part in parts:
            found += [tuple(request) for request in by_name[place[0], part]["requests"]]
        found.sort()
    model = MODELS[row["model"]]
    flags = row["flags"]
    return ApexRun(
        file=row["file"],
        model=model,
        tp=row["tp"],
        workload=place[0],
        fp8=bool(row["fp8"]) or model.startswith("Mistral-Large"),
        utilization=flags["gpu_memory_utilization"],
        max_model_len=flags["max_model_len"],
        requests=tuple(found),
        is_borrowed=is_borrowed,
        ttft_ms=row["ttft_mean_s"] * 1e3,
        tpot_ms=row["tpot_mean_s"] * 1e3,
    )


def _place(file: str) -> tuple[str, ...]:
    """Workload and split of a file of results, as in ('llama_lmsys_05', '2DP4TP_1')."""
    found = re.fullmatch(r".*/(\w+?)_validation_(\w+?)\.txt", file)
    if found is None:
        return (file, "")
    return found.group(1), found.group(2).replace("_fp8", "")


def _config(run: ApexRun) -> Config:
    timing: dict[str, Any] = {
        "model": run.model,
        "gpu": "h100-sxm",
        "tp": run.tp,
        "gpu_memory_utilization": run.utilization,
    }
    if run.fp8:
        timing.update(dtype="fp8", kv_dtype="fp8")
    tokens = CHUNK_TOKENS if run.max_model_len is None else run.max_model_len
    sized = {"max_num_seqs": MOST_RUNNING, "max_num_batched_tokens": tokens, "block_size": 16}
    vllm = Config.model_validate({"timing": timing, "engine": {**sized, "behaviour": "0.11"}})
    if run.max_model_len is None:
        return vllm
    engine = {
        "kind": "sglang",
        "num_gpu_blocks": vllm.engine.num_gpu_blocks,
        "page_size": 16,
        "max_running_requests": MOST_RUNNING,
        "max_prefill_tokens": tokens,
        "chunked_prefill_size": -1,
        "context_length": run.max_model_len,
        "enable_prefix_caching": False,
        "overlap_schedule": False,
    }
    return Config.model_validate({"timing": timing, "engine": engine})
