"""Reads measurements that people have: pass logs, sweeps of Dynamo's planner, and results of three benchmark tools.

The form is recognised by content. Pass logs are CSV with a header or JSON lines; a row is a pass, with the columns
`ms`, `decode_requests`, `decode_context_tokens` (sum of contexts), `prefill_tokens`, `prefill_context_tokens` (sum of
the positions where the chunks start) and `prefill_requests`, of which those that are missing are 0, and one request
where there are prompt tokens. Dynamo's ForwardPassMetrics (version 1) are such rows under other names, in seconds.
Benchmarks: the JSON of `vllm bench serve`, of AIPerf (`profile_export_aiperf.json`) and of GuideLLM.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windtunnel.calibration.benchmark_results import read_benchmarks
from windtunnel.calibration.observations import Observations, PassObservation
from windtunnel.errors import InputError, closest
from windtunnel.timing.base import PassShape
from windtunnel.timing.planner_profile import PlannerProfile
from windtunnel.timing.profile import load_profile

COLUMNS = (
    "ms",
    "decode_requests",
    "decode_context_tokens",
    "prefill_tokens",
    "prefill_context_tokens",
    "prefill_requests",
)


def read_observations(paths: Iterable[str]) -> Observations:
    """All measurements of some files or directories.

    Raises:
        InputError: one of them cannot be read, is of no known form, or holds nothing to fit.
    """
    found = Observations()
    for path in paths:
        _read(path, found)
    if not found.passes and not found.benchmarks:
        raise InputError("holds no measurement of a pass or a benchmark", source=", ".join(paths))
    return found


def _read(path: str, into: Observations) -> None:
    place = Path(path)
    if place.is_dir():
        _add_profile(path, into)
        return
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", source=path) from None
    if not text.strip():
        raise InputError("is empty, expected measurements", source=path)
    if text.lstrip()[0] not in "{[":
        _add_rows(csv.DictReader(text.splitlines()), path, into, first_line=2)
        return
    document = _whole_document(text)
    if document is None:
        _add_rows(_json_lines(text, path), path, into, first_line=1)
    elif isinstance(document, dict) and "z_itl" in document:
        _add_profile(path, into)
    elif isinstance(document, dict) and (document.get("scheduled") or "ms" in document):
        _add_rows([document], path, into, first_line=1)
    else:
        into.benchmarks.extend(read_benchmarks(document, path))


def _whole_document(text: str) -> Any:
    """The JSON that a file is, or None if it is lines of it."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _json_lines(text: str, path: str) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"not JSON: {error}", source=path, line=number) from None
        if not isinstance(row, dict):
            raise InputError("expected a JSON object", source=path, line=number)
        yield row


def _add_rows(rows: Iterable[Mapping[str, Any]], path: str, into: Observations, first_line: int) -> None:
    for line, row in enumerate(rows, first_line):
        flat = _of_forward_pass_metrics(row) if "wall_time" in row else row
        unknown = [str(name) for name in flat if name not in COLUMNS]
        if "ms" not in flat:
            hint = f"; {closest(unknown[0], COLUMNS)}" if unknown else ""
            raise InputError(f"has no column ms{hint}", source=path, line=line)
        values = {name: _number(flat.get(name), name, path, line) for name in COLUMNS}
        if values["ms"] == 0.0 and "wall_time" in row:  # a heartbeat between passes
            into.skipped["heartbeats"] = into.skipped.get("heartbeats", 0) + 1
            continue
        if values["ms"] <= 0.0:
            raise InputError(f"found {values['ms']:g}, expected more than 0 ms", source=path, line=line, field="ms")
        shape = _shape(values, path, line)
        if not shape.num_decodes and not shape.chunk_tokens:
            into.skipped["passes without requests"] = into.skipped.get("passes without requests", 0) + 1
            continue
        into.passes.append(PassObservation(shape, values["ms"], f"{path}:{line}"))


def _shape(values: Mapping[str, float], path: str, line: int) -> PassShape:
    decodes = int(values["decode_requests"])
    contexts = int(values["decode_context_tokens"])
    if bool(decodes) != bool(contexts) or contexts < decodes:
        raise InputError(
            f"{decodes} decodes cannot have {contexts} tokens of context in all, the new ones included",
            source=path,
            line=line,
            field="decode_context_tokens",
        )
    shape = PassShape(decodes, contexts)
    tokens = int(values["prefill_tokens"])
    chunks = int(values["prefill_requests"]) or 1
    if not tokens:
        return shape
    chunks = min(chunks, tokens)
    before = int(values["prefill_context_tokens"])
    for number in range(chunks):  # of which only sums are known: equal ones
        start = before * (number + 1) // chunks - before * number // chunks
        count = tokens * (number + 1) // chunks - tokens * number // chunks
        shape.add_chunk(start, count, start + count + 1, sampled=True)
    return shape


def _of_forward_pass_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    scheduled = row.get("scheduled")
    inner: Mapping[str, Any] = scheduled if isinstance(scheduled, Mapping) else {}
    seconds = row["wall_time"]
    decodes = inner.get("num_decode_requests", 0)
    return {
        "ms": seconds * 1000.0 if isinstance(seconds, int | float) else seconds,
        "decode_requests": decodes,
        "decode_context_tokens": inner.get("sum_decode_kv_tokens", 0),
        "prefill_tokens": inner.get("sum_prefill_tokens", 0),
        "prefill_context_tokens": inner.get("sum_prefill_kv_tokens", 0),
        "prefill_requests": inner.get("num_prefill_requests", 0),
    }


def _number(value: Any, name: str, path: str, line: int) -> float:
    if value is None or value == "":
        return 0.0
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 <= number < float("inf"):
        raise InputError(f"found {value!r}, expected a number of at least 0", source=path, line=line, field=name)
    return number


def _add_profile(path: str, into: Observations) -> None:
    profile = load_profile(path)
    if not isinstance(profile, PlannerProfile):
        raise InputError("is a fitted grid, not measurements: calibrate from the sweep it was made of", source=path)
    for batch, context, ms in zip(profile.batches, profile.contexts, profile.itl_ms, strict=True):
        shape = PassShape(int(batch), int(batch * context))
        into.passes.append(PassObservation(shape, float(ms), f"{path}: batch {batch:g} at {context:g}"))
    for tokens, ms in zip(profile.prompt_tokens, profile.prompt_ms, strict=True):
        shape = PassShape()
        shape.add_chunk(0, int(tokens), int(tokens), sampled=True)
        into.passes.append(PassObservation(shape, float(ms), f"{path}: prompt of {tokens:g}", is_client_time=True))
