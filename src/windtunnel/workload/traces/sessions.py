"""Rows as turns of sessions: which row continues which, after what delay, and what rows and sessions are called.

Decides from a row's session name, timestamp and delay where its request goes in a workload. A row without a name is a
session of its own; the difference between the timestamps of two turns is the delay from the end of the one to the
other. It knows no format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import nan

from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.reading import CONTRADICTION, BadRowError


class SessionBuilder:
    """Appends requests to a workload, session by session."""

    def __init__(self, source: str) -> None:
        self.workload = Workload(source)
        self._numbers: dict[str, int] = {}
        self._last_timestamp_ms: dict[int, float] = {}  # of named sessions that had one

    def session_of(self, name: str | None) -> int | None:
        """Number of the session that a row with this session name continues, None if it begins one."""
        return None if name is None else self._numbers.get(name)

    def time_ms(
        self,
        name: str | None,
        timestamp_ms: float | None,
        delay_ms: float | None,
        *,
        timestamp_field: str = "timestamp",
        delay_field: str = "delay",
    ) -> float:
        """Arrival of the first turn of a session, or think time before a later one: as stated, else between the
        timestamps, else none.

        Raises:
            BadRowError: the times contradict each other, or the rows before.
        """
        session = self.session_of(name)
        if session is None:
            if delay_ms:
                raise BadRowError(
                    f"found {in_words(delay_ms)} on the first row of {_session(name)}, expected none: it is sent at "
                    "its timestamp",
                    kind=CONTRADICTION,
                    field=delay_field,
                )
            return nan if timestamp_ms is None else timestamp_ms
        last_ms = self._last_timestamp_ms.get(session)
        if timestamp_ms is not None and last_ms is not None and timestamp_ms < last_ms:
            raise BadRowError(
                f"found {in_words(timestamp_ms)}, expected at least {in_words(last_ms)}, the timestamp before it in "
                f"{_session(name)}",
                kind=CONTRADICTION,
                field=timestamp_field,
            )
        if delay_ms is not None:
            return delay_ms
        if timestamp_ms is None:
            return 0.0
        if last_ms is None:
            raise BadRowError(
                f"found {in_words(timestamp_ms)}, but no row before it in {_session(name)} has a timestamp: expected a "
                "delay, or timestamps from the first row on",
                kind=CONTRADICTION,
                field=timestamp_field,
            )
        return timestamp_ms - last_ms

    def add(
        self,
        runs: Sequence[Run],
        output_tokens: int,
        *,
        session_name: str | None = None,
        request_id: str | None = None,
        time_ms: float = nan,
        timestamp_ms: float | None = None,
        after: Sequence[int] | None = None,
    ) -> int:
        """Append a request and return its number.

        Args:
            runs, output_tokens, time_ms, after: as for `Workload.add`.
            session_name: of the source; None for a session without a name.
            request_id: of the source; None or empty for a request that is called by its number.
            timestamp_ms: what later turns of a named session are timed against.
        """
        workload = self.workload
        session = self.session_of(session_name)
        request = workload.add(runs, output_tokens, session=session, time_ms=time_ms, after=after)
        self._name(request, request_id, session_name, new_session=session is None)
        if session_name is not None and timestamp_ms is not None:
            self._last_timestamp_ms[workload.session[request]] = timestamp_ms
        return request

    def _name(self, request: int, request_id: str | None, session_id: str | None, *, new_session: bool) -> None:
        """Keep the names of a row; those of rows without one are their numbers, if any row has one."""
        workload = self.workload
        if request_id and not workload.request_ids:
            workload.request_ids = [str(number) for number in range(request)]
        if request_id or workload.request_ids:
            workload.request_ids.append(request_id or str(request))
        if not new_session:
            return
        session = workload.session[request]
        if session_id is not None:
            self._numbers[session_id] = session
            if not workload.session_ids:
                workload.session_ids = [str(workload.first_turn[number]) for number in range(session)]
        if session_id is not None or workload.session_ids:
            workload.session_ids.append(str(request) if session_id is None else session_id)


def in_words(time_ms: float) -> str:
    """A time as people write it: without a fraction if it has none."""
    return str(int(time_ms)) if time_ms.is_integer() else repr(time_ms)


def _session(name: str | None) -> str:
    return "a session" if name is None else f"session {json.dumps(name)}"
