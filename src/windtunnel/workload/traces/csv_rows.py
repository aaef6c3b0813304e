"""Rows of a table with commas and a header: which cell is which, and what is wrong with one.

Decides how cells are told apart and what counts as a number in one: plain decimal notation, whole numbers also with a
zero fraction ("12.0", as spreadsheets and data frames write them). Columns are found by name, never by position.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from math import isfinite

from windtunnel.errors import InputError, closest
from windtunnel.workload.traces.json_rows import MAX_TOKENS
from windtunnel.workload.traces.reading import (
    NOT_A_ROW,
    ZERO_TOKENS,
    BadRowError,
    OpenRows,
    ReadOptions,
    read_rows,
)
from windtunnel.workload.traces.rows import rows

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"(\d{1,15})(\.0*)?")

AddCells = Callable[[list[str]], None]


def read_csv_rows(
    paths: Sequence[str],
    options: ReadOptions,
    bind: Callable[[list[str]], AddCells],
    *,
    open_rows: OpenRows = rows,
) -> None:
    """Give the cells of each row of all files to what `bind` makes of the header of the file. See `read_rows`.

    Raises:
        InputError: a header that `bind` refuses, or a row that cannot be used.
    """
    num_columns = 0
    add_cells: AddCells = list.clear  # never called: each file has a header

    def header(text: bytes) -> None:
        nonlocal num_columns, add_cells
        columns = [cell.strip() for cell in _cells(text)]
        num_columns = len(columns)
        add_cells = bind(columns)

    def add(text: bytes) -> None:
        cells = _cells(text)
        if len(cells) != num_columns:
            raise BadRowError(f"found {len(cells)} cells, expected {num_columns} as in the header", kind=NOT_A_ROW)
        add_cells(cells)

    read_rows(paths, options, add, header=header, open_rows=open_rows)


def column(columns: Sequence[str], name: str) -> int:
    """Place of a column that must be there, once.

    Raises:
        InputError: it is not.
    """
    if columns.count(name) > 1:
        raise InputError(f"found {columns.count(name)} columns of this name, expected one", field=name)
    if name not in columns:
        raise InputError(f"no such column in the header; {closest(name, columns)}", field=name)
    return columns.index(name)


def input_tokens(cell: str, name: str) -> int:
    """A prompt length."""
    tokens = _whole(cell)
    if tokens is None or not 1 <= tokens <= MAX_TOKENS:
        kind = {"kind": ZERO_TOKENS} if tokens == 0 else {}
        raise BadRowError(f"found {_shown(cell)}, expected an integer from 1 to {MAX_TOKENS}", field=name, **kind)
    return tokens


def output_tokens(cell: str, name: str) -> int:
    """An output length."""
    tokens = _whole(cell)
    if tokens is None or tokens > MAX_TOKENS:
        raise BadRowError(f"found {_shown(cell)}, expected an integer from 0 to {MAX_TOKENS}", field=name)
    return tokens


def number(cell: str, name: str, words: str, low: float, high: float) -> float:
    """A finite number from `low` to `high`; `words` say what it is."""
    text = cell.strip()
    value = float(text) if _NUMBER.fullmatch(text) else float("nan")
    if not (isfinite(value) and low <= value <= high):
        raise BadRowError(f"found {_shown(cell)}, expected {words}", field=name)
    return value


def _whole(cell: str) -> int | None:
    match = _WHOLE.fullmatch(cell.strip())
    return int(match[1]) if match else None


def _cells(text: bytes) -> list[str]:
    line = text.decode().rstrip("\r\n")
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise BadRowError(f"is not a row of cells: {error}", kind=NOT_A_ROW) from None


def _shown(cell: str) -> str:
    text = repr(cell.strip())
    return text if len(text) <= 40 else text[:37] + "..."
