"""Writes `mooncake-delta` rows, which hold only what a turn adds to its session.

Decides whether a workload can be said in such rows at all: every later turn has to begin with the turn before and the
output of that one. The reader is `workload/traces/mooncake_delta.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.conversion.writers.mooncake import MooncakeWriter
from windtunnel.errors import InputError
from windtunnel.workload.content import Content, Run, agree_until, output_origin
from windtunnel.workload.session import Workload


class MooncakeDeltaWriter(MooncakeWriter):
    """Writer of the format."""

    name = "mooncake-delta"
    grows = True

    def own_runs(self, workload: Workload) -> Sequence[Sequence[Run]] | None:
        """What each turn adds.

        Raises:
            InputError: a turn does not begin with the turn before and its output.
        """
        own: list[Sequence[Run]] = []
        misfits = []
        before: dict[int, Content] = {}  # by session: its last turn so far, with its output
        for request in range(workload.num_requests):
            session = workload.session[request]
            prompt = workload.content(request, 0)
            history = before.get(session)
            known = 0 if history is None else history.length
            if history is not None and not (known < prompt.length and agree_until(history, prompt, 0, known) == known):
                misfits.append(request)
            own.append(_from(prompt, known))
            output = (output_origin(request), 0, workload.output_tokens[request])
            before[session] = Content.of([*prompt.runs(), output])
        if misfits:
            turns = workload.num_requests - workload.num_sessions
            raise InputError(
                f"{len(misfits):,} of {turns:,} later turns do not begin with the turn before and its output, which is "
                f"all that {self.name} can say; the first is request {workload.request_id(misfits[0])}"
            )
        return own


def _from(content: Content, at: int) -> list[Run]:
    """The runs of a content from a position on."""
    runs = []
    position = 0
    for origin, start, length in content.runs():
        skipped = min(max(0, at - position), length)
        if skipped < length:
            runs.append((origin, start + skipped, length - skipped))
        position += length
    return runs
