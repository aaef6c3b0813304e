"""Lengths that were observed: of a table of nothing but lengths, or of any trace.

Decides which rows count: those whose lengths are all at least 1. It never looks at arrivals or content. Rows keep
both of their lengths together, so that pairs drawn from them are correlated as in the file.
"""

from __future__ import annotations

from os import fspath

import numpy as np
import numpy.typing as npt

from windtunnel.errors import InputError
from windtunnel.workload.traces import load_trace
from windtunnel.workload.traces.csv_rows import AddCells, output_tokens, read_csv_rows
from windtunnel.workload.traces.plain import NAMES
from windtunnel.workload.traces.reading import ReadOptions
from windtunnel.workload.traces.rows import read_head, require_file

IntColumn = npt.NDArray[np.int64]


class LengthFile:
    """The lengths in a file.

    Attributes:
        path: the file.
        rows: rows of the file.
        input_tokens, output_tokens: of the rows that can be used, one entry each; None if the file has no outputs.
    """

    __slots__ = ("input_tokens", "output_tokens", "path", "rows")

    def __init__(self, path: str, rows: int, inputs: IntColumn, outputs: IntColumn | None) -> None:
        self.path = path
        self.rows = rows
        self.input_tokens = inputs
        self.output_tokens = outputs

    def outputs(self) -> IntColumn:
        """The output lengths.

        Raises:
            InputError: the file has none.
        """
        if self.output_tokens is None:
            raise InputError("has no column of output lengths", source=self.path)
        return self.output_tokens


def read_lengths(path: str) -> LengthFile:
    """The lengths of a table whose columns are all lengths, else of a trace in any format.

    Raises:
        InputError: the file cannot be read, or no row of it has lengths of at least 1.
    """
    path = fspath(path)
    require_file(path)
    names = set(read_head(path).columns)
    lengths_only = names and names <= {*NAMES["input"], *NAMES["output"]} and names & set(NAMES["input"])
    file = _read_table(path) if lengths_only else _read_trace(path)
    usable = file.input_tokens > 0
    if file.output_tokens is not None:
        usable &= file.output_tokens > 0
        file.output_tokens = file.output_tokens[usable]
    file.input_tokens = file.input_tokens[usable]
    if not len(file.input_tokens):
        raise InputError("has no row whose lengths are all at least 1", source=path)
    return file


def _read_table(path: str) -> LengthFile:
    inputs: list[int] = []
    outputs: list[int] = []
    has_outputs = False

    def bind(columns: list[str]) -> AddCells:
        nonlocal has_outputs
        places = [[i for i, name in enumerate(columns) if name in NAMES[what]] for what in ("input", "output")]
        for found, what in zip(places, ("input", "output"), strict=True):
            if len(found) > 1:
                raise InputError(f"found {len(found)} columns of {what} lengths, expected one")
        (prompt,), output = places[0], places[1]
        has_outputs = bool(output)

        def add(cells: list[str]) -> None:
            # An empty or zero cell is a length that nobody observed, as in published summaries of data sets.
            inputs.append(_length(cells[prompt], columns[prompt]))
            if output:
                outputs.append(_length(cells[output[0]], columns[output[0]]))

        return add

    options = ReadOptions()
    read_csv_rows([path], options, bind)
    return LengthFile(
        path, len(inputs), np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64) if has_outputs else None
    )


def _length(cell: str, name: str) -> int:
    return output_tokens(cell, name) if cell.strip() else 0


def _read_trace(path: str) -> LengthFile:
    workload = load_trace([path], on_bad_row="skip")
    rows = workload.num_requests
    if workload.loading is not None:
        rows += workload.loading.skipped_rows
    return LengthFile(
        path, rows, np.array(workload.input_tokens, dtype=np.int64), np.array(workload.output_tokens, dtype=np.int64)
    )
