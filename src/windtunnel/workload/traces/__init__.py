"""Trace formats: one module each, and the registry that finds the right one.

Decides which format reads a file, and puts the arrival times of what was read on the clock of a simulation. It never
knows the fields of a row; formats never know the simulation's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from os import PathLike, fspath
from typing import Protocol

import numpy as np

from windtunnel.errors import InputError, closest
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.mooncake import Mooncake
from windtunnel.workload.traces.rows import first_row, require_file


class TraceFormat(Protocol):
    """How to read one kind of trace. To add one, put an instance into `FORMATS`.

    Attributes:
        name: what users call it.
        row: what one of its rows is, in a few words, for errors.
    """

    name: str
    row: str

    def recognises(self, first_row: bytes) -> bool:
        """Whether a file that begins with this row (UTF-8) looks like one of this format. Must not raise."""
        ...

    def read(self, paths: Sequence[str], *, block_size: int, limit: int | None) -> Workload:
        """Read all files as one workload, at most `limit` rows, times in ms as they stand in the files.

        Raises:
            InputError: with file, line and field.
        """
        ...


# In the order in which `auto` asks them.
FORMATS: dict[str, TraceFormat] = {"mooncake": Mooncake()}

# Keeps hash id * block size inside 64 bits; the largest blocks in published traces have 512 tokens.
MAX_TRACE_BLOCK_SIZE = 2**20


def load_trace(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    format: str = "auto",
    block_size: int = 512,
    limit: int | None = None,
    speedup: float = 1.0,
) -> Workload:
    """Read trace files into one workload whose earliest session arrives at 0 ms.

    The origin is the earliest first turn; a first turn without a timestamp counts as one at zero. Names of sessions
    hold across files.

    Args:
        paths: a file or several; `config.schema.SAMPLE_TRACE` is the trace that ships with the package.
        format: a name in `FORMATS`, or auto to recognise it from the first row of each file.
        block_size: tokens a hash id of the trace stands for.
        limit: read only that many rows, over all files.
        speedup: divides arrival times and turn delays.

    Raises:
        InputError: an option or a file that cannot be used, with file, line and field.
    """
    _check_options(format, block_size, limit, speedup)
    files = [fspath(path) for path in ([paths] if isinstance(paths, (str, PathLike)) else paths)]
    if not files:
        raise InputError("no trace file given", field="path")
    for file in files:
        require_file(file)
    if format == "auto":
        format = _recognise(files)
    workload = FORMATS[format].read(files, block_size=block_size, limit=limit)
    _start_clock(workload, speedup)
    return workload


def _check_options(format: str, block_size: int, limit: int | None, speedup: float) -> None:
    if format != "auto" and format not in FORMATS:
        raise InputError(f"unknown trace format '{format}'; {closest(format, ['auto', *FORMATS])}", field="format")
    if not 1 <= block_size <= MAX_TRACE_BLOCK_SIZE:
        message = f"found {block_size}, expected from 1 to {MAX_TRACE_BLOCK_SIZE} tokens"
        raise InputError(message, field="trace_block_size")
    if limit is not None and limit < 1:
        raise InputError(f"found {limit}, expected at least 1 row", field="limit")
    if not (isfinite(speedup) and speedup > 0):
        raise InputError(f"found {speedup}, expected a number above 0", field="speedup")


def _recognise(paths: Sequence[str]) -> str:
    """The one format that the first rows of all files look like."""
    chosen = ""
    for path in paths:
        line, row = first_row(path)
        name = next((name for name, known in FORMATS.items() if known.recognises(row)), None)
        if name is None:
            expected = "; ".join(f"{name}: {known.row}" for name, known in FORMATS.items())
            start = row.strip().decode()
            found = start if len(start) <= 60 else start[:57] + "..."
            raise InputError(
                f"fits no known trace format ({expected}); name one with `format` if it is; found {found}",
                source=path,
                line=line,
            )
        if chosen and name != chosen:
            message = f"looks like {name}, but {paths[0]} like {chosen}: files read together have one format"
            raise InputError(message, source=path)
        chosen = name
    return chosen


def _start_clock(workload: Workload, speedup: float) -> None:
    """Move the earliest arrival to zero, then divide all times by `speedup`, in place."""
    times_ms = np.frombuffer(workload.time_ms, dtype=np.float64)
    first_turns = np.frombuffer(workload.first_turn, dtype=np.int64)
    arrivals_ms = times_ms[first_turns]
    arrivals_ms[np.isnan(arrivals_ms)] = 0.0
    times_ms[first_turns] = arrivals_ms - arrivals_ms.min()
    with np.errstate(over="ignore"):
        times_ms /= speedup
    if not np.isfinite(times_ms).all():
        raise InputError(f"{speedup} stretches the trace beyond what a number can hold", field="speedup")
