"""Requests that wait for others by name: which numbers these are, and whether the waiting ever ends.

Decides which rows of a dependency graph can be sent at all. A row that waits for a request that is not there, or in a
circle, cannot; nor can what waits for it. It knows no format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from windtunnel.workload.traces.reading import (
    CONTRADICTION,
    DEPENDENCY_CYCLE,
    UNKNOWN_DEPENDENCY,
    BadRowError,
)

NAMED_REQUESTS = 5  # in an error about many

Refuse = Callable[[int, BadRowError], None]


def usable_rows(ids: Sequence[str], waits_for: Sequence[Sequence[str]], refuse: Refuse) -> list[int]:
    """Places of the rows that can be sent, ascending.

    Args:
        ids: name of each row's request; no two are the same.
        waits_for: names of the requests that each row waits for.
        refuse: told the place of each row that cannot be sent and why; it may raise that.
    """
    place = {name: number for number, name in enumerate(ids)}
    refused: set[int] = set()
    for number, names in enumerate(waits_for):
        error = _unknown(ids[number], names, place)
        if error is not None:
            refuse(number, error)
            refused.add(number)
    waiting = [0] * len(ids)
    dependents: list[list[int]] = [[] for _ in ids]
    for number, names in enumerate(waits_for):
        for name in {} if number in refused else dict.fromkeys(names):
            waiting[number] += 1
            dependents[place[name]].append(number)
    free = [number for number in range(len(ids)) if not waiting[number] and number not in refused]
    for number in free:  # grows while it is read
        for dependent in dependents[number]:
            waiting[dependent] -= 1
            if not waiting[dependent]:
                free.append(dependent)
    usable = set(free)
    lost = _behind(refused, dependents)
    stuck = [number for number in range(len(ids)) if number not in usable and number not in refused]
    circling = [ids[number] for number in stuck if number not in lost]
    for number in stuck:
        if number in lost:
            message = f"request {json.dumps(ids[number])} waits for a request that cannot be used"
            refuse(number, BadRowError(message, kind=UNKNOWN_DEPENDENCY, field="wait_for"))
        else:
            refuse(number, BadRowError(_circle(circling), kind=DEPENDENCY_CYCLE, field="wait_for"))
    return sorted(usable)


def _unknown(own: str, names: Sequence[str], place: dict[str, int]) -> BadRowError | None:
    for name in names:
        if name == own:
            message = f"request {json.dumps(own)} waits for itself"
            return BadRowError(message, kind=CONTRADICTION, field="wait_for")
        if name not in place:
            message = f"request {json.dumps(own)} references unknown request_id {json.dumps(name)}"
            return BadRowError(message, kind=UNKNOWN_DEPENDENCY, field="wait_for")
    return None


def _behind(refused: set[int], dependents: Sequence[Sequence[int]]) -> set[int]:
    """Everything that waits, directly or not, for one of the refused."""
    lost: set[int] = set()
    todo = sorted(refused)
    for number in todo:  # grows while it is read
        for dependent in dependents[number]:
            if dependent not in lost and dependent not in refused:
                lost.add(dependent)
                todo.append(dependent)
    return lost


def _circle(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED_REQUESTS])
    more = f" and {len(names) - NAMED_REQUESTS} more" if len(names) > NAMED_REQUESTS else ""
    return f"cycle detected among {len(names)} requests that wait for each other: {shown}{more}"
