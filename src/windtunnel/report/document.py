"""The JSON report: {"version", "config", "workload", "summary", "run"}.

Facts of the simulated world and of the machine that simulated it never mix: everything but `run` is the same, byte
for byte, whenever and wherever the same configuration runs. For that reason `config` leaves out `output`, which
says where files went and not what was simulated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from windtunnel._version import __version__
from windtunnel.config.schema import Config
from windtunnel.record.columns import Record
from windtunnel.report.distribution import describe
from windtunnel.report.metrics import summarize
from windtunnel.workload.session import Workload

Summary = Mapping[str, int | float]


class SimulationResult(Protocol):
    """What reports are made from: a configuration, what it sent, what happened, and how long that took to compute."""

    @property
    def config(self) -> Config: ...

    @property
    def workload(self) -> Workload: ...

    @property
    def record(self) -> Record: ...

    @property
    def wall_time_ms(self) -> float: ...


def build_report(result: SimulationResult, summary: Summary | None = None) -> dict[str, Any]:
    """The report as plain JSON values.

    Args:
        result: a finished or interrupted simulation. A partial one has the reason in `summary.interrupted`.
        summary: `summarize` of the same result, if the caller has it already.
    """
    if summary is None:
        summary = summarize(result.workload, result.record, result.config.slo)
    facts: dict[str, Any] = dict(summary)
    if result.record.interrupted:
        facts["interrupted"] = result.record.interrupted
    report: dict[str, Any] = {
        "version": __version__,
        "config": result.config.model_dump(mode="json", exclude={"output"}),
        "workload": _describe_workload(result),
        "summary": facts,
    }
    if result.config.output.run_info:
        report["run"] = _describe_run(result, summary)
    return report


def encode_report(report: Mapping[str, Any]) -> bytes:
    """Indented JSON in the order of the report, with a newline at its end; ValueError if a number is not finite."""
    return (json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _describe_workload(result: SimulationResult) -> dict[str, Any]:
    """What was to be sent, and over which time it was: tokens are those asked for, whatever became of them."""
    workload = result.workload
    input_tokens = np.asarray(workload.input_tokens, dtype=np.int64)
    output_tokens = np.asarray(workload.output_tokens, dtype=np.int64)
    arrival_ms = np.asarray(result.record.requests.arrival_ms, dtype=np.float64)
    arrived_ms = arrival_ms[~np.isnan(arrival_ms)]
    concurrency = result.config.workload.concurrency
    description: dict[str, Any] = {
        "source": workload.source,
        "requests": workload.num_requests,
        "sessions": workload.num_sessions,
        "total_input_tokens": int(np.sum(input_tokens)),
        "total_output_tokens": int(np.sum(output_tokens)),
    }
    for name, lengths in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        statistics = describe(lengths.astype(np.float64))
        for statistic in ("mean", "median", "p90", "max"):
            description[f"{statistic}_{name}"] = statistics[statistic]
    description["arrival_span_ms"] = float(np.ptp(arrived_ms)) if len(arrived_ms) else 0.0
    description["loop"] = "open" if concurrency is None else "closed"
    if concurrency is not None:
        description["concurrency"] = concurrency
        description["concurrency_counts"] = "sessions"
    if workload.loading is not None:
        description["loading"] = workload.loading.as_dict()
    return description


def _describe_run(result: SimulationResult, summary: Summary) -> dict[str, Any]:
    """Wall-clock facts, and how the simulator did its work."""
    passes = result.record.passes
    wall_s = result.wall_time_ms / 1000.0
    arrived = summary["num_requests"] - summary["not_arrived_requests"]
    return {
        "wall_time_ms": result.wall_time_ms,
        "requests_per_s": arrived / wall_s if wall_s > 0.0 else 0.0,
        "processed_tokens_per_s": summary["processed_tokens"] / wall_s if wall_s > 0.0 else 0.0,
        "peak_memory_mb": _peak_memory_mb(),
        "engine_passes": sum(len(engine.end_ms) for engine in passes),
        "decode_runs": sum(engine.decode_runs for engine in passes),
        "passes_in_decode_runs": sum(engine.passes_in_runs for engine in passes),
        "single_passes": sum(engine.single_passes for engine in passes),
        "cuts": sum(engine.cuts for engine in passes),
    }


def _peak_memory_mb() -> float | None:
    """Largest resident memory of this process so far in 10^6 bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
