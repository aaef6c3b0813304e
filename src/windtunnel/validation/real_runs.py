"""Replays four real vLLM runs whose every request was stamped, priced by the layer times that were measured on them.

300 requests each, on an RTX 4090 and on one or two RTX PRO 6000. Arrivals, lengths and engine options are the run's;
so is the KV pool where it was recorded, else the memory model says it. Links between GPUs are those that the peer's own
cluster description states for this machine (16 GB/s, 20 us); without that, those of the datasheet at the roofline's
efficiency. The engine schedules asynchronously, as that one did; no overhead is added, since the host then works while
the GPU does. Launches of unequal contexts take as much longer as the same profiler measured.
Source: LLMServingSim (casys-kaist, MIT), bench/examples and its profiler's tables; vLLM 0.19.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.assembly import simulate
from windtunnel.config.schema import Config
from windtunnel.errors import InputError
from windtunnel.timing.base import TimingModel
from windtunnel.timing.layer_profile import LayerProfile, layer_stack
from windtunnel.timing.profile import load_profile
from windtunnel.timing.tabulated import TabulatedTiming
from windtunnel.validation.errors import Comparison
from windtunnel.workload.session import Workload

RUNS = "llmservingsim-vllm-0.19-runs.json"
TABLES = "layer_profiles"  # directory beside the other measurements
LINK_BYTES_PER_MS = 16e6
LINK_LATENCY_MS = 0.020
GPUS = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}
# What the peer published for the same runs: errors of mean TTFT and of mean TPOT.
PEER = {
    ("RTX4090", "Llama-3.1-8B"): (0.006, 0.002),
    ("RTXPRO6000", "Llama-3.1-8B"): (-0.040, -0.010),
    ("RTXPRO6000", "Qwen3-32B"): (0.013, 0.008),
    ("RTXPRO6000", "Qwen3-30B-A3B-Instruct-2507"): (-0.136, -0.017),
}


@dataclass(frozen=True)
class RealRun:
    """One run.

    Attributes:
        hardware, model: as the source names them. options: of the engine.
        num_gpu_blocks: of 16 tokens, if they were recorded.
        requests: (input tokens, output tokens, arrival, first token, last token), times in ms.
    """

    hardware: str
    model: str
    options: dict[str, Any]
    num_gpu_blocks: int | None
    requests: tuple[tuple[int, int, float, float, float], ...]

    @property
    def name(self) -> tuple[str, str]:
        return self.hardware, self.model.rpartition("/")[2]


@dataclass(frozen=True)
class Outcome:
    """Means of a run, ms: of TTFT and TPOT over requests, and the time until the last token."""

    ttft_ms: float
    tpot_ms: float
    makespan_ms: float


def read_real_runs() -> list[RealRun]:
    """The runs that ship with the package."""
    text = (files("windtunnel.validation") / "data" / RUNS).read_text(encoding="utf-8")
    runs = []
    for run in json.loads(text)["runs"]:
        pool = run["kv_cache"]
        runs.append(
            RealRun(
                hardware=run["hardware"],
                model=run["model"],
                options=run["engine_kwargs"],
                num_gpu_blocks=None if pool is None else pool["num_gpu_blocks"],
                requests=tuple((r[1], r[2], r[3], r[6], r[7]) for r in run["requests"]),
            )
        )
    return runs


def measured(run: RealRun) -> Outcome:
    """What happened."""
    table = np.array(run.requests)
    return _outcome(table[:, 2], table[:, 3], table[:, 4], table[:, 1])


def replay(run: RealRun, timing: TimingModel, num_gpu_blocks: int) -> Outcome:
    """What the simulation says would happen, with so many KV blocks as vLLM counts them."""
    workload = Workload("real run")
    for number, (tokens, output, arrival_ms, _, _) in enumerate(run.requests):
        workload.add([(number, 0, tokens)], output, time_ms=arrival_ms)
    engine: dict[str, Any] = {
        "num_gpu_blocks": num_gpu_blocks - 1,  # its null block
        "block_size": 16,
        "max_num_seqs": run.options["max_num_seqs"],
        "max_num_batched_tokens": run.options["max_num_batched_tokens"],
        "behaviour": "0.20",
        "async_scheduling": True,
    }
    if run.options["max_model_len"]:
        engine["max_model_len"] = run.options["max_model_len"]
    ranks = run.options["data_parallel_size"]
    config = Config.model_validate({"engine": engine, "cluster": {"dp_size": ranks}})
    requests = simulate(config, workload=workload, timing=timing).record.requests
    arrival, first, last = (np.array(t) for t in (requests.arrival_ms, requests.first_token_ms, requests.last_token_ms))
    return _outcome(arrival, first, last, np.array(requests.output_tokens))


def layer_timing(run: RealRun, directory: Path, *, has_peer_links: bool = True) -> TimingModel:
    """The measured layer times of a run's model on its GPU, composed to passes.

    Raises:
        InputError: the tables are not in `directory`.
    """
    tp = run.options["tensor_parallel_size"]
    path = directory / TABLES / f"lss_{run.hardware}_{run.name[1]}_tp{tp}.json"
    if not path.is_file():
        raise InputError("no such file: layer times of the run, which do not ship with the package", source=str(path))
    config = deployment_config(run)
    deployment = config.timing.deployment(run.options["data_parallel_size"])
    assert deployment is not None
    stack = layer_stack(deployment)
    if has_peer_links and stack.collective_ms is not None:
        token_bytes = 2.0 * deployment.model.hidden  # two GPUs: a ring sends each byte once

        def collective_ms(tokens: int) -> float:
            return 2.0 * (LINK_LATENCY_MS + tokens * token_bytes / LINK_BYTES_PER_MS)

        stack = replace(stack, collective_ms=collective_ms)
    profile = load_profile(str(path), stack)
    assert isinstance(profile, LayerProfile)
    return TabulatedTiming(profile)


def deployment_config(run: RealRun) -> Config:
    """The run's deployment with the roofline, which also sizes its KV pool."""
    ranks = run.options["data_parallel_size"]
    timing = {"model": run.model, "gpu": GPUS[run.hardware], "tp": run.options["tensor_parallel_size"]}
    if run.options["enable_expert_parallel"]:
        timing["ep"] = ranks * run.options["tensor_parallel_size"]
    options = {name: run.options[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    return Config.model_validate(
        {"timing": timing, "engine": {"block_size": 16, **options}, "cluster": {"dp_size": ranks}}
    )


def pool_of(run: RealRun) -> int:
    """KV blocks as vLLM counts them: those of the run, or the memory model's."""
    if run.num_gpu_blocks is not None:
        return run.num_gpu_blocks
    return deployment_config(run).engine.num_gpu_blocks + 1


def compare(run: RealRun, outcome: Outcome) -> list[Comparison]:
    """Means of a simulation against those of the run."""
    truth = measured(run)
    return [
        Comparison(run.name, "ttft", outcome.ttft_ms, truth.ttft_ms),
        Comparison(run.name, "tpot", outcome.tpot_ms, truth.tpot_ms),
        Comparison(run.name, "makespan", outcome.makespan_ms, truth.makespan_ms),
    ]


def _outcome(arrival: Any, first: Any, last: Any, output_tokens: Any) -> Outcome:
    tpot = (last - first) / np.maximum(output_tokens - 1, 1)
    return Outcome(float(np.mean(first - arrival)), float(np.mean(tpot)), float(np.max(last) - np.min(arrival)))
