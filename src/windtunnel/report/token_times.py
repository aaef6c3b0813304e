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
from windtunnel.report.distribution import SUMMED_AT_ONCE, FloatArray, IntArray
from windtunnel.report.row_blocks import Rows, ints

BoolArray: TypeAlias = npt.NDArray[np.bool_]
EVERY_ROW = slice(None)


class PassEnds:
    """The passes of all engines laid end to end.

    Attributes:
        end_ms: when each ended; starts: place of the first of each engine, and 0 for engine -1.
    """

    def __init__(self, record: Record) -> None:
        columns = [np.asarray(passes.end_ms, dtype=np.float64) for passes in record.passes]
        lengths = np.array([len(column) for column in columns], dtype=np.int64)
        self.starts: IntArray = np.append(np.cumsum(lengths) - lengths, 0)
        self.end_ms: FloatArray = np.concatenate(columns) if columns else np.empty(0)


class TokenTimes:
    """The passes of all engines laid end to end, and each request's slice of them.

    Attributes:
        rows: which requests of the record it is about.
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
        "rows",
    )

    def __init__(self, record: Record, rows: Rows = EVERY_ROW, ends: PassEnds | None = None) -> None:
        """Args:
        rows: which requests it is about; they are called by their places among these.
        ends: those of the record, if somebody has put them together already.
        """
        requests = record.requests
        ends = ends or PassEnds(record)
        offset = ends.starts[ints(requests.worker, rows)]
        first = ints(requests.first_pass, rows)
        last = ints(requests.last_pass, rows)
        self.rows = rows
        self.end_ms: FloatArray = ends.end_ms
        self.first: IntArray = np.where(first >= 0, first + offset, -1)
        self.last: IntArray = np.where(first >= 0, last + offset, -1)
        self.break_request, known = _places(requests.break_request, rows, requests.num_requests)
        self.break_before: IntArray = ints(requests.break_before, known) + offset[self.break_request]
        self.break_after: IntArray = ints(requests.break_after, known) + offset[self.break_request]
        self.burst_request: IntArray = np.empty(0, dtype=np.int64)
        self.burst_at: IntArray = np.empty(0, dtype=np.int64)
        self.burst_extra: IntArray = np.empty(0, dtype=np.int64)
        if requests.burst_request:
            request, known = _places(requests.burst_request, rows, requests.num_requests)
            passes = np.asarray(requests.burst_passes, dtype=np.int64)
            is_known = np.zeros(len(passes), dtype=np.bool_)
            is_known[known] = True
            extra = np.asarray(requests.burst_extra, dtype=np.int64)[np.repeat(is_known, passes)]
            self._find_bursts(request, passes[known], extra)

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
        gaps = Gaps(self.end_ms)
        gaps.add(self, chosen)
        return gaps.all_ms()


class Gaps:
    """All gaps between consecutive tokens of requests that are added block by block."""

    def __init__(self, end_ms: FloatArray) -> None:
        """`end_ms` are the passes, as in `TokenTimes`."""
        self._end_ms = end_ms
        # Requests that emit both in a pass and in the one before it, as steps: +1 at the second token of a slice, -1
        # behind its last, -1 at the pass after a break's `before`, +1 behind its `after`. Slices of different engines
        # never touch.
        self._steps = np.zeros(len(end_ms) + 1, dtype=np.int32)
        self._broken_ms: list[FloatArray] = []
        self._at_once = 0

    def add(self, times: TokenTimes, chosen: BoolArray) -> None:
        """The gaps of the `chosen` requests of a block."""
        several = chosen & (times.last > times.first)
        broken = several[times.break_request]
        before = times.break_before[broken]
        after = times.break_after[broken]
        np.add.at(self._steps, times.first[several] + 1, 1)
        np.subtract.at(self._steps, times.last[several] + 1, 1)
        np.subtract.at(self._steps, before + 1, 1)
        np.add.at(self._steps, after + 1, 1)
        if len(after):
            self._broken_ms.append(self._end_ms[after] - self._end_ms[before])
        self._at_once += int(times.burst_extra[chosen[times.burst_request]].sum())

    def all_ms(self) -> tuple[FloatArray, IntArray]:
        """As `TokenTimes.gaps_ms` gives them."""
        running = np.cumsum(self._steps, dtype=np.int32)[1:-1]
        used = running != 0  # the first pass of an engine ends no gap
        others = sum(map(len, self._broken_ms)) + (self._at_once > 0)
        between = int(np.count_nonzero(used))
        gaps = np.empty(between + others)
        counts: IntArray = np.ones(between + others, dtype=np.int64 if self._at_once else np.int32)
        at = 0
        for start in range(0, len(used), SUMMED_AT_ONCE):  # all at once is a column of passes more
            stretch = used[start : start + SUMMED_AT_ONCE]
            end = at + int(np.count_nonzero(stretch))
            gaps[at:end] = np.diff(self._end_ms[start : start + len(stretch) + 1])[stretch]
            counts[at:end] = running[start : start + len(stretch)][stretch]
            at = end
        for part in self._broken_ms:
            gaps[at : at + len(part)] = part
            at += len(part)
        if self._at_once:
            gaps[at] = 0.0
            counts[at] = self._at_once
        return gaps, counts


def _places(requests: object, rows: Rows, num_requests: int) -> tuple[IntArray, IntArray]:
    """Of a column of request numbers: the places among `rows` of those that are there, and where they stand in it."""
    named = np.asarray(requests, dtype=np.int64)
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(num_requests)
        known = np.flatnonzero((named >= start) & (named < stop))
        return named[known] - start, known
    if not len(rows):
        return named[:0], named[:0]
    order = np.argsort(rows)
    found = order[np.minimum(np.searchsorted(rows, named, sorter=order), len(rows) - 1)]
    known = np.flatnonzero(rows[found] == named)
    return found[known], known
