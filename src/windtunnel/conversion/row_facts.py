"""What Mooncake rows say of a request besides its prompt, its times and its names: how urgent it is, what it generates.

Decides the fields. Token ids of an output are numbers that are equal exactly where tokens are, and are written where an
output has something in common with another one; any other output is private to its request, as it is without ids.
Where a format has no such fields, what they would have said is counted as lost.
"""

from __future__ import annotations

from windtunnel.conversion.losses import Losses
from windtunnel.workload.session import Workload
from windtunnel.workload.urgency import NO_URGENCY


class RowFacts:
    """The fields of each row."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._ids: dict[tuple[int, int], int] = {}  # by origin and offset of a token

    def fields(self, request: int) -> dict[str, object]:
        """Those that the row of a request has."""
        workload = self._workload
        urgency = workload.urgency.get(request, NO_URGENCY)
        found: dict[str, object] = {}
        priority = workload.priorities.get(request, urgency.priority)
        if priority:
            found["priority"] = priority
        if urgency.strict_priority:
            found["strict_priority"] = urgency.strict_priority
        if urgency.policy_class:
            found["policy_class"] = urgency.policy_class
        planned = workload.planned.runs.get(request) if workload.planned is not None else None
        if planned is not None:
            ids = self._ids
            found["output_token_ids"] = [
                ids.setdefault((origin, start + place), len(ids))
                for origin, start, length in planned
                for place in range(length)
            ]
        return found


def note_lost_facts(workload: Workload, losses: Losses, *, keeps_urgency: bool, keeps_outputs: bool) -> None:
    """What a format has no fields for."""
    total = workload.num_requests
    if not keeps_urgency:
        urgent = len(workload.priorities.keys() | workload.urgency.keys())
        message = "have a priority or policy class, which is not kept: the format has none"
        losses.note(urgent, total, "requests", message)
    if not keeps_outputs:
        planned = 0 if workload.planned is None else len(workload.planned.runs)
        losses.note(planned, total, "outputs", "have tokens in common with others, which they no longer do")
