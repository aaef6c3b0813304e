"""Writes `agentic-mooncake` rows: requests with names that wait for each other.

Decides how turns of sessions become waits: each waits for the turn before. The reader, and the source of the rules, is
`workload/traces/agentic_mooncake.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from windtunnel.conversion.block_prompts import BlockPrompts
from windtunnel.conversion.losses import Losses
from windtunnel.conversion.names import request_names, session_names, unique
from windtunnel.conversion.numbers import plain_number
from windtunnel.conversion.row_facts import RowFacts
from windtunnel.conversion.structure import as_graph
from windtunnel.conversion.writers.writer import WriteOptions, note_missing_arrivals
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.agentic_mooncake import BLOCK_SIZE


class AgenticMooncakeWriter:
    """Writer of the format."""

    name = "agentic-mooncake"
    block_size: int | None = BLOCK_SIZE
    keeps_urgency = True
    keeps_outputs = True

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        waits = as_graph(workload, losses)
        prompts = BlockPrompts(workload, options.block_size or BLOCK_SIZE, renumber=options.anonymise)
        note_missing_arrivals(workload, losses)
        names = unique(request_names(workload, anonymise=options.anonymise))
        sessions = session_names(workload, anonymise=options.anonymise)
        facts = RowFacts(workload)
        for request, before in enumerate(waits):
            row: dict[str, object] = {"request_id": names[request]}
            session = sessions[workload.session[request]]
            if session is not None:
                row["session_id"] = session
            time = plain_number(workload.time_ms[request])
            if not before:
                row["timestamp"] = time
            row["input_length"], ids = prompts.row(request)
            row["output_length"] = workload.output_tokens[request]
            row["hash_ids"] = ids
            row["wait_for"] = [names[other] for other in before]
            if before and time:
                row["delay"] = time
            row |= facts.fields(request)
            yield json.dumps(row, ensure_ascii=False)
        prompts.note_losses(losses)
