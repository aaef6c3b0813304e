"""Trace formats: one module each, and the registry that finds the right one.

Decides which format reads a file, which options it honours, and puts the arrival times of what was read on the clock
of a simulation. It never knows the fields of a row; formats never know the simulation's clock.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from os import PathLike, fspath

import numpy as np

from windtunnel.errors import InputError
from windtunnel.workload.session import MAX_TIME_MS, FloatColumn, IntColumn, Workload
from windtunnel.workload.spreading import spread_arrivals
from windtunnel.workload.traces.overlong import OnOverlong, apply_overlong
from windtunnel.workload.traces.reading import OnBadRow, OnHashMismatch, ReadOptions, TimeUnit, TraceFormat
from windtunnel.workload.traces.registry import FORMATS, format_called, recognise
from windtunnel.workload.traces.rows import require_file

__all__ = ["FORMATS", "ReadOptions", "TraceFormat", "load_trace"]

# Keeps hash id * block size inside 64 bits; the largest blocks in published traces have 512 tokens.
MAX_TRACE_BLOCK_SIZE = 2**20

_BLOCK_ROWS = 1 << 18

# Options that not every format honours: the name, and what a user calls it.
_OPTION_FIELDS = {
    "block_size": "trace_block_size",
    "on_hash_mismatch": "on_hash_mismatch",
    "missing_output_tokens": "missing_output_tokens",
    "time_unit": "time_unit",
    "prefix_ratio": "trace_prefix_ratio",
    "prefix_groups": "trace_prefix_groups",
}


def load_trace(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    format: str = "auto",
    block_size: int | None = None,
    limit: int | None = None,
    speedup: float = 1.0,
    spread: bool = False,
    on_bad_row: OnBadRow = "error",
    on_hash_mismatch: OnHashMismatch = "error",
    on_overlong: OnOverlong = "reject",
    max_model_len: int | None = None,
    missing_output_tokens: int | None = None,
    time_unit: TimeUnit | None = None,
    prefix_ratio: float = 0.0,
    prefix_groups: int = 0,
) -> Workload:
    """Read trace files into one workload whose earliest session arrives at 0 ms.

    The origin is the earliest first turn; a first turn without a timestamp counts as one at zero. Names of sessions
    hold across files. `loading` of the result counts what became of the rows.

    Args:
        paths: a file or several; `config.schema.SAMPLE_TRACE` is the trace that ships with the package.
        format: a name in `FORMATS`, or auto to recognise it from the beginning of each file.
        block_size: tokens a hash id of the trace stands for; None for what is usual in the format.
        limit: read only that many rows, over all files.
        speedup: divides arrival times and turn delays.
        spread: take arrivals that the trace has rounded to one instant apart; see `spread_arrivals`.
        on_bad_row: what a row that cannot be used does: end the load, or be left out and counted.
        on_hash_mismatch: what a prompt longer than its hash ids cover is: a bad row, or cut to what they cover.
        on_overlong: what becomes of a prompt that reaches `max_model_len`; see `apply_overlong`.
        max_model_len: longest sequence of the engine, in tokens; None for no limit.
        missing_output_tokens: output length of rows that state none; None makes them bad rows.
        time_unit: of times whose unit the file does not state.
        prefix_ratio, prefix_groups: sharing between sessions of a format without content.

    Raises:
        InputError: an option or a file that cannot be used, with file, line and field.
    """
    options = ReadOptions(
        block_size, limit, on_bad_row, on_hash_mismatch, missing_output_tokens, time_unit, prefix_ratio, prefix_groups
    )
    if not (isfinite(speedup) and speedup > 0):
        raise InputError(f"found {speedup}, expected a number above 0", field="speedup")
    _check_ranges(options)
    known = None if format == "auto" else format_called(format)
    files = [fspath(path) for path in ([paths] if isinstance(paths, (str, PathLike)) else paths)]
    if not files:
        raise InputError("no trace file given", field="path")
    for file in files:
        require_file(file)
    reader = recognise(files, block_size) if known is None else known
    _check_honoured(options, reader)
    loading = options.loading
    loading.format = reader.name
    loading.block_size = block_size or reader.block_size
    with _no_garbage_collection():
        workload = reader.read(files, options)
    workload.complete()
    workload.loading = loading
    loading.requests = workload.num_requests
    if not workload.num_requests:
        if not loading.rows:
            raise InputError("contains no requests", source=files[0])
        first = next(iter(loading.first_skipped.values()), "")
        raise InputError(f"contains no request that can be used; the first of its rows: {first}", source=files[0])
    workload = apply_overlong(workload, on_overlong, max_model_len)
    workload.complete()
    _start_clock(workload, speedup, spread)
    return workload


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A load makes no garbage in cycles: looking for it among what is read only costs time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_ranges(options: ReadOptions) -> None:
    block_size = options.block_size
    if block_size is not None and not 1 <= block_size <= MAX_TRACE_BLOCK_SIZE:
        message = f"found {block_size}, expected from 1 to {MAX_TRACE_BLOCK_SIZE} tokens"
        raise InputError(message, field="trace_block_size")
    if options.limit is not None and options.limit < 1:
        raise InputError(f"found {options.limit}, expected at least 1 row", field="limit")
    if not 0.0 <= options.prefix_ratio <= 1.0:
        raise InputError(f"found {options.prefix_ratio}, expected from 0 to 1", field="trace_prefix_ratio")
    if (options.prefix_ratio > 0) != (options.prefix_groups > 0):
        raise InputError(
            "trace_prefix_ratio and trace_prefix_groups have an effect only together: give both above 0, or neither",
            field="trace_prefix_ratio" if options.prefix_ratio else "trace_prefix_groups",
        )


def _check_honoured(options: ReadOptions, reader: TraceFormat) -> None:
    defaults = ReadOptions()
    for name, field in _OPTION_FIELDS.items():
        if name not in reader.options and getattr(options, name) != getattr(defaults, name):
            raise InputError(f"has no effect on the trace format {reader.name}", field=field)


def _start_clock(workload: Workload, speedup: float, spread: bool) -> None:
    """Move the origin of the source's clock to zero, spread arrivals, then divide all times by `speedup`, in place.

    Block by block where all requests have an arrival: their times may be more than memory holds.
    """
    times_ms = np.frombuffer(workload.time_ms, dtype=np.float64)
    blocks = [slice(start, start + _BLOCK_ROWS) for start in range(0, len(times_ms), _BLOCK_ROWS)]
    roots: list[slice | IntColumn] = [*blocks] if workload.has_only_roots else [workload.roots()]
    without_arrival = 0
    earliest_ms = np.inf
    for part in roots:
        arrivals_ms = times_ms[part]
        missing = np.isnan(arrivals_ms)
        arrivals_ms[missing] = 0.0
        times_ms[part] = arrivals_ms
        without_arrival += int(np.count_nonzero(missing))
        earliest_ms = min(earliest_ms, arrivals_ms.min())
    origin_ms = earliest_ms if workload.origin_ms is None else workload.origin_ms
    workload.origin_ms = None
    for part in roots:
        times_ms[part] -= origin_ms
    loading = workload.loading
    if loading is not None:
        loading.without_arrival = without_arrival
    if spread:
        everything = slice(None) if workload.has_only_roots else roots[0]
        apart = spread_arrivals(times_ms[everything])
        times_ms[everything] = apart.times_ms
        if loading is not None:
            loading.spread = apart.moved
            loading.spread_step_ms = apart.step_ms
    for block in blocks:
        with np.errstate(over="ignore"):
            times_ms[block] /= speedup
        check_times(times_ms[block], speedup)
    workload.give_back()


def check_times(times_ms: FloatColumn, factor: float, field: str = "speedup") -> None:
    """Raise an InputError if the factor of a field has stretched times beyond what any workload may have."""
    if not times_ms.max(initial=0.0) <= MAX_TIME_MS:
        raise InputError(
            f"{factor:g} stretches the trace beyond {MAX_TIME_MS:.0f} ms, where milliseconds are no longer told apart",
            field=field,
        )
