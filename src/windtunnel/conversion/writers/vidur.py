"""Writes the CSV of processed traces that Vidur and the tools around Splitwise read: seconds and lengths.

The reader is `workload/traces/vidur.py`; the column of totals is what Vidur itself writes beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names
from windtunnel.conversion.numbers import number_for
from windtunnel.conversion.structure import as_requests
from windtunnel.conversion.writers.writer import WriteOptions, note_content, note_missing_arrivals, note_names
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.vidur import COLUMNS


class VidurWriter:
    """Writer of the format."""

    name = "vidur"
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
        yield ",".join((*COLUMNS, "num_total_tokens"))
        for request, time_ms in enumerate(workload.time_ms):
            prompt, output = workload.input_tokens[request], workload.output_tokens[request]
            seconds = number_for(time_ms, time_ms / 1000.0, lambda number: number * 1000.0)
            rounding.written(time_ms, seconds * 1000.0)
            yield f"{seconds!r},{prompt},{output},{prompt + output}"
        rounding.note(losses, workload.num_requests)
