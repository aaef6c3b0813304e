"""Prompts of a part of a workload, whose requests have other numbers there.

Decides what becomes of a quotation of an output: it quotes the same request under its new number. If that is not there,
the quotation is a text of the same tokens, or nothing where prompts hold only what was really generated.
"""

from __future__ import annotations

from windtunnel.workload.content import Run, output_origin
from windtunnel.workload.session import Workload


def first_free_origin(workload: Workload) -> int:
    """An origin such that no prompt has it, or a greater one."""
    every = (origin for request in range(workload.num_requests) for origin, _, _ in workload.stated_runs(request))
    return 1 + max(every, default=0)


def renumbered_prompt(workload: Workload, request: int, number: dict[int, int], fresh: int | None) -> list[Run]:
    """The prompt of a request.

    Args:
        number: new numbers of the requests that are there.
        fresh: the first free origin, for texts; None leaves out what quotes a request that is not there.
    """
    planned = workload.planned
    runs: list[Run] = []
    for run in workload.stated_runs(request):
        origin, start, length = run
        quoted = -1 - origin
        if origin >= 0 or quoted >= workload.num_requests:  # or a planned output of a request that is not there
            runs.append(run)
        elif quoted in number:
            runs.append((output_origin(number[quoted]), start, length))
        elif fresh is None:
            continue
        elif planned is not None and quoted in planned.runs:
            runs += planned.resolve([run])
        else:
            runs.append((fresh + quoted, start, length))
    return runs
