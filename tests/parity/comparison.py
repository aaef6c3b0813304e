"""Runs the scenarios of scenarios.yaml and says where Windtunnel's answer is not the peer's.

It judges nothing: which differences are meant is in differences.yaml, with the rule that decides each, and
docs/fidelity.md shows that list to readers. `python tests/parity/comparison.py` prints what differs now and
the table for the document.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from windtunnel.assembly import simulate
from windtunnel.config import Config, load_config
from windtunnel.config.file import ConfigFile
from windtunnel.errors import InputError
from windtunnel.record.columns import Record, Status
from windtunnel.report.metrics import request_latencies, summarize
from windtunnel.report.token_times import TokenTimes
from windtunnel.workload.session import Workload

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

TIME_TOLERANCE_MS = 1e-3  # the peer rounds the two parts of every pass to nanoseconds
RELATIVE_TOLERANCE = 1e-7  # of what is derived from such times, and of numbers printed with 12 digits
SKETCH_TOLERANCE = 1e-3  # the peer's percentiles over tokens come from a sketch with this relative accuracy
SKETCHED = ("itl_ms", "output_token_throughput_per_user")
PERCENTILES = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}
OUR_NAMES = {"first_admission_prefix_cache_reused_ratio": "prefix_cache_hit_ratio"}

Value: TypeAlias = float | int | str | None
Scenario: TypeAlias = dict[str, Any]


@dataclass
class Answer:
    """What Windtunnel made of a scenario: the text of its refusal, or what it simulated.

    `samples` are those behind the statistics of the summary, except that tokens per second are per gap.
    """

    error: str | None
    requests: dict[str, list[Value]]
    summary: dict[str, float]
    samples: dict[str, list[float]]

    def value(self, field: str) -> Value:
        """`error`, `requests.COLUMN[NUMBER]` or `summary.KEY`; None for what does not exist."""
        if field == "error":
            return self.error
        kind, _, key = field.partition(".")
        if kind == "summary":
            return self.summary.get(OUR_NAMES.get(key, key))
        column, _, number = key.rstrip("]").partition("[")
        return self.requests[column][int(number)]


@dataclass
class Difference:
    """One field in which two answers differ."""

    scenario: str
    field: str
    peer: Value
    ours: Value


@cache
def read(name: str) -> Any:
    """A data file of this folder."""
    return yaml.safe_load((HERE / name).read_text())


def scenarios(shared: bool = False) -> dict[str, Scenario]:
    """The scenarios by id: those that need a shared trace, or those that do not."""
    return {str(s["id"]): s for s in read("scenarios.yaml")["scenarios"] if ("shared" in s) == shared}


def known_differences() -> list[dict[str, Any]]:
    """The listed differences: scenario, field, peer, ours, rule."""
    return [{**entry, "scenario": str(entry["scenario"])} for entry in read("differences.yaml")["differences"]]


def answer(scenario: Scenario, folder: Path) -> Answer:
    """Simulate one scenario; its trace is written to `folder`."""
    settings = _merged(read("scenarios.yaml")["defaults"], scenario.get("config", {}))
    if "trace" in scenario:
        trace = folder / "trace.jsonl"
        trace.write_text(scenario["trace"])
    elif "shared" in scenario:
        trace = _shared() / scenario["shared"]
    if "synthetic" in settings["workload"]:
        del settings["workload"]["trace_block_size"]
    else:
        settings["workload"] = {"format": "mooncake", "path": str(trace), **settings["workload"]}
    try:
        config = load_config(ConfigFile("scenario", settings, {})).config
        result = simulate(config)
    except InputError as refusal:
        without_path = InputError(refusal.message, line=refusal.line, field=refusal.field)
        return Answer(str(without_path), {}, {}, {})
    return _answer(result.workload, result.record, config)


def differences(scenario: Scenario, ours: Answer) -> list[Difference]:
    """Every field that the scenario states and that `ours` answers otherwise."""
    name = str(scenario["id"])
    expected_error: str | None = scenario.get("error")
    if expected_error != ours.error:
        return [Difference(name, "error", expected_error, ours.error)]
    if ours.error is not None:
        return []
    return [
        Difference(name, field, peer, ours.value(field))
        for field, peer in stated(scenario)
        if not agrees(field, peer, ours.value(field))
    ]


def stated(scenario: Scenario) -> Iterator[tuple[str, Value]]:
    """The fields that a scenario states, with the peer's values."""
    columns = scenario.get("columns") or read("scenarios.yaml")["columns"]
    for number, row in enumerate(scenario.get("requests", [])):
        for column, value in zip(columns, row, strict=True):
            yield f"requests.{column}[{number}]", value
    for key, value in scenario.get("summary", {}).items():
        yield f"summary.{key}", value


