"""The `plain` trace format: a CSV with named columns, or JSON lines with members of the same names.

What a column is, and its unit, is in its name: arrival_s (or _ms, _us, _ns), input, output, and optionally session and
id, each under a few usual names. A column called arrival without a unit needs `time_unit`. Lengths only. Rows of one
session are turns, each a delay after the end of the one before it: the difference of their arrivals. A file without
arrivals can only be sent in a closed loop; it is a list of lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from windtunnel.errors import InputError, closest
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.csv_rows import AddCells, input_tokens, number, output_tokens, read_csv_rows
from windtunnel.workload.traces.json_rows import MAX_TIME_MS, OUTPUT_EXPECTED, shown
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import (
    MS_PER_UNIT,
    NOT_A_ROW,
    BadRowError,
    ReadOptions,
    peek,
    read_rows,
)
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder

NAMES = {
    "arrival": ("arrival", "arrival_time"),
    "input": ("input", "input_tokens", "input_length", "prompt_tokens", "prompt_len", "isl"),
    "output": ("output", "output_tokens", "output_length", "completion_tokens", "output_len", "osl"),
    "session": ("session", "session_id"),
    "id": ("id", "request_id"),
}
_ARRIVAL = re.compile(r"(?:arrival|arrival_time|timestamp)_(s|ms|us|ns)")


class Columns:
    """Which column of a file is what, by its names.

    Attributes:
        arrival, input, output, session, id: name of the column, None if there is none.
        ms_per_unit: of the arrival column.
    """

    def __init__(self, names: Sequence[str], options: ReadOptions) -> None:
        """
        Raises:
            InputError: two columns are the same thing, there is no prompt length, or a time without a unit.
        """
        found = {what: [name for name in names if name in known] for what, known in NAMES.items()}
        found["arrival"] += [name for name in names if _ARRIVAL.fullmatch(name)]
        for what, several in found.items():
            if len(several) > 1:
                raise InputError(f"found {' and '.join(several)}, which both mean the {what}: expected one of them")
        self.arrival, self.input, self.output, self.session, self.id = (
            found[what][0] if found[what] else None for what in ("arrival", "input", "output", "session", "id")
        )
        if self.input is None:
            raise InputError(f"has no column called {' or '.join(NAMES['input'])}; {closest('input', names)}")
        self.ms_per_unit = 1.0
        if self.arrival is not None:
            stated = _ARRIVAL.fullmatch(self.arrival)
            unit = stated[1] if stated else options.time_unit
            if unit is None:
                raise InputError(
                    f"states no unit: call the column {self.arrival}_s, {self.arrival}_ms, {self.arrival}_us or "
                    f"{self.arrival}_ns, or give time_unit",
                    field=self.arrival,
                )
            self.ms_per_unit = MS_PER_UNIT[unit]


class Plain:
    """Reader of the format."""

    name = "plain"
    aliases = ("csv", "jsonl")
    row = "columns or members such as arrival_s, input, output and session"
    block_size: int | None = None
    options = frozenset(("missing_output_tokens", "time_unit"))
    fields = frozenset(name for names in NAMES.values() for name in names) | frozenset(
        f"{name}_{unit}" for name in ("arrival", "arrival_time", "timestamp") for unit in MS_PER_UNIT
    )

    def recognises(self, head: Head) -> bool:
        names = set(head.columns) or head.names
        has_arrival = any(_ARRIVAL.fullmatch(name) for name in names) or bool({"arrival", "arrival_time"} & names)
        if head.is_json:
            return has_arrival and bool(names & set(NAMES["input"]))
        return bool(names & set(NAMES["input"])) and (has_arrival or names <= self.fields)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        builder = _Builder(", ".join(paths), options)
        for path in paths:
            if options.loading.rows == options.limit:
                break
            first, open_rows = peek(path)
            if first.lstrip().startswith(b"{"):
                read_rows([path], options, _json_adder(builder), open_rows=open_rows)
            else:
                read_csv_rows([path], options, builder.bind, open_rows=open_rows)
        return builder.sessions.workload


class _Builder:
    def __init__(self, source: str, options: ReadOptions) -> None:
        self.sessions = SessionBuilder(source)
        self.options = options

    def bind(self, names: list[str]) -> AddCells:
        """What takes the cells of rows under this header."""
        columns = Columns(names, self.options)
        place = {name: names.index(name) for name in names}

        def add(cells: list[str]) -> None:
            self.add(columns, lambda name: cells[place[name]] if name is not None else None)

        return add

    def add(self, columns: Columns, cell: Callable[[str | None], str | None]) -> None:
        """Append the row whose cell under a column is what `cell` gives; empty cells are not stated."""
        prompt = input_tokens(cell(columns.input) or "", columns.input or "")
        stated = cell(columns.output) or ""
        if not stated.strip():
            if self.options.missing_output_tokens is None:
                raise BadRowError(f"missing, expected {OUTPUT_EXPECTED}", field=columns.output or "output")
            output = self.options.missing_output_tokens
        else:
            output = output_tokens(stated, columns.output or "")
        arrival = cell(columns.arrival) or ""
        timestamp_ms: float | None = None
        if arrival.strip():
            limit = MAX_TIME_MS / columns.ms_per_unit
            timestamp_ms = number(arrival, columns.arrival or "", "a time", -limit, limit) * columns.ms_per_unit
        session = (cell(columns.session) or "").strip() or None
        sessions = self.sessions
        time_ms = sessions.time_ms(session, timestamp_ms, None, timestamp_field=columns.arrival or "arrival")
        sessions.add(
            unique_prompt(sessions.workload.num_requests, prompt),
            output,
            session_name=session,
            request_id=(cell(columns.id) or "").strip() or None,
            time_ms=time_ms,
            timestamp_ms=timestamp_ms,
        )
        self.options.loading.without_output += not stated.strip()
        if columns.arrival is None:
            sessions.workload.needs_concurrency = "the file has no arrival times"


def _json_adder(builder: _Builder) -> Callable[[bytes], None]:
    """What takes rows of JSON: the names of the first row's members are those of the columns."""
    bound: dict[frozenset[str], Columns] = {}

    def add(text: bytes) -> None:
        row = _members(text)
        names = frozenset(row)
        columns = bound.get(names)
        if columns is None:
            try:
                columns = bound[names] = Columns(sorted(names), builder.options)
            except InputError as error:
                raise BadRowError(error.message, field=error.field) from None
        builder.add(columns, lambda name: _cell(row, name))

    return add


def _members(text: bytes) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise BadRowError("is not plain JSON, expected one object a line", kind=NOT_A_ROW) from None
    if not isinstance(row, dict):
        raise BadRowError(f"found {shown(row)}, expected an object", kind=NOT_A_ROW)
    return row


def _cell(row: Mapping[str, Any], name: str | None) -> str | None:
    """A member as the cell of a table would have it."""
    value = row.get(name) if name is not None else None
    if value is None or isinstance(value, str):
        return value
    return shown(value) if isinstance(value, (bool, list, dict)) else repr(value)
