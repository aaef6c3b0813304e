"""The order of very many arrivals: sorted in runs on disk and merged, with a bounded part of them in memory.

Decides nothing but the order: by time, equal times by number. A few arrivals are sorted at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Literal

import numpy as np

from windtunnel.disk_columns import DiskColumn, give_back
from windtunnel.workload.session import FloatColumn, IntColumn

RUN_ARRIVALS = 1 << 20
MERGED_AT_ONCE = 1 << 18  # from all runs together


def is_sorted(times_ms: FloatColumn) -> bool:
    """Whether the times never decrease; False if one is not a number."""
    last_ms = -np.inf
    for start in range(0, len(times_ms), RUN_ARRIVALS):
        block = times_ms[start : start + RUN_ARRIVALS]
        if not (block[0] >= last_ms and (block[1:] >= block[:-1]).all()):
            return False
        last_ms = block[-1]
    return True


def arrival_order(
    times_ms: FloatColumn, run_arrivals: int = RUN_ARRIVALS, at_once: int = MERGED_AT_ONCE
) -> tuple[array[int], array[float]]:
    """Numbers of the arrivals in their order, and their times in that order, both on disk.

    Args:
        times_ms: time of each arrival, by number; no NaN.
        run_arrivals, at_once: arrivals in memory while runs are sorted, and while they are merged.
    """
    numbers = DiskColumn(array("q"))
    times = DiskColumn(array("d"))
    starts = range(0, len(times_ms), run_arrivals)
    for start in starts:
        block = times_ms[start : start + run_arrivals]
        order = np.argsort(block, kind="stable")
        numbers.frombytes((order + start).astype(np.int64).tobytes())
        times.frombytes(block[order].tobytes())
    if len(starts) < 2:
        return numbers.mapped(), times.mapped()
    run_numbers, run_times = numbers.mapped(), times.mapped()
    merged_numbers = DiskColumn(array("q"))
    merged_times = DiskColumn(array("d"))
    runs = [(start, min(start + run_arrivals, len(times_ms))) for start in starts]
    for number_block, time_block in _merged(np.asarray(run_numbers), np.asarray(run_times), runs, at_once):
        merged_numbers.frombytes(number_block.tobytes())
        merged_times.frombytes(time_block.tobytes())
        give_back(run_numbers)
        give_back(run_times)
    return merged_numbers.mapped(), merged_times.mapped()


def _merged(
    numbers: IntColumn, times_ms: FloatColumn, runs: list[tuple[int, int]], at_once: int
) -> Iterator[tuple[IntColumn, FloatColumn]]:
    """Blocks of the merged order: of each run everything up to the earliest time at which a window of a run ends.

    Where the run goes on behind such a window, equal times of the runs behind it, which have higher numbers, must wait.
    """
    window = max(1, at_once // len(runs))
    at = [start for start, _ in runs]
    while True:
        open_runs = [run for run, (_, stop) in enumerate(runs) if at[run] < stop]
        if not open_runs:
            return
        stops = {run: min(at[run] + window, runs[run][1]) for run in open_runs}
        last_ms = min(times_ms[stops[run] - 1] for run in open_runs)
        goes_on = [run for run in open_runs if times_ms[stops[run] - 1] == last_ms and stops[run] < runs[run][1]]
        taken = []
        for run in open_runs:
            side: Literal["left", "right"] = "left" if goes_on and run > goes_on[0] else "right"
            count = int(np.searchsorted(times_ms[at[run] : stops[run]], last_ms, side=side))
            taken.append(slice(at[run], at[run] + count))
            at[run] += count
        block_times = np.concatenate([times_ms[part] for part in taken])
        block_numbers = np.concatenate([numbers[part] for part in taken])
        order = np.lexsort((block_numbers, block_times))
        yield block_numbers[order], block_times[order]
