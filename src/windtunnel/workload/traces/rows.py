"""Trace files as numbered rows of text, whatever the format.

Decides what a row is: a byte order mark and CR LF are accepted, blank lines skipped but counted. It never looks inside
one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import IO

from windtunnel.config.schema import SAMPLE_TRACE
from windtunnel.errors import InputError
from windtunnel.workload.traces.decompress import decompressed

_SAMPLE_FILE = "mooncake_conversation_sample.jsonl"
_SAMPLE_SCHEME = "sample:"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 17
_MEMBER_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')


class Head:
    """The beginning of a file, by which formats recognise it.

    Attributes:
        line: number of the first row.
        rows: the first rows, from the first that is not blank; together about 64 KiB, the last one may be cut off.
        names: names of members, at any depth, if the first row begins a JSON value; else empty.
        columns: the cells of the first row if it does not, without quotes and surrounding space; else empty.
        block_size: what the user says a hash id stands for, None if that is left to the format.
    """

    __slots__ = ("block_size", "columns", "line", "names", "rows")

    def __init__(self, line: int, rows: list[bytes], block_size: int | None = None) -> None:
        self.line = line
        self.block_size = block_size
        self.rows = rows
        self.names: frozenset[str] = frozenset()
        self.columns: tuple[str, ...] = ()
        if self.is_json:
            found = _MEMBER_NAME.findall(b"\n".join(rows))
            self.names = frozenset(name.decode(errors="replace") for name in found)
        else:
            self.columns = tuple(cell.strip().strip('"') for cell in self.first.decode(errors="replace").split(","))

    @property
    def first(self) -> bytes:
        """The first row."""
        return self.rows[0]

    @property
    def is_json(self) -> bool:
        """Whether the file begins like a JSON object or list."""
        return self.first.lstrip()[:1] in (b"{", b"[")


def require_file(path: str) -> None:
    """Raise an InputError if there is nothing to read at `path`: no file, a directory, or an unknown sample."""
    if path == SAMPLE_TRACE:
        return
    if path.startswith(_SAMPLE_SCHEME):
        raise InputError(f"no such sample trace; did you mean '{SAMPLE_TRACE}'?", source=path)
    if os.path.isdir(path):
        raise InputError("is a directory, expected a trace file", source=path)
    if not os.path.exists(path):
        raise InputError("no such file", source=path)


def rows(path: str) -> Iterator[tuple[int, bytes]]:
    """The rows of a file, read as they are asked for: (1-based line number, the line's bytes).

    Raises:
        InputError: the file cannot be read, or has no rows.
    """
    found = False
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if line.isspace() or not line:
                continue
            found = True
            yield number, line
    if not found:
        raise InputError("contains no requests", source=path)


def blocks(path: str) -> Iterator[tuple[int, bytes]]:
    """The rows of a file, many at a time: (line number of the first, whole lines), blank lines among them.

    Raises:
        InputError: as for `rows`.
    """
    line = 1
    found = False
    with _open(path) as file:
        rest = b""
        while chunk := file.read(_BLOCK_BYTES):
            end = chunk.rfind(b"\n") + 1
            if not end:
                rest += chunk
                continue
            block = rest + chunk[:end]
            rest = chunk[end:]
            if line == 1:
                block = block.removeprefix(_BYTE_ORDER_MARK)
            found = found or not block.isspace()
            yield line, block
            line += block.count(b"\n")
        if line == 1:
            rest = rest.removeprefix(_BYTE_ORDER_MARK)
        found = found or bool(rest.strip())
        if rest:
            yield line, rest
    if not found:
        raise InputError("contains no requests", source=path)


def read_whole(path: str) -> bytes:
    """All of a file that is one value: its bytes without a byte order mark.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    with _open(path) as file:
        data = file.read().removeprefix(_BYTE_ORDER_MARK)
    if not data.strip():
        raise InputError("contains no requests", source=path)
    return data


def read_head(path: str, block_size: int | None = None) -> Head:
    """The beginning of a file that can be read again.

    Raises:
        InputError: as for `rows`, for a pipe, and if the first row is not UTF-8 text.
    """
    if path != SAMPLE_TRACE and not os.path.isfile(path):
        raise InputError("is not a regular file, so it can be read only once: name its format", source=path)
    first_line = 0
    size = 0
    kept: list[bytes] = []
    for number, line in rows(path):
        if not kept:
            first_line = number
            require_utf8(line, path, number)
        line = line.strip()[:_HEAD_BYTES]
        kept.append(line)
        size += len(line) + 1
        if size >= _HEAD_BYTES:
            break
    return Head(first_line, kept, block_size)


def require_utf8(line: bytes, path: str, number: int) -> None:
    """Raise an InputError that names the first byte of a line that is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: found byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise InputError(message, source=path, line=number) from None


@contextmanager
def _open(path: str) -> Iterator[IO[bytes]]:
    if path == SAMPLE_TRACE:
        with (resources.files("windtunnel.data") / _SAMPLE_FILE).open("rb") as sample:
            yield sample
    else:
        with decompressed(path) as file:
            yield file
