"""Names of requests and sessions as a file needs them: unique where that is asked for, and none where none is needed.

Decides which names are written. A number that stands for a missing name is not one; with `anonymise` no name is.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.workload.session import Workload


def request_names(workload: Workload, *, anonymise: bool) -> list[str | None]:
    """The name of each request; None for one that is called by its number."""
    if anonymise or not workload.request_ids:
        return [None] * workload.num_requests
    return [None if name == str(number) else name for number, name in enumerate(workload.request_ids)]


def session_names(workload: Workload, *, anonymise: bool) -> list[str | None]:
    """The name of each session, no two the same; None for one of a single request that has none."""
    names: list[str | None] = []
    taken = set(workload.session_ids)
    for session in range(workload.num_sessions):
        first = workload.first_turn[session]
        given = workload.session_ids[session] if workload.session_ids and not anonymise else str(first)
        if given != str(first):
            names.append(given)
        elif workload.last_turn[session] == first:
            names.append(None)
        else:
            name = f"session-{session}"
            names.append(name if anonymise or name not in taken else f"{name}/{first}")
    return names


def unique(names: Sequence[str | None]) -> list[str]:
    """The names, numbers for those without one, and a number behind those that stand before already."""
    taken = {name for name in names if name is not None}
    seen: set[str] = set()
    result = []
    for number, name in enumerate(names):
        wanted = str(number) if name is None else name
        if wanted in seen or (name is None and wanted in taken):
            wanted = f"{wanted}/{number}"
            while wanted in seen or wanted in taken:
                wanted += "/"
        seen.add(wanted)
        result.append(wanted)
    return result
