"""`windtunnel inspect`: what a trace holds and what is suspicious about it, in tables or as JSON.

It decides nothing about traces: it loads one with everything that cannot be used left out, and shows what is found.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from windtunnel.cli.output_files import print_result
from windtunnel.cli.trace_flags import named_by_flags
from windtunnel.errors import InputError, closest
from windtunnel.inspection import describe_trace, lint
from windtunnel.inspection.table import print_inspection
from windtunnel.inspection.unread import unread_names
from windtunnel.workload.traces import load_trace
from windtunnel.workload.traces.reading import TimeUnit
from windtunnel.workload.traces.registry import format_called, recognise
from windtunnel.workload.traces.rows import require_file

_PIPE_WIDTH = 120


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help)


def inspect(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE", help="Trace files, read as one.")],
    trace_format: Annotated[str, _option("--format", "NAME", "Trace format; auto recognises it.")] = "auto",
    trace_block_size: Annotated[
        int | None, _option("--trace-block-size", "N", "Tokens a hash id stands for, if not what is usual.")
    ] = None,
    time_unit: Annotated[
        str | None, _option("--time-unit", "UNIT", "Unit of a column of times that does not say it: s, ms, us or ns.")
    ] = None,
    limit: Annotated[int | None, _option("--limit", "N", "Read only the first rows.")] = None,
    max_model_len: Annotated[
        int | None, _option("--max-model-len", "N", "Count the prompts that reach this length.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")] = False,
) -> int:
    """Show what a trace holds, and lint it: units, block size, lengths, arrivals, ids, unread columns.

    Rows that cannot be used are left out and counted, so that every count adds up to the rows of the file.
    """
    if time_unit is not None and time_unit not in get_args(TimeUnit):
        raise InputError(f"found {time_unit!r}; {closest(time_unit, get_args(TimeUnit))}", source="--time-unit")
    if max_model_len is not None and max_model_len < 1:
        raise InputError(f"found {max_model_len}, expected at least 1 token", source="--max-model-len")
    for path in traces:
        require_file(path)
    with named_by_flags():
        known = recognise(traces, trace_block_size) if trace_format == "auto" else format_called(trace_format)
    with named_by_flags():
        workload = load_trace(
            traces,
            format=known.name,
            block_size=trace_block_size,
            limit=limit,
            on_bad_row="skip",
            on_hash_mismatch="clip" if "on_hash_mismatch" in known.options else "error",
            missing_output_tokens=0 if "missing_output_tokens" in known.options else None,
            time_unit=time_unit,  # type: ignore[arg-type]  # checked above
        )
    facts = describe_trace(workload, max_model_len)
    findings = lint(workload, facts, *unread_names(traces, known.fields))
    if as_json:
        document = {**facts.as_dict(), "lint": [finding.as_dict() for finding in findings]}
        print_result(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    console = Console(file=sys.stdout)
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    with console.capture() as shown:
        print_inspection(facts, findings, console)
    print_result(shown.get())
    return 0
