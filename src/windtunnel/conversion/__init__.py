"""Workloads as trace files of a format: which part of them, how they are re-timed, and what is lost.

Decides the order of things: a slice is cut out on the clock of the trace, then times are scaled, then rows are written.
What a file means is decided by its reader alone: a writer writes what the reader of its format reads back.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Iterator
from copy import copy
from typing import BinaryIO

import numpy as np

from windtunnel.conversion.losses import Loss, Losses
from windtunnel.conversion.row_facts import note_lost_facts
from windtunnel.conversion.slicing import slice_workload
from windtunnel.conversion.writers.registry import WRITERS, writer_called
from windtunnel.conversion.writers.writer import TraceWriter, WriteOptions
from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import check_times

__all__ = [
    "WRITERS",
    "Loss",
    "Losses",
    "TraceWriter",
    "WriteOptions",
    "rescale",
    "slice_workload",
    "write_trace",
    "writer_called",
]

_LINES_AT_ONCE = 4096


def rescale(workload: Workload, *, speedup: float = 1.0, rate_per_s: float | None = None) -> Workload:
    """The workload with arrivals and delays divided by `speedup`, or so that arrivals come at a mean rate.

    The rate is what `windtunnel inspect` shows: arrivals over the time from the first to the last.

    Raises:
        InputError: all arrivals are at one instant, which no factor spreads.
    """
    times_ms = np.array(workload.time_ms, dtype=np.float64)
    if rate_per_s is not None:
        arrivals_ms = times_ms[workload.roots()]
        span_ms = float(np.ptp(arrivals_ms))
        if not span_ms:
            raise InputError("all requests arrive at one instant, so their rate cannot be scaled", field="rate")
        speedup = rate_per_s * span_ms / (1000.0 * len(arrivals_ms))
    if speedup == 1.0:
        return workload
    result = copy(workload)
    with np.errstate(over="ignore"):
        times_ms /= speedup
    if rate_per_s is None:
        check_times(times_ms, speedup)
    else:
        check_times(times_ms, rate_per_s, "rate")
    result.time_ms = array("d", times_ms.tobytes())
    return result


def write_trace(
    workload: Workload, writer: TraceWriter, file: BinaryIO, options: WriteOptions, *, compress: bool = False
) -> list[Loss]:
    """Write a workload; what is lost for it.

    Args:
        compress: with gzip, the same bytes for the same rows.

    Raises:
        InputError: the workload has no meaning in the format.
    """
    losses = Losses()
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if compress else None
    target = packed or file
    for block in _blocks(writer.lines(workload, options, losses)):
        target.write(block)
    if packed is not None:
        packed.close()
    note_lost_facts(workload, losses, keeps_urgency=writer.keeps_urgency, keeps_outputs=writer.keeps_outputs)
    return losses.found


def _blocks(lines: Iterator[str]) -> Iterator[bytes]:
    block: list[str] = []
    for line in lines:
        block.append(line)
        if len(block) == _LINES_AT_ONCE:
            yield ("\n".join(block) + "\n").encode()
            block = []
    if block:
        yield ("\n".join(block) + "\n").encode()
