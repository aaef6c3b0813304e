"""Writes a CSV with the columns arrival_ms, input and output, and session and id where requests have such names.

Decides how delays become arrivals: a turn arrives its delay after the turn before. Without any times there is no column
of arrivals. The reader is `workload/traces/plain.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names, session_names
from windtunnel.conversion.numbers import number_for, plain_number, time_after
from windtunnel.conversion.structure import as_sessions
from windtunnel.conversion.tables import csv_line, fitting_names
from windtunnel.conversion.writers.writer import WriteOptions, note_content, note_missing_arrivals, states_no_times
from windtunnel.workload.session import Workload


class PlainWriter:
    """Writer of the format."""

    name = "plain"
    block_size: int | None = None
    keeps_urgency = False
    keeps_outputs = False

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        note_content(workload, losses)
        workload = as_sessions(workload, losses)
        has_times = not states_no_times(workload)
        if has_times:
            note_missing_arrivals(workload, losses)
        sessions = fitting_names(session_names(workload, anonymise=options.anonymise), losses, "session")
        names = fitting_names(request_names(workload, anonymise=options.anonymise), losses, "request")
        has_sessions = any(name is not None for name in sessions)
        has_names = any(name is not None for name in names)
        columns = [*(["arrival_ms"] if has_times else []), "input", "output"]
        yield ",".join([*columns, *(["session"] if has_sessions else []), *(["id"] if has_names else [])])
        arrival_ms: dict[int, float] = {}  # by session: of its last turn
        rounding = Rounding()
        for request, time_ms in enumerate(workload.time_ms):
            session = workload.session[request]
            base_ms = arrival_ms.get(session, 0.0)
            read = time_after(base_ms, 1.0)
            written_ms = number_for(time_ms, base_ms + time_ms, read)
            rounding.written(time_ms, read(written_ms))
            arrival_ms[session] = written_ms
            cells: list[object] = [plain_number(written_ms)] if has_times else []
            cells += [workload.input_tokens[request], workload.output_tokens[request]]
            cells += [sessions[session] or ""] if has_sessions else []
            cells += [names[request] or ""] if has_names else []
            yield csv_line(cells)
        rounding.note(losses, workload.num_requests)
