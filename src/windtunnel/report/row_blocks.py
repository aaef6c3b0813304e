"""The requests of a record a block at a time, so that a report on any number of them needs the memory of one block.

Decides where blocks end, which is the same wherever columns live; so sums of floats are the same too. It gives back
what memory holds of columns on disk after each block. What is made of a block, others decide.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from windtunnel.disk_columns import DiskColumn, first_row_on_disk
from windtunnel.record.columns import Record
from windtunnel.report.distribution import SUMMED_AT_ONCE, FloatArray, IntArray
from windtunnel.workload.arrival_order import arrival_order, is_sorted
from windtunnel.workload.session import Workload

BLOCK_ROWS = 1 << 18

Rows: TypeAlias = slice | IntArray


class Samples:
    """Numbers that are collected part by part, on disk when they are many."""

    def __init__(self) -> None:
        self._values: array[float] | DiskColumn = array("d")

    def add(self, values: FloatArray) -> None:
        """Append some."""
        if isinstance(self._values, array) and len(self._values) + len(values) >= first_row_on_disk():
            self._values = DiskColumn(self._values)
        self._values.frombytes(values.astype(np.float64).tobytes())

    def __len__(self) -> int:
        return len(self._values)

    def blocks(self) -> Iterator[FloatArray]:
        """All of them in order, so many at once as are summed together."""
        for start in range(0, len(self), SUMMED_AT_ONCE):
            yield np.asarray(self._values[start : start + SUMMED_AT_ONCE], dtype=np.float64)


def row_blocks(record: Record, workload: Workload | None = None) -> Iterator[slice]:
    """The rows of all requests in order; one empty block if there are none."""
    num_requests = record.requests.num_requests
    for start in range(0, max(num_requests, 1), BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, num_requests))
        if num_requests > BLOCK_ROWS:
            record.give_back()
            if workload is not None:
                workload.give_back()


def arrival_blocks(record: Record, workload: Workload | None = None) -> Iterator[Rows]:
    """The same in the order of arrival; what never arrived comes last."""
    arrival_ms = np.asarray(record.requests.arrival_ms, dtype=np.float64)
    if len(arrival_ms) <= BLOCK_ROWS:
        yield np.argsort(arrival_ms, kind="stable")  # NaN sorts last
        return
    if is_sorted(arrival_ms):
        yield from row_blocks(record, workload)
        return
    order = arrival_order(arrival_ms)[0]  # NaN sorts last here too
    for block in row_blocks(record, workload):
        yield np.array(order[block], dtype=np.int64)


def numbers_of(rows: Rows, num_requests: int) -> IntArray:
    """The numbers of the requests in some rows."""
    return np.arange(*rows.indices(num_requests)) if isinstance(rows, slice) else rows


def ints(column: object, rows: Rows) -> IntArray:
    """Some rows of a column of integers."""
    found: IntArray = np.asarray(column, dtype=np.int64)[rows]
    return found


def floats(column: object, rows: Rows) -> FloatArray:
    """Some rows of a column of floats."""
    found: FloatArray = np.asarray(column, dtype=np.float64)[rows]
    return found
