"""Files that are one JSON value: a list of rows, or a single object.

Decides where a list is one value and where it is a row a line, and how places in it are named: entry n of the list is
called [n], counted from 0 as in the value. A value that is not JSON at all cannot be read in part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from windtunnel.errors import InputError
from windtunnel.workload.traces.json_rows import explain, read_json_rows
from windtunnel.workload.traces.reading import OpenRows, ReadOptions, peek, refuse
from windtunnel.workload.traces.rows import read_whole

_Row = TypeVar("_Row")


def read_list(
    paths: Sequence[str], options: ReadOptions, row: type[_Row], words: str, add: Callable[[_Row], None]
) -> None:
    """Give each row of all files to `add`, whether a file is a list of them or has one a line. See `read_json_rows`."""
    decode = msgspec.json.Decoder(row).decode
    loading = options.loading
    for path in paths:
        if loading.rows == options.limit:
            return
        first, open_rows = peek(path)
        if not first.lstrip().startswith(b"["):
            read_json_rows([path], options, row, words, add, open_rows=open_rows)
            continue
        for place, entry in enumerate(_entries(path, open_rows)):
            try:
                try:
                    decoded = decode(entry)
                except (msgspec.DecodeError, RecursionError):
                    raise explain(bytes(entry), row, words) from None
                add(decoded)
            except InputError as error:
                error.field = f"[{place}].{error.field}" if error.field else f"[{place}]"
                refuse(error, options, path, None)
            loading.rows += 1
            if loading.rows == options.limit:
                return


def read_object(path: str, row: type[_Row], words: str) -> _Row:
    """The one object that a file is.

    Raises:
        InputError: it is not one, or not of this kind.
    """
    data = read_whole(path)
    try:
        return msgspec.json.Decoder(row).decode(data)
    except (msgspec.DecodeError, RecursionError):
        problem = _not_json(data, path) or explain(data, row, words)
        problem.source = path
        raise problem from None


def _entries(path: str, open_rows: OpenRows) -> list[msgspec.Raw]:
    parts = []
    following = 1
    for line, text in open_rows(path):
        parts += [b"\n" * (line - following), text]  # blank lines count
        following = line + 1
    data = b"".join(parts)
    try:
        return msgspec.json.Decoder(list[msgspec.Raw]).decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise _not_json(data, path) or InputError(
            "is not plain JSON, expected a list of objects", source=path
        ) from None


def _not_json(data: bytes, path: str) -> InputError | None:
    try:
        json.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return InputError(f"is not UTF-8 text: found byte 0x{data[error.start]:02x}", source=path, line=line)
    except json.JSONDecodeError as error:
        return InputError(f"is not JSON from column {error.colno} on ({error.msg})", source=path, line=error.lineno)
    except RecursionError:
        return InputError("is nested too deeply", source=path)
    except ValueError:  # Python's limit on the digits of an integer
        return InputError("holds a number of thousands of digits", source=path)
    return None
