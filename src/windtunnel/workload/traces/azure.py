"""The `azure` trace format: CSV of the Azure LLM inference traces of 2023 and 2024.

Columns TIMESTAMP, ContextTokens, GeneratedTokens; a timestamp is a date and a time of day with up to seven digits
behind the point (2023) or with an offset from UTC (2024). Lengths only. Source: Azure/AzurePublicDataset,
AzureLLMInferenceDataset2023.md and AzureLLMInferenceDataset2024.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.csv_rows import AddCells, column, input_tokens, output_tokens, read_csv_rows
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)


class Azure:
    """Reader of the format."""

    name = "azure"
    aliases = ("azure-2023", "azure-2024")
    row = "TIMESTAMP,ContextTokens,GeneratedTokens with dates"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset(COLUMNS)

    def recognises(self, head: Head) -> bool:
        return set(COLUMNS) <= set(head.columns)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`. Times count from the first row."""
        workload = Workload(", ".join(paths))
        first_ns: int | None = None

        def bind(columns: list[str]) -> AddCells:
            at, context, generated = (column(columns, name) for name in COLUMNS)

            def add(cells: list[str]) -> None:
                nonlocal first_ns
                arrival_ns = _nanoseconds(cells[at])
                prompt = input_tokens(cells[context], "ContextTokens")
                output = output_tokens(cells[generated], "GeneratedTokens")
                if first_ns is None:
                    first_ns = arrival_ns
                time_ms = (arrival_ns - first_ns) / 1e6
                workload.add(unique_prompt(workload.num_requests, prompt), output, time_ms=time_ms)

            return add

        read_csv_rows(paths, options, bind)
        return workload


def _nanoseconds(cell: str) -> int:
    """Time since an epoch of its own; exact, which a float of ms since 1970 is not."""
    match = _TIMESTAMP.fullmatch(cell.strip())
    try:
        if match is None:
            raise ValueError
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        if hour > 23 or minute > 59 or second > 60:
            raise ValueError
        days = date(year, month, day).toordinal()
    except ValueError:
        message = f"found {cell.strip()[:40]!r}, expected a date and time such as 2023-11-16 18:17:03.9799600"
        raise BadRowError(message, field="TIMESTAMP") from None
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    zone = match[8]
    if zone and zone != "Z":
        offset_s = (int(zone[1:3]) * 60 + int(zone[-2:])) * 60
        seconds += -offset_s if zone[0] == "+" else offset_s
    return seconds * 10**9 + int((match[7] or "").ljust(9, "0"))
