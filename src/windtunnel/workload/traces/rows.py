"""Trace files as numbered rows of text, whatever the format.

Decides what a file and a row are: UTF-8 text, a byte order mark and CR LF accepted, blank lines skipped but counted.
It never looks inside a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from typing import IO

from windtunnel.config.schema import SAMPLE_TRACE
from windtunnel.errors import InputError

_SAMPLE_FILE = "mooncake_conversation_sample.jsonl"
_SAMPLE_SCHEME = "sample:"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"


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
    """The rows of a file, read as they are asked for: (1-based line number, the line's UTF-8 bytes).

    Raises:
        InputError: the file cannot be read, is not UTF-8 text, or has no rows.
    """
    found = False
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = _first_line(line, path)
                if line.isspace() or not line:
                    continue
                if not line.isascii():
                    _require_utf8(line, path, number)
                found = True
                yield number, line
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=path) from None
    if not found:
        raise InputError("contains no requests", source=path)


def first_row(path: str) -> tuple[int, bytes]:
    """The first row of a file that can be read again, as `rows` gives it.

    Raises:
        InputError: as for `rows`, and for a pipe.
    """
    if path != SAMPLE_TRACE and not os.path.isfile(path):
        raise InputError("is not a regular file, so it can be read only once: name its format", source=path)
    return next(rows(path))


def _open(path: str) -> IO[bytes]:
    if path == SAMPLE_TRACE:
        return (resources.files("windtunnel.data") / _SAMPLE_FILE).open("rb")
    return open(path, "rb")


def _first_line(line: bytes, path: str) -> bytes:
    if line.startswith(_GZIP_MAGIC):
        raise InputError("is gzip-compressed, expected plain text", source=path)
    return line.removeprefix(_BYTE_ORDER_MARK)


def _require_utf8(line: bytes, path: str, number: int) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: found byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise InputError(message, source=path, line=number) from None
