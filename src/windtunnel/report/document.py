"""The JSON report: {"version", "config", "workload", "summary", "worker_events", "faults",
"deployment", "run"}.

`worker_events` and `faults` are there if there are any, `deployment` if a model is named.

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
from windtunnel.report.classes import summarize_classes
from windtunnel.report.deployment import describe_deployment
from windtunnel.report.distribution import describe
from windtunnel.report.metrics import class_limits, summarize
from windtunnel.report.row_blocks import Samples, ints, row_blocks
from windtunnel.report.trust import arrival_span_ms, trust_facts
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


def summarize_result(result: SimulationResult) -> dict[str, int | float]:
    """`summarize` what a configuration sent, each class by its own limits."""
    return summarize(result.workload, result.record, result.config.slo, class_limits(result.workload, result.config))


def build_report(result: SimulationResult, summary: Summary | None = None) -> dict[str, Any]:
    """The report as plain JSON values.

    Args:
        result: a finished or interrupted simulation. A partial one has the reason in `summary.interrupted`.
        summary: `summarize_result` of it, if the caller has it already.
    """
    if summary is None:
        summary = summarize_result(result)
    facts: dict[str, Any] = dict(summary)
    facts |= trust_facts(result.config, result.workload, result.record)
    if result.record.interrupted:
        facts["interrupted"] = result.record.interrupted
    if result.workload.class_names:
        limits = class_limits(result.workload, result.config)
        facts["classes"] = summarize_classes(result.workload, result.record, result.config.slo, limits)
    report: dict[str, Any] = {
        "version": __version__,
        "config": result.config.model_dump(mode="json", exclude={"output"}),
        "workload": _describe_workload(result),
        "summary": facts,
    }
    if result.record.worker_events:
        report["worker_events"] = [event._asdict() for event in result.record.worker_events]
    if result.record.faults:
        report["faults"] = [fault.as_dict() for fault in result.record.faults]
    deployment = describe_deployment(result.config)
    if deployment is not None:
        report["deployment"] = deployment
    if result.config.output.run_info:
        report["run"] = _describe_run(result, summary)
    return report


def encode_report(report: Mapping[str, Any]) -> bytes:
    """Indented JSON in the order of the report, with a newline at its end; ValueError if a number is not finite."""
    return (json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _describe_workload(result: SimulationResult) -> dict[str, Any]:
    """What was to be sent, and over which time it was: tokens are those asked for, whatever became of them."""
    workload = result.workload
    totals = {"input_tokens": 0, "output_tokens": 0}
    lengths = {name: Samples() for name in totals}
    for rows in row_blocks(result.record, workload):
        for name, column in (("input_tokens", workload.input_tokens), ("output_tokens", workload.output_tokens)):
            tokens = ints(column, rows)
            totals[name] += int(np.sum(tokens))
            lengths[name].add(tokens.astype(np.float64))
    first_ms, last_ms = arrival_span_ms(result.record)
    concurrency = result.config.workload.concurrency
    description: dict[str, Any] = {
        "source": workload.source,
        "requests": workload.num_requests,
        "sessions": workload.num_sessions,
        "total_input_tokens": totals["input_tokens"],
        "total_output_tokens": totals["output_tokens"],
    }
    for name, samples in lengths.items():
        statistics = describe(samples)
        for statistic in ("mean", "median", "p90", "max"):
            description[f"{statistic}_{name}"] = statistics[statistic]
    description["arrival_span_ms"] = last_ms - first_ms
    description |= _describe_loop(concurrency, result.config.workload.concurrency_by)
    if workload.closed_loops:
        are_all = len(workload.closed_loops) == len(workload.class_names)
        description["loop"] = "closed" if are_all else "mixed"
    if workload.class_names:
        description["classes"] = _describe_classes(result)
    if workload.observed_lengths:
        description["observed_lengths"] = {
            path: counts._asdict() for path, counts in sorted(workload.observed_lengths.items())
        }
    if workload.loading is not None:
        description["loading"] = workload.loading.as_dict()
    return description


def _describe_loop(concurrency: int | None, by: str) -> dict[str, Any]:
    """How requests are released, and what a limit on them counts."""
    if concurrency is None:
        return {"loop": "open"}
    return {"loop": "closed", "concurrency": concurrency, "concurrency_counts": f"{by}s"}


def _describe_classes(result: SimulationResult) -> dict[str, dict[str, Any]]:
    """What each class of clients was to send."""
    workload = result.workload
    number = workload.class_of_requests()
    input_tokens = np.asarray(workload.input_tokens, dtype=np.int64)
    output_tokens = np.asarray(workload.output_tokens, dtype=np.int64)
    classes: dict[str, dict[str, Any]] = {}
    first_session = 0
    for place, (name, end_session) in enumerate(zip(workload.class_names, workload.class_ends, strict=True)):
        chosen = number == place
        loop = next((loop for loop in workload.closed_loops if loop.next_session == first_session), None)
        classes[name] = {
            "requests": int(np.count_nonzero(chosen)),
            "sessions": end_session - first_session,
            "total_input_tokens": int(np.sum(input_tokens[chosen])),
            "total_output_tokens": int(np.sum(output_tokens[chosen])),
            **(_describe_loop(loop.places, loop.by) if loop is not None else _describe_loop(None, "")),
        }
        first_session = end_session
    return classes


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
