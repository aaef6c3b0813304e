"""Reads the rows of trace files into a workload, whatever the format: what is asked of it, and what a bad row does.

Decides which rows are read (all, or the first so many), and whether a row that cannot be used ends the load or is
left out and counted. It never looks inside a row: a format does, and raises `BadRowError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, Protocol

from windtunnel.errors import InputError
from windtunnel.workload.loading import Loading
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.rows import Head, require_utf8, rows

OnBadRow = Literal["error", "skip"]
OnHashMismatch = Literal["error", "clip"]
TimeUnit = Literal["s", "ms", "us", "ns"]

OpenRows = Callable[[str], Iterator[tuple[int, bytes]]]

MS_PER_UNIT: dict[str, float] = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}

# Kinds of bad rows, as reports count them.
NOT_TEXT = "not UTF-8 text"
NOT_A_ROW = "not a row of the format"
WRONG_VALUE = "missing or wrong value"
ZERO_TOKENS = "no input tokens"
HASH_MISMATCH = "hash ids do not match the length"
CONTRADICTION = "contradicts itself or an earlier row"
DUPLICATE_ID = "request id seen before"
UNKNOWN_DEPENDENCY = "waits for an unknown request"
DEPENDENCY_CYCLE = "waits for itself in a circle"


class BadRowError(InputError):
    """A row that cannot be used.

    Attributes:
        kind: one of the kinds above.
    """

    def __init__(self, message: str, *, kind: str = WRONG_VALUE, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.kind = kind


@dataclass
class ReadOptions:
    """What is asked of a format.

    Attributes:
        block_size: tokens a hash id stands for; None for the format's own.
        limit: rows to read, over all files.
        on_bad_row: whether a row that cannot be used is an error, or skipped and counted.
        on_hash_mismatch: whether a prompt longer than its hash ids cover is a bad row, or cut to what they cover.
        missing_output_tokens: output length of rows that state none; None makes such a row a bad one.
        time_unit: of times whose unit the file does not state.
        prefix_ratio, prefix_groups: share of a first prompt's blocks that all sessions of a group have in common, and
            the number of such groups, for formats without any content.
        loading: counts to write.
    """

    block_size: int | None = None
    limit: int | None = None
    on_bad_row: OnBadRow = "error"
    on_hash_mismatch: OnHashMismatch = "error"
    missing_output_tokens: int | None = None
    time_unit: TimeUnit | None = None
    prefix_ratio: float = 0.0
    prefix_groups: int = 0
    loading: Loading = field(default_factory=Loading)


class TraceFormat(Protocol):
    """How to read one kind of trace. To add one, put an instance into `FORMATS`.

    Attributes:
        name: what users call it.
        aliases: other names for it.
        row: what one of its rows is, in a few words, for errors.
        block_size: tokens a hash id stands for unless the user says otherwise; None: it has none, or states it itself.
        options: the names of `ReadOptions` that it honours besides `limit` and `on_bad_row`.
        fields: names of members or columns that it reads, at any depth; those of its rows that are not here are unread.
    """

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def row(self) -> str: ...

    @property
    def block_size(self) -> int | None: ...

    @property
    def options(self) -> frozenset[str]: ...

    @property
    def fields(self) -> frozenset[str]: ...

    def recognises(self, head: Head) -> bool:
        """Whether a file that begins like this looks like one of this format. Must not raise."""
        ...

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload, times in ms on the clock of the files.

        Raises:
            InputError: with file, line and field.
        """
        ...


def read_rows(
    paths: Sequence[str],
    options: ReadOptions,
    add: Callable[[bytes], None],
    *,
    header: Callable[[bytes], None] | None = None,
    place: Callable[[str, int], None] | None = None,
    open_rows: OpenRows = rows,
) -> None:
    """Give each row of all files to `add`, which must not keep anything of a row that it raises `BadRowError` for.

    Args:
        header: takes the first row of each file, which is no row then.
        place: told the file and line of each row before it.
        open_rows: gives the rows of a file, for callers that have looked at the first one.
    """
    loading = options.loading
    for path in paths:
        lines = open_rows(path)
        if header is not None:
            _read_header(path, next(lines), header)
        for line, text in lines:
            try:
                if place is not None:
                    place(path, line)
                if not text.isascii():
                    require_utf8(text, path, line)
                add(text)
            except InputError as error:
                refuse(error, options, path, line)
            loading.rows += 1
            if loading.rows == options.limit:
                return


def _read_header(path: str, row: tuple[int, bytes], header: Callable[[bytes], None]) -> None:
    line, text = row
    require_utf8(text, path, line)
    if b"\r" in text.rstrip(b"\r\n"):
        raise InputError("has lines that end with a carriage return alone, expected a line feed", source=path)
    try:
        header(text)
    except InputError as error:
        error.source, error.line = path, line
        _make_one_line(error)
        raise


def peek(path: str) -> tuple[bytes, OpenRows]:
    """The first row of a file, and what gives all its rows without reading it again: it may be a pipe."""
    lines = rows(path)
    first = next(lines)
    return first[1], lambda _: chain([first], lines)


def refuse(error: InputError, options: ReadOptions, path: str, line: int | None) -> None:
    """Say where a bad row is; raise it, or count it if bad rows are skipped."""
    error.source, error.line = path, line
    _make_one_line(error)
    if options.on_bad_row == "error":
        raise error from None
    kind = error.kind if isinstance(error, BadRowError) else NOT_TEXT
    options.loading.skip(kind, str(error))


def one_line(text: str) -> str:
    """A text of a file as an error can quote it: what cannot be printed is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _make_one_line(error: InputError) -> None:
    error.message = one_line(error.message)
    error.field = one_line(error.field) if error.field else error.field
