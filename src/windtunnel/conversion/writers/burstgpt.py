"""Writes the CSV of BurstGPT: seconds and lengths, and where there are sessions their names and elapsed times.

Decides how delays become timestamps: a turn is submitted its delay after the turn before, which took no time (Elapsed
time 0). The reader, and the source of the rules, is `workload/traces/burstgpt.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names, session_names
from windtunnel.conversion.numbers import number_for, plain_number, time_after
from windtunnel.conversion.structure import as_sessions
from windtunnel.conversion.tables import csv_line, fitting_names
from windtunnel.conversion.writers.writer import WriteOptions, note_content, note_missing_arrivals, note_names
from windtunnel.workload.session import Workload

MODEL, LOG_TYPE = "ChatGPT", "API log"


class BurstGptWriter:
    """Writer of the format."""

    name = "burstgpt"
    block_size: int | None = None
    keeps_urgency = False
    keeps_outputs = False

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        note_content(workload, losses)
        note_missing_arrivals(workload, losses)
        note_names(losses, request_names(workload, anonymise=options.anonymise), "request")
        workload = as_sessions(workload, losses)
        sessions = fitting_names(session_names(workload, anonymise=options.anonymise), losses, "session")
        has_sessions = any(name is not None for name in sessions)
        columns = ["Timestamp", *(["Session ID", "Elapsed time"] if has_sessions else []), "Model"]
        yield ",".join([*columns, "Request tokens", "Response tokens", "Total tokens", "Log Type"])
        submitted_ms: dict[int, float] = {}  # by session: its last turn
        rounding = Rounding()
        for request, time_ms in enumerate(workload.time_ms):
            session = workload.session[request]
            base_ms = submitted_ms.get(session, 0.0)
            read = time_after(base_ms, 1000.0)
            seconds = number_for(time_ms, (base_ms + time_ms) / 1000.0, read)
            rounding.written(time_ms, read(seconds))
            submitted_ms[session] = seconds * 1000.0
            prompt, output = workload.input_tokens[request], workload.output_tokens[request]
            name = sessions[session]
            cells = [plain_number(seconds), *([name or "", 0] if has_sessions else []), MODEL]
            yield csv_line([*cells, prompt, output, prompt + output, LOG_TYPE])
        rounding.note(losses, workload.num_requests)
