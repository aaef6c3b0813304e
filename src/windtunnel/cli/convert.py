"""`windtunnel convert`: a trace in another format, a part of it, at another rate, or without its names.

It decides nothing about traces: it loads, asks for a slice and a rate, writes, and says on stderr what is lost.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, get_args

import typer

from windtunnel.cli.messages import print_line
from windtunnel.cli.output_files import problem_with_output, write_output
from windtunnel.cli.trace_flags import named_by_flags
from windtunnel.errors import InputError, closest
from windtunnel.inspection.unread import unread_names
from windtunnel.workload.traces import load_trace
from windtunnel.workload.traces.reading import OnBadRow, OnHashMismatch, TimeUnit
from windtunnel.workload.traces.registry import FORMATS, format_called, recognise
from windtunnel.workload.traces.rows import require_file

if TYPE_CHECKING:
    from windtunnel.conversion import Loss, TraceWriter

_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)\s*(ms|s|min|h|d)", re.ASCII)
_MS_PER_UNIT = {"ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}

NAMED_ONLY = ("mooncake-delta", "vllm-timed-trace")  # formats that nothing in a file tells from others

_IN = "What is read"
_SLICE = "Which part of it"
_OUT = "What is written"


def _option(flag: str, metavar: str, help: str, panel: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=panel)


def convert(
    traces: Annotated[list[str], typer.Argument(metavar="IN...", help="Trace files, read as one.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write; '.gz' packs it, '-' is standard output.")],
    to: Annotated[str | None, _option("--to", "FORMAT", "Format to write; by default that of the input.", _OUT)] = None,
    trace_format: Annotated[str, _option("--format", "NAME", "Trace format; auto recognises it.", _IN)] = "auto",
    trace_block_size: Annotated[
        int | None, _option("--trace-block-size", "N", "Tokens a hash id of the input stands for.", _IN)
    ] = None,
    time_unit: Annotated[
        str | None, _option("--time-unit", "UNIT", "Unit of times that do not state it: s, ms, us or ns.", _IN)
    ] = None,
    missing_output_tokens: Annotated[
        int | None, _option("--missing-output-tokens", "N", "Output length of rows that state none.", _IN)
    ] = None,
    on_bad_row: Annotated[str, _option("--on-bad-row", "POLICY", "error or skip.", _IN)] = "error",
    on_hash_mismatch: Annotated[str, _option("--on-hash-mismatch", "POLICY", "error or clip.", _IN)] = "error",
    limit: Annotated[int | None, _option("--limit", "N", "Read only the first rows.", _SLICE)] = None,
    start: Annotated[
        str | None, _option("--start", "TIME", "Only sessions that arrive from then on, such as 90s or 5min.", _SLICE)
    ] = None,
    duration: Annotated[
        str | None, _option("--duration", "TIME", "Only sessions that arrive within this time.", _SLICE)
    ] = None,
    sample: Annotated[
        float | None, _option("--sample", "SHARE", "Only a share of the sessions, above 0 and at most 1.", _SLICE)
    ] = None,
    seed: Annotated[int, _option("--seed", "N", "Seed of the sample.", _SLICE)] = 0,
    speedup: Annotated[float | None, _option("--speedup", "X", "Divide arrival times and turn delays.", _OUT)] = None,
    rate: Annotated[
        float | None, _option("--rate", "R", "Scale times so that R sessions arrive a second on average.", _OUT)
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", metavar="", help="Take rounded arrivals apart.", rich_help_panel=_OUT)
    ] = False,
    block_size: Annotated[
        int | None, _option("--block-size", "N", "Tokens a hash id of the output stands for.", _OUT)
    ] = None,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", metavar="", help="No names; ids count from 0.", rich_help_panel=_OUT)
    ] = False,
) -> int:
    """Write a trace in another format, a part of it, or at another rate; says on stderr what is lost.

    Times count from the first arrival. Sessions are kept or left out whole.
    """
    _check_choice("--on-bad-row", on_bad_row, get_args(OnBadRow))
    _check_choice("--on-hash-mismatch", on_hash_mismatch, get_args(OnHashMismatch))
    from windtunnel.conversion import (  # here, so that other commands need not load it
        WriteOptions,
        rescale,
        slice_workload,
        write_trace,
        writer_called,
    )

    if time_unit is not None:
        _check_choice("--time-unit", time_unit, get_args(TimeUnit))
    if speedup is not None and rate is not None:
        raise InputError("give either --speedup or --rate, not both: each scales times")
    _check_above_zero("--speedup", speedup)
    _check_above_zero("--rate", rate)
    _check_above_zero("--sample", sample, at_most=1.0)
    if seed and sample is None:
        raise InputError("has no effect without --sample", source="--seed")
    for path in traces:
        require_file(path)
    problem = problem_with_output(out, traces)
    if problem is not None:
        raise InputError(problem)
    with named_by_flags():
        known = recognise(traces, trace_block_size) if trace_format == "auto" else format_called(trace_format)
    try:
        writer = writer_called(known.name if to is None else to)
    except InputError as error:
        error.source = "--to" if to is not None else f"{traces[0]}, without --to"
        raise
    if block_size is not None and writer.block_size is None:
        raise InputError(f"has no effect on {writer.name}, which has no hash ids", source="--block-size")
    if block_size is not None and not 1 <= block_size <= 2**20:
        raise InputError(f"found {block_size}, expected from 1 to {2**20} tokens", source="--block-size")
    start_ms = 0.0 if start is None else _milliseconds("--start", start)
    duration_ms = None if duration is None else _milliseconds("--duration", duration)
    with named_by_flags():
        workload = load_trace(
            traces,
            format=known.name if known.name in FORMATS else trace_format,
            block_size=trace_block_size,
            limit=limit,
            spread=spread,
            on_bad_row=on_bad_row,  # type: ignore[arg-type]  # checked above
            on_hash_mismatch=on_hash_mismatch,  # type: ignore[arg-type]
            missing_output_tokens=missing_output_tokens,
            time_unit=time_unit,  # type: ignore[arg-type]
        )
    loading = workload.loading
    assert loading is not None, "a trace was loaded"
    for note in loading.notes():
        print_line(note)
    if (start is not None or duration is not None) and workload.needs_concurrency:
        raise InputError(f"has no effect: {workload.needs_concurrency}", source="--start" if start else "--duration")
    whole = workload.num_requests
    workload = slice_workload(workload, start_ms=start_ms, duration_ms=duration_ms, sample=sample, seed=seed)
    with named_by_flags():
        workload = rescale(workload, speedup=speedup or 1.0, rate_per_s=rate)
    losses: list[Loss] = []
    options = WriteOptions(block_size, anonymise)

    def write(file: BinaryIO) -> None:
        losses.extend(write_trace(workload, writer, file, options, compress=out.endswith(".gz")))

    write_output(out, write)
    for loss in losses:
        print_line(f"lost: {loss}")
    unread, looked_at = unread_names(traces, known.fields)
    if unread:
        names = ", ".join(f"{name} ({count:,})" for name, count in sorted(unread.items()))
        print_line(f"lost: fields that mean nothing here, with how many of {looked_at:,} rows have them: {names}")
    kept = "" if workload.num_requests == whole else f" of {whole:,}"
    how = _how_to_read(writer, block_size)
    print_line(f"{workload.num_requests:,}{kept} requests written to {out} as {writer.name}{how}")
    return 0


def _how_to_read(writer: TraceWriter, block_size: int | None) -> str:
    """What has to be said when the file is read, if it does not say it itself."""
    options = []
    if writer.name in NAMED_ONLY:
        options.append(f"--format {writer.name}")
    if block_size is not None and block_size != writer.block_size:
        options.append(f"--trace-block-size {block_size}")
    return f"; read it with {' '.join(options)}" if options else ""


def _check_choice(flag: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InputError(f"found {given!r}; {closest(given, choices)}", source=flag)


def _check_above_zero(flag: str, value: float | None, at_most: float | None = None) -> None:
    if value is not None and not (value > 0.0 and isfinite(value) and (at_most is None or value <= at_most)):
        limits = "a number above 0" if at_most is None else f"a number above 0, at most {at_most:g}"
        raise InputError(f"found {value:g}, expected {limits}", source=flag)


def _milliseconds(flag: str, text: str) -> float:
    """A time with its unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InputError(f"found {text!r}, expected a time with its unit, such as 500ms, 90s, 5min or 2h", source=flag)
    return float(match[1]) * _MS_PER_UNIT[match[2]]
