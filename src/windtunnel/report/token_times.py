"""When tokens were emitted, reconstructed from pass ends: a request's tokens are a slice of its engine's passes.

It never builds a list of all tokens. The gap before pass p is one number, however many requests have it; how many
do follows from where their slices begin and end. Rule: a request emits one token in each pass from its first to
its last, except strictly between the two passes of a break; in a pass of a burst it emits several at once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windtunnel.record.columns import Record
from windtunnel.report.distribution import FloatArray, IntArray

BoolArray: TypeAlias = npt.NDArray[np.bool_]


class TokenTimes:
    """The passes of all engines laid end to end, and each request's slice of them.

    Attributes:
        end_ms: when each pass ended, engine after engine.
        first, last: per request, the index in `end_ms` of its first and last token, -1 without tokens.
        burst_request, burst_at, burst_extra: per burst, its request, index in `end_ms`, and the tokens beyond one.
        break_request, break_before, break_after: per break, its request, and the indices of the tokens around it.
    """

    __slots__ = (
        "break_after",
        "break_before",
        "break_request",
        "burst_at",
        "burst_extra",
        "burst_request",
        "end_ms",
        "first",
        "last",
    )

    def __init__(self, record: Record) -> None:
        requests = record.requests
        columns = [np.asarray(passes.end_ms, dtype=np.float64) for passes in record.passes]
        lengths = np.array([len(column) for column in columns], dtype=np.int64)
        starts = np.append(np.cumsum(lengths) - lengths, 0)  # the last one serves worker -1
        offset = starts[np.asarray(requests.worker, dtype=np.int64)]
        first = np.asarray(requests.first_pass, dtype=np.int64)
        last = np.asarray(requests.last_pass, dtype=np.int64)
        self.end_ms: FloatArray = np.concatenate(columns) if columns else np.empty(0)
        self.first: IntArray = np.where(first >= 0, first + offset, -1)
        self.last: IntArray = np.where(first >= 0, last + offset, -1)
        self.break_request: IntArray = np.array(requests.break_request, dtype=np.int64)
        self.break_before: IntArray = np.asarray(requests.break_before, dtype=np.int64) + offset[self.break_request]
        self.break_after: IntArray = np.asarray(requests.break_after, dtype=np.int64) + offset[self.break_request]
        self.burst_request: IntArray = np.empty(0, dtype=np.int64)
        self.burst_at: IntArray = np.empty(0, dtype=np.int64)
        self.burst_extra: IntArray = np.empty(0, dtype=np.int64)
        if requests.burst_request:
            self._find_bursts(
                np.array(requests.burst_request, dtype=np.int64),
                np.array(requests.burst_passes, dtype=np.int64),
                np.array(requests.burst_extra, dtype=np.int64),
            )

    def _find_bursts(self, request: IntArray, passes: IntArray, extra: IntArray) -> None:
        """Where passes emit several tokens, from the passes of each request that emit any, breaks left out."""
        ends = np.cumsum(passes)
        starts = ends - passes
        at = np.arange(len(extra)) + np.repeat(self.first[request] - starts, passes)
        start_of = np.full(len(self.first), -1)
        start_of[request] = starts
        known = start_of[self.break_request] >= 0
        broken = self.break_request[known]
        if len(broken):
            before = self.break_before[known]
            silent = self.break_after[known] - before - 1
            earlier = np.cumsum(silent) - silent
            begins = np.append(True, broken[1:] != broken[:-1])  # the first break of a request
            earlier -= np.maximum.accumulate(np.where(begins, earlier, 0))
            shift = np.zeros(len(extra) + 1, dtype=np.int64)
            place = start_of[broken] + before - self.first[broken] + 1 - earlier
            np.add.at(shift, np.minimum(place, len(extra)), silent)
            total = np.cumsum(shift)
            at += total[:-1] - np.repeat(total[starts] - shift[starts], passes)
        several = extra > 0
        self.burst_request = np.repeat(request, passes)[several]
        self.burst_at = at[several]
        self.burst_extra = extra[several]

    def of_request(self, request: int) -> FloatArray:
        """The times in ms of all tokens of one request; empty without tokens."""
        first = int(self.first[request])
        if first < 0:
            return np.empty(0)
        emits = np.ones(int(self.last[request]) + 1 - first, dtype=np.bool_)
        for b in np.flatnonzero(self.break_request == request):
            emits[self.break_before[b] + 1 - first : self.break_after[b] - first] = False
        tokens = emits.astype(np.int64)
        for b in np.flatnonzero(self.burst_request == request):
            tokens[self.burst_at[b] - first] += self.burst_extra[b]
        return np.repeat(self.end_ms[first : first + len(emits)], tokens)

    def second_ms(self) -> FloatArray:
        """Per request, the time in ms of its second token; NaN with fewer than two."""
        second = self.first + 1
        at_start = self.break_before == self.first[self.break_request]
        second[self.break_request[at_start]] = self.break_after[at_start]
        result = np.full(len(second), np.nan)
        several = self.last > self.first
        result[several] = self.end_ms[second[several]]
        at_once = self.burst_request[self.burst_at == self.first[self.burst_request]]
        result[at_once] = self.end_ms[self.first[at_once]]
        return result

    def gaps_ms(self, chosen: BoolArray) -> tuple[FloatArray, IntArray]:
        """All gaps between consecutive tokens of the `chosen` requests, as (gaps in ms, how often each occurs).

        One entry a pass at most, plus one a break, whatever the number of tokens; tokens of one burst are 0 ms apart.
        """
        gaps, counts = self._gaps_between_passes_ms(chosen)
        at_once = int(self.burst_extra[chosen[self.burst_request]].sum())
        if not at_once:
            return gaps, counts
        return np.append(gaps, 0.0), np.append(counts, at_once)

    def _gaps_between_passes_ms(self, chosen: BoolArray) -> tuple[FloatArray, IntArray]:
        several = chosen & (self.last > self.first)
        broken = several[self.break_request]
        before = self.break_before[broken]
        after = self.break_after[broken]
        # Requests that emit both in a pass and in the one before it: +1 from the second token of a slice to its
        # last, -1 from the pass after a break's `before` to its `after`. Slices of different engines never touch.
        counts = np.zeros(len(self.end_ms) + 1, dtype=np.int32)
        np.add.at(counts, self.first[several] + 1, 1)
        np.subtract.at(counts, self.last[several] + 1, 1)
        np.subtract.at(counts, before + 1, 1)
        np.add.at(counts, after + 1, 1)
        np.cumsum(counts, out=counts)
        used = counts[1:-1] != 0  # the first pass of an engine ends no gap
        gaps = np.diff(self.end_ms)[used] if len(self.end_ms) else np.empty(0)
        counts = counts[1:-1][used]
        if not len(after):
            return gaps, counts
        broken_gaps = self.end_ms[after] - self.end_ms[before]
        return np.concatenate((gaps, broken_gaps)), np.concatenate((counts, np.ones(len(after), dtype=np.int32)))
