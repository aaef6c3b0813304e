"""Writes the CSV of the Azure LLM inference traces: dates with seven digits behind the point, and lengths.

Decides on which day the trace begins: the one on which the trace of 2023 was recorded, at midnight. The reader is
`workload/traces/azure.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names
from windtunnel.conversion.structure import as_requests
from windtunnel.conversion.writers.writer import WriteOptions, note_content, note_missing_arrivals, note_names
from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.azure import COLUMNS

FIRST_DAY = datetime(2023, 11, 16, tzinfo=UTC)
TICKS_PER_MS = 10_000
TICKS_PER_S = 1000 * TICKS_PER_MS
LONGEST_DAYS = 2_900_000  # up to the year 9963


class AzureWriter:
    """Writer of the format."""

    name = "azure"
    block_size: int | None = None
    keeps_urgency = False
    keeps_outputs = False

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        note_content(workload, losses)
        note_missing_arrivals(workload, losses)
        note_names(losses, request_names(workload, anonymise=options.anonymise), "request")
        workload = as_requests(workload, losses)
        rounding = Rounding()
        yield ",".join(COLUMNS)
        for request, time_ms in enumerate(workload.time_ms):
            ticks = round(time_ms * TICKS_PER_MS)
            rounding.written(time_ms, ticks * 100 / 1e6)  # as it is read: ns, then ms
            if ticks >= LONGEST_DAYS * 86_400 * TICKS_PER_S:
                raise InputError(f"request {workload.request_id(request)} arrives after the year 9999")
            moment = FIRST_DAY + timedelta(seconds=ticks // TICKS_PER_S)
            text = f"{moment:%Y-%m-%d %H:%M:%S}.{ticks % TICKS_PER_S:07d}"
            yield f"{text},{workload.input_tokens[request]},{workload.output_tokens[request]}"
        rounding.note(losses, workload.num_requests)
