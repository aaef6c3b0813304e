"""The `burstgpt` trace format: CSV of the BurstGPT traces, releases 1 and 2 (six columns) and 3 (eight columns).

Columns are found by name, since release 3 has two new ones in the middle. Times are in seconds. Lengths only. Rows
with the same Session ID are turns of one conversation: a turn follows the one before it by the time between its
submission and the recorded end (Timestamp + Elapsed time) of the other. Failures have no tokens: a row without prompt
tokens is a bad row, one without response tokens asks for no output. Source: HPMLL/BurstGPT, README.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.csv_rows import AddCells, column, input_tokens, number, output_tokens, read_csv_rows
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import CONTRADICTION, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION_COLUMNS = ("Session ID", "Elapsed time")


class BurstGpt:
    """Reader of the format."""

    name = "burstgpt"
    aliases = ("burst-gpt", "burst_gpt")
    row = "Timestamp,...,Request tokens,Response tokens,... in seconds"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset(COLUMNS + SESSION_COLUMNS)

    def recognises(self, head: Head) -> bool:
        return set(COLUMNS) <= set(head.columns)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        builder = _Builder(", ".join(paths))

        def bind(columns: list[str]) -> AddCells:
            at, request, response = (column(columns, name) for name in COLUMNS)
            has_sessions = "Session ID" in columns
            if has_sessions != ("Elapsed time" in columns):
                raise InputError("the columns Session ID and Elapsed time come together: expected both or neither")
            session, elapsed = (columns.index(name) for name in SESSION_COLUMNS) if has_sessions else (-1, -1)

            def add(cells: list[str]) -> None:
                words = "a number of seconds from 0 to 9e12"
                timestamp_s = number(cells[at], "Timestamp", words, 0.0, 9e12)
                prompt = input_tokens(cells[request], "Request tokens")
                output = output_tokens(cells[response], "Response tokens")
                name = cells[session].strip() if has_sessions else ""
                elapsed_s = number(cells[elapsed], "Elapsed time", words, 0.0, 9e12) if name else 0.0
                builder.add(prompt, output, name or None, timestamp_s * 1000.0, elapsed_s * 1000.0)

            return add

        read_csv_rows(paths, options, bind)
        return builder.sessions.workload


class _Builder:
    def __init__(self, source: str) -> None:
        self.sessions = SessionBuilder(source)
        self._before: dict[str, tuple[float, float]] = {}  # by session: submission and end of its last row

    def add(self, prompt: int, output: int, name: str | None, timestamp_ms: float, elapsed_ms: float) -> None:
        time_ms = timestamp_ms
        if name is not None and name in self._before:
            submitted_ms, ended_ms = self._before[name]
            if timestamp_ms < submitted_ms:
                raise BadRowError(
                    f"found {timestamp_ms / 1000:g}, expected at least {submitted_ms / 1000:g}, the one before it in "
                    f"session {name}",
                    kind=CONTRADICTION,
                    field="Timestamp",
                )
            time_ms = max(0.0, timestamp_ms - ended_ms)
        number = self.sessions.workload.num_requests
        self.sessions.add(unique_prompt(number, prompt), output, session_name=name, time_ms=time_ms)
        if name is not None:
            self._before[name] = (timestamp_ms, timestamp_ms + elapsed_ms)
