"""The `vidur` trace format: CSV of processed traces, as Vidur and the tools around Splitwise read them.

Columns arrived_at (seconds), num_prefill_tokens, num_decode_tokens; others are ignored. Lengths only. Source:
microsoft/vidur, data/processed_traces and vidur/request_generator/trace_replay_request_generator.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.csv_rows import AddCells, column, input_tokens, number, output_tokens, read_csv_rows
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import ReadOptions
from windtunnel.workload.traces.rows import Head

COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


class Vidur:
    """Reader of the format."""

    name = "vidur"
    aliases = ("splitwise",)
    row = "arrived_at,num_prefill_tokens,num_decode_tokens"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset(COLUMNS)

    def recognises(self, head: Head) -> bool:
        return set(COLUMNS) <= set(head.columns)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        workload = Workload(", ".join(paths))

        def bind(columns: list[str]) -> AddCells:
            at, prefill, decode = (column(columns, name) for name in COLUMNS)

            def add(cells: list[str]) -> None:
                arrival_s = number(cells[at], "arrived_at", "a number of seconds within ±9e12", -9e12, 9e12)
                prompt = input_tokens(cells[prefill], "num_prefill_tokens")
                output = output_tokens(cells[decode], "num_decode_tokens")
                workload.add(unique_prompt(workload.num_requests, prompt), output, time_ms=arrival_s * 1000.0)

            return add

        read_csv_rows(paths, options, bind)
        return workload
