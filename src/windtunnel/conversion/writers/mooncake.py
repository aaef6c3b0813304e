"""Writes `mooncake` rows.

Decides how requests become rows with hash ids, sessions and delays: `timestamp` stands on the first turn of a session,
`delay` on later ones. The reader, and the source of the rules, is `workload/traces/mooncake.py`. Nothing is lost of a
workload of sessions whose prompts are blocks of the size that is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from windtunnel.conversion.block_prompts import BlockPrompts
from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names, session_names
from windtunnel.conversion.numbers import number_for, plain_number
from windtunnel.conversion.row_facts import RowFacts
from windtunnel.conversion.structure import as_sessions
from windtunnel.conversion.writers.writer import WriteOptions, note_missing_arrivals, states_no_times
from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.mooncake import BLOCK_SIZE


class MooncakeWriter:
    """Writer of the format, and of those whose rows look the same."""

    name = "mooncake"
    block_size: int | None = BLOCK_SIZE
    ms_per_unit = 1.0
    keeps_urgency = True
    keeps_outputs = True
    grows = False  # whether a row holds only what its prompt adds to the session so far

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        workload = as_sessions(workload, losses)
        size = options.block_size or self.block_size or BLOCK_SIZE
        own = self.own_runs(workload)
        prompts = BlockPrompts(workload, size, renumber=options.anonymise, own=own, grows=self.grows)
        has_times = not states_no_times(workload)
        if has_times:
            note_missing_arrivals(workload, losses)
        sessions = session_names(workload, anonymise=options.anonymise)
        rounding = Rounding()
        facts = RowFacts(workload)
        for request, name in enumerate(request_names(workload, anonymise=options.anonymise)):
            row: dict[str, object] = {}
            if has_times:
                field = "timestamp" if workload.turn[request] == 0 else "delay"
                row[field] = self._time(workload.time_ms[request], rounding)
            row["input_length"], ids = prompts.row(request)
            row["output_length"] = workload.output_tokens[request]
            row["hash_ids"] = ids
            session = sessions[workload.session[request]]
            if session is not None:
                row["session_id"] = session
            if name is not None:
                row["request_id"] = name
            row |= facts.fields(request)
            yield json.dumps(row, ensure_ascii=False)
        rounding.note(losses, workload.num_requests)
        prompts.note_losses(losses)

    def own_runs(self, workload: Workload) -> Sequence[Sequence[Run]] | None:
        """What the row of each request holds; None for its whole prompt."""
        return None

    def _time(self, time_ms: float, rounding: Rounding) -> int | float:
        unit = self.ms_per_unit
        written = number_for(time_ms, time_ms / unit, lambda number: number * unit)
        rounding.written(time_ms, written * unit)
        return plain_number(written)
