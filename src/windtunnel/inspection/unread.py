"""Which columns or members of a trace file nothing reads, found by looking at its rows a second time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from windtunnel.config.schema import SAMPLE_TRACE
from windtunnel.workload.traces.rows import read_head, read_whole, rows

MOST_ROWS = 10_000


def unread_names(paths: Sequence[str], read: frozenset[str]) -> tuple[dict[str, int], int]:
    """Names that are not among those that are read, with the number of rows that have them; and the rows looked at.

    Rows that are not JSON are passed over, and pipes. Of a file that is one value the entries, or the value itself, are
    its rows.
    """
    found: Counter[str] = Counter()
    looked_at = 0
    for path in paths:
        if path != SAMPLE_TRACE and not os.path.isfile(path):
            continue  # a pipe, which is empty by now
        head = read_head(path)
        if not head.is_json:
            num_rows = sum(1 for _ in rows(path)) - 1
            looked_at += num_rows
            for name in head.columns:
                if name not in read:
                    found[name] += num_rows
            continue
        for value in _values(path, head.first):
            if looked_at == MOST_ROWS:
                break
            looked_at += 1
            found.update(unread_in(value, read))
    return dict(found), looked_at


def _values(path: str, first: bytes) -> Sequence[Any]:
    if first.startswith(b"["):
        value = decoded(read_whole(path))
        return value if isinstance(value, list) else []
    values = []
    for number, (_, text) in enumerate(rows(path)):
        if number == MOST_ROWS:
            break
        values.append(decoded(text))
    return values


def decoded(text: bytes) -> Any:
    """A JSON value, None if the text is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def unread_in(value: Any, fields: frozenset[str]) -> set[str]:
    """Names of members that are not read, at any depth except below one of those."""
    names: set[str] = set()
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            names.update(part.keys() - fields)
            todo.extend(inner for name, inner in part.items() if name in fields)
        elif isinstance(part, list) and part and isinstance(part[0], (dict, list)):
            todo.extend(part)
    return names
