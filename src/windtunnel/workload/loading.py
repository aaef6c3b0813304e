"""What became of the rows of the files that a workload was read from.

Only counts, so that they can stand in a report and be added up: every row that was read was loaded or skipped, and
every request that the loaded rows made was kept or dropped. It decides nothing; readers and policies write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class ObservedLengths(NamedTuple):
    """What became of the rows of a file that lengths are drawn from.

    Attributes:
        rows: rows of the file.
        used_rows: rows whose lengths are all at least 1.
    """

    rows: int
    used_rows: int


@dataclass
class Loading:
    """Counts of one load.

    Attributes:
        format: name of the format that read the files.
        block_size: tokens that a hash id stands for, None where rows have none.
        rows: rows read, over all files.
        requests: requests that the loaded rows made, before any was dropped.
        skipped: rows left out because they cannot be used, by what is wrong with them.
        first_skipped: the error of the first row of each kind.
        hash_tokens, hash_ids: prompt tokens and hash ids of the rows that have both, before anything was cut.
        hash_rows: number of those rows.
        needs_exact_hashes: whether the format takes neither more nor fewer ids than a prompt has blocks.
        clipped_to_hashes: prompts cut to what their hash ids cover.
        surplus_hashes: rows with more hash ids than their prompt has blocks, which were left unread.
        without_arrival: requests that have an arrival of their own, but none is stated.
        without_output: requests whose row states no output length.
        overlong, clipped, dropped: requests whose prompt reaches `max_model_len`; those cut to fit; those left out.
        spread: requests moved inside the step to which the trace had rounded their arrivals.
        spread_step_ms: that step, on the clock of the trace; None where arrivals were left as they are.
    """

    format: str = ""
    block_size: int | None = None
    rows: int = 0
    requests: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first_skipped: dict[str, str] = field(default_factory=dict)
    hash_rows: int = 0
    hash_tokens: int = 0
    hash_ids: int = 0
    needs_exact_hashes: bool = False
    clipped_to_hashes: int = 0
    surplus_hashes: int = 0
    without_output: int = 0
    without_arrival: int = 0
    overlong: int = 0
    clipped: int = 0
    dropped: int = 0
    spread: int = 0
    spread_step_ms: float | None = None

    @property
    def skipped_rows(self) -> int:
        return sum(self.skipped.values())

    @property
    def loaded_rows(self) -> int:
        return self.rows - self.skipped_rows

    def as_dict(self) -> dict[str, object]:
        """The counts as a report shows them."""
        return {
            "format": self.format,
            "block_size": self.block_size,
            "rows": self.rows,
            "loaded_rows": self.loaded_rows,
            "skipped_rows": self.skipped_rows,
            "skipped": dict(sorted(self.skipped.items())),
            "requests": self.requests,
            "requests_clipped_to_hashes": self.clipped_to_hashes,
            "requests_with_surplus_hashes": self.surplus_hashes,
            "requests_without_output_length": self.without_output,
            "overlong_requests": self.overlong,
            "clipped_requests": self.clipped,
            "dropped_requests": self.dropped,
            "spread_requests": self.spread,
            "spread_step_ms": self.spread_step_ms,
        }

    def notes(self) -> list[str]:
        """What was left out or changed, one line each; nothing if the files were taken as they are."""
        lines = [
            f"{count:,} of {self.rows:,} rows left out: {kind} (first: {self.first_skipped[kind]})"
            for kind, count in sorted(self.skipped.items())
        ]
        for count, what in (
            (self.clipped_to_hashes, "cut to what their hash ids cover"),
            (self.clipped, "cut below max_model_len"),
            (self.dropped, "left out: they reach max_model_len"),
        ):
            if count:
                lines.append(f"{count:,} of {self.requests:,} requests {what}")
        if self.spread_step_ms is not None:
            lines.append(
                f"{self.spread:,} of {self.requests:,} requests spread inside steps of {self.spread_step_ms:g} ms"
            )
        return lines

    def skip(self, kind: str, message: str) -> None:
        """Count a row that is left out."""
        self.skipped[kind] = self.skipped.get(kind, 0) + 1
        self.first_skipped.setdefault(kind, message)
