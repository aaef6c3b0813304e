"""The facts of a trace: arrivals, lengths, sessions, waiting and sharing, as numbers.

It reads a loaded workload and the counts of its load, and judges nothing; what is suspicious is for `lint` to say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from windtunnel.inspection.prefix_sharing import PrefixSharing, prefix_sharing
from windtunnel.report.distribution import FloatArray, IntArray, describe
from windtunnel.workload.loading import Loading
from windtunnel.workload.session import Workload

DISPERSION_WINDOW_MS = 1000.0


@dataclass(frozen=True)
class Arrivals:
    """When the requests come that have an arrival of their own.

    Attributes:
        count, stated: those requests, and how many of them have a time in the file.
        span_ms: from the first to the last.
        instants: distinct times; most_at_once: requests at the busiest of them.
        median_step_ms: the middle one of the gaps between consecutive distinct times.
        rate_per_s: requests per second of the span.
        dispersion: variance over mean of the numbers of requests in windows of a second; 1 for a Poisson process.
        gap_cv: standard deviation over mean of the gaps between requests; 1 for a Poisson process.
        out_of_order: requests that stand behind one with a later time in the file.
    """

    count: int
    stated: int
    span_ms: float
    instants: int
    most_at_once: int
    median_step_ms: float
    rate_per_s: float
    dispersion: float
    gap_cv: float
    out_of_order: int


@dataclass(frozen=True)
class Lengths:
    """A distribution of token counts.

    Attributes:
        statistics: mean, min, max, median and other percentiles.
        zeros: how many are 0.
        histogram: (first, last, count) of bins whose bounds double; together all values but the zeros.
    """

    statistics: dict[str, float]
    zeros: int
    histogram: list[tuple[int, int, int]]


@dataclass(frozen=True)
class TraceFacts:
    """Everything `windtunnel inspect` shows.

    Attributes:
        loading: what became of the rows.
        requests, sessions: their numbers.
        multi_turn_sessions, mean_turns, max_turns: how sessions are divided into turns.
        median_delay_ms: the middle one of the delays of later turns and of requests that wait for others.
        waiting_requests: requests that wait for others by name.
        longest_context_tokens: of a prompt and its output.
        overlong_requests, cut_short_requests: prompts that reach the limit of a sequence, and outputs that do not fit
            behind a shorter prompt; None without a limit.
    """

    source: str
    loading: Loading
    requests: int
    sessions: int
    multi_turn_sessions: int
    mean_turns: float
    max_turns: int
    median_delay_ms: float
    waiting_requests: int
    accumulates: bool
    needs_concurrency: str
    arrivals: Arrivals
    input_tokens: Lengths
    output_tokens: Lengths
    longest_context_tokens: int
    sharing: PrefixSharing
    max_model_len: int | None
    overlong_requests: int | None
    cut_short_requests: int | None

    def as_dict(self) -> dict[str, Any]:
        """The facts as plain JSON values."""
        arrivals = self.arrivals
        return {
            "source": self.source,
            "loading": self.loading.as_dict(),
            "requests": self.requests,
            "sessions": self.sessions,
            "multi_turn_sessions": self.multi_turn_sessions,
            "mean_turns": self.mean_turns,
            "max_turns": self.max_turns,
            "median_delay_ms": self.median_delay_ms,
            "waiting_requests": self.waiting_requests,
            "prompts_accumulate": self.accumulates,
            "needs_concurrency": self.needs_concurrency or None,
            "arrivals": {**vars(arrivals)},
            "input_tokens": _lengths_as_dict(self.input_tokens),
            "output_tokens": _lengths_as_dict(self.output_tokens),
            "longest_context_tokens": self.longest_context_tokens,
            "prefix_sharing": {
                **self.sharing._asdict(),
                "unique_blocks": self.sharing.blocks - self.sharing.shared_blocks,
                "infinite_cache_hit_ratio": self.sharing.hit_ratio,
            },
            "max_model_len": self.max_model_len,
            "overlong_requests": self.overlong_requests,
            "cut_short_requests": self.cut_short_requests,
        }


def describe_trace(workload: Workload, max_model_len: int | None = None) -> TraceFacts:
    """The facts of a workload that was read from trace files.

    Args:
        workload: as `load_trace` returns it.
        max_model_len: longest sequence of an engine in tokens, to count the prompts that reach it.
    """
    loading = workload.loading or Loading(rows=workload.num_requests, requests=workload.num_requests)
    prompts = np.array(workload.input_tokens, dtype=np.int64)
    outputs = np.array(workload.output_tokens, dtype=np.int64)
    turns = np.bincount(np.array(workload.session, dtype=np.int64), minlength=workload.num_sessions)
    times_ms = np.array(workload.time_ms, dtype=np.float64)
    roots = workload.roots()
    is_later = np.ones(workload.num_requests, dtype=np.bool_)
    is_later[roots] = False
    overlong = cut_short = None
    if max_model_len is not None:
        overlong = int(np.count_nonzero(prompts >= max_model_len))
        cut_short = int(np.count_nonzero((prompts < max_model_len) & (prompts + outputs > max_model_len)))
    return TraceFacts(
        source=workload.source,
        loading=loading,
        requests=workload.num_requests,
        sessions=workload.num_sessions,
        multi_turn_sessions=int(np.count_nonzero(turns > 1)),
        mean_turns=float(turns.mean()),
        max_turns=int(turns.max()),
        median_delay_ms=float(np.median(times_ms[is_later])) if is_later.any() else 0.0,
        waiting_requests=sum(1 for before in workload.dependencies.values() if before),
        accumulates=workload.accumulates,
        needs_concurrency=workload.needs_concurrency,
        arrivals=_arrivals(times_ms[roots], loading.without_arrival),
        input_tokens=_lengths(prompts),
        output_tokens=_lengths(outputs),
        longest_context_tokens=int((prompts + outputs).max()),
        sharing=prefix_sharing(workload, loading.block_size or 1),
        max_model_len=max_model_len,
        overlong_requests=overlong,
        cut_short_requests=cut_short,
    )


def _arrivals(arrivals_ms: FloatArray, without_arrival: int) -> Arrivals:
    ordered = np.sort(arrivals_ms)
    instants, counts = np.unique(ordered, return_counts=True)
    gaps_ms = np.diff(ordered)
    span_ms = float(ordered[-1] - ordered[0])
    dispersion = gap_cv = 0.0
    if span_ms > 0.0:
        windows = _window_counts(ordered)
        dispersion = float(windows.var() / windows.mean())
        gap_cv = float(gaps_ms.std() / gaps_ms.mean())
    return Arrivals(
        count=len(arrivals_ms),
        stated=len(arrivals_ms) - without_arrival,
        span_ms=span_ms,
        instants=len(instants),
        most_at_once=int(counts.max()),
        median_step_ms=float(np.median(np.diff(instants))) if len(instants) > 1 else 0.0,
        rate_per_s=len(arrivals_ms) / span_ms * 1000.0 if span_ms > 0.0 else 0.0,
        dispersion=dispersion,
        gap_cv=gap_cv,
        out_of_order=int(np.count_nonzero(arrivals_ms < np.maximum.accumulate(arrivals_ms))),
    )


def _window_counts(ordered_ms: FloatArray) -> IntArray:
    """Requests in each window from the first arrival on; windows without any count as well, up to a million of them."""
    window = ((ordered_ms - ordered_ms[0]) // max(DISPERSION_WINDOW_MS, (ordered_ms[-1] - ordered_ms[0]) / 1e6)).astype(
        np.int64
    )
    return np.bincount(window)


def _lengths(tokens: IntArray) -> Lengths:
    """Bins are 1, 2-3, 4-7 and so on."""
    bins = Counter(np.frexp(tokens[tokens > 0].astype(np.float64))[1].tolist())
    histogram = [(2 ** (k - 1), 2**k - 1, bins[k]) for k in range(min(bins), max(bins) + 1)] if bins else []
    return Lengths(describe(tokens.astype(np.float64)), int(np.count_nonzero(tokens == 0)), histogram)


def _lengths_as_dict(lengths: Lengths) -> dict[str, Any]:
    histogram = [{"from": first, "to": last, "requests": count} for first, last, count in lengths.histogram]
    return {**lengths.statistics, "zeros": lengths.zeros, "histogram": histogram}