def agrees(field: str, peer: Value, ours: Value) -> bool:
    """Whether two values of one field are the same up to the peer's rounding."""
    if not isinstance(peer, int | float) or not isinstance(ours, int | float):
        return peer == ours
    if isinstance(peer, int) and isinstance(ours, int):
        return peer == ours
    key = field.partition("[")[0]
    if key.endswith(SKETCHED) and key.removeprefix("summary.").partition("_")[0] in PERCENTILES:
        return math.isclose(peer, ours, rel_tol=SKETCH_TOLERANCE)
    if key.endswith("_ms"):
        return abs(peer - ours) <= TIME_TOLERANCE_MS
    return math.isclose(peer, ours, rel_tol=RELATIVE_TOLERANCE)


def by_the_peers_rule(answer: Answer, field: str) -> float:
    """A statistic such as `summary.p99_ttft_ms` from our samples by the peer's definition of it.

    Its percentile is the sample at the rounded rank, halves away from zero; it counts output tokens per second per
    gap between two tokens.
    """
    statistic, _, metric = field.removeprefix("summary.").partition("_")
    samples = sorted(answer.samples[metric])
    if statistic in PERCENTILES:
        return samples[math.floor((len(samples) - 1) * PERCENTILES[statistic] / 100 + 0.5)]
    aggregate: dict[str, Callable[[list[float]], float]] = {"mean": statistics.fmean, "min": min, "max": max}
    return aggregate[statistic](samples)


def table() -> str:
    """The list of known differences as docs/fidelity.md shows it."""
    what = {name: s["what"] for shared in (False, True) for name, s in scenarios(shared).items()}
    lines = ["| scenario | field | the peer | Windtunnel | rule |", "|---|---|---|---|---|"]
    for entry in known_differences():
        name = entry["scenario"]
        cells = [f"{name}: {what[name]}", f"`{entry['field']}`", *_cells(entry), entry["rule"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rules() -> str:
    """The rules of that list, as docs/fidelity.md shows them."""
    return "\n".join(f"- **{name}**: {text}" for name, text in read("differences.yaml")["rules"].items())


def _answer(workload: Workload, record: Record, config: Config) -> Answer:
    columns = record.requests
    times = TokenTimes(record)
    latencies = request_latencies(record, times)
    requests: dict[str, list[Value]] = {
        "status": [Status(status).label for status in columns.status],
        "input_tokens": list(workload.input_tokens),
        "requested_tokens": list(workload.output_tokens),
    }
    for name in ("arrival_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_ms"):
        requests[name] = _or_none(getattr(columns, name))
    for name in ("worker", "output_tokens", "reused_tokens", "preemptions"):
        requests[name] = list(getattr(columns, name))
    if record.handoffs is not None:
        for name in ("source_held_ms", "reserved_ms", "activated_ms", "decode_admit_ms", "released_ms"):
            requests[name] = _or_none(getattr(record.handoffs, name))
        requests["prefill_worker"] = [record.worker_numbers[index] for index in record.handoffs.prefill_worker]
        requests["worker"] = [record.worker_numbers[index] for index in columns.worker]
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        requests[name] = _or_none(getattr(latencies, name))
    completed = np.frombuffer(bytes(columns.status), dtype=np.uint8) == Status.COMPLETED
    emitting = completed & (np.asarray(columns.output_tokens) > 0)
    gaps_ms, counts = times.gaps_ms(completed)
    samples = {
        "ttft_ms": latencies.ttft_ms[emitting].tolist(),
        "e2e_latency_ms": latencies.e2e_ms[emitting].tolist(),
        "output_token_throughput_per_user": np.repeat(1000.0 / gaps_ms, counts).tolist(),
    }
    return Answer(None, requests, dict(summarize(workload, record, config.slo)), samples)


def _or_none(values: Any) -> list[Value]:
    return [None if math.isnan(value) else float(value) for value in values]


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = {key: _merged(value, {}) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in over.items():
        result[key] = _merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result


def _shared() -> Path:
    folder = Path(os.environ.get("WINDTUNNEL_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: set WINDTUNNEL_SHARED to where the public traces are")
    return folder


def _cells(entry: dict[str, Any]) -> list[str]:
    """The two values of a difference in words."""
    cells = []
    for value in (entry["peer"], entry["ours"]):
        if isinstance(value, str):
            cells.append(f"refused: {value}")
        elif value is None:
            cells.append("accepted" if entry["field"] == "error" else "none")
        else:
            cells.append(f"{value:.12g}")
    return cells


def main() -> None:
    found: list[dict[str, Any]] = []
    for shared in (False, True):
        for scenario in scenarios(shared).values():
            with tempfile.TemporaryDirectory() as folder:
                found += [vars(difference) for difference in differences(scenario, answer(scenario, Path(folder)))]
    print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120))
    print(table(), rules(), sep="\n\n")


if __name__ == "__main__":
    main()
