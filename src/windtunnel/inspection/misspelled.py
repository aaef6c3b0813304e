"""Fields of a trace that look like a known one written wrongly.

Decides by the rows in the first 64 KiB of each file, so that a run can afford to ask. A name that nothing reads is
taken for a misspelling if it is close to a name that its format reads and that the row does not have. It changes
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from windtunnel.config.schema import SAMPLE_TRACE
from windtunnel.inspection.unread import decoded, unread_in
from windtunnel.workload.traces.rows import Head, read_head

MOST_SLIPS = 2  # letters too many, too few, wrong, or changed with their neighbour
LETTERS_A_SLIP = 4  # of a name, at least


def misspelled_names(paths: Sequence[str], fields: frozenset[str]) -> dict[str, str]:
    """The names, each with the one that was probably meant; of pipes, which can be read only once, none.

    Args:
        fields: names that the format reads.
    """
    known = sorted(fields)
    found: dict[str, str] = {}
    for path in paths:
        if path == SAMPLE_TRACE or not os.path.isfile(path):
            continue
        for names, unread in _rows(read_head(path), fields):
            for name in unread - found.keys():
                most = min(MOST_SLIPS, len(name) // LETTERS_A_SLIP)
                slips, likely = min((_slips(name, other), other) for other in known)
                if slips <= most and likely not in names:
                    found[name] = likely
    return dict(sorted(found.items()))


def _rows(head: Head, fields: frozenset[str]) -> Iterable[tuple[frozenset[str], set[str]]]:
    """Names in a row, and those of them that nothing reads; each such pair of the head once."""
    if not head.is_json:
        names = frozenset(head.columns)
        return [(names, set(names - fields))]
    seen: dict[frozenset[str], set[str]] = {}
    for text in head.rows:
        row = decoded(text)  # None for the last one, if it is cut off
        if isinstance(row, dict):
            names = frozenset(_names(row))
            unread = unread_in(row, fields)
            if unread:
                seen[names] = seen.get(names, set()) | unread
    return seen.items()


def _names(value: object) -> Iterable[str]:
    """Names of members at any depth."""
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _names(inner)
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        for inner in value:
            yield from _names(inner)


def _slips(name: str, other: str) -> int:
    """How many slips turn one into the other (optimal string alignment); MOST_SLIPS + 1 for any more."""
    if abs(len(name) - len(other)) > MOST_SLIPS:
        return MOST_SLIPS + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(name, start=1):
        after = [i]
        for j, wanted in enumerate(other, start=1):
            slips = min(row[j] + 1, after[j - 1] + 1, row[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and name[i - 2] == wanted:
                slips = min(slips, before[j - 2] + 1)
            after.append(slips)
        before, row = row, after
    return min(row[-1], MOST_SLIPS + 1)
