"""Statistics of samples, each given once with the number of times it occurs.

It never expands the multiplicities: a million tokens that share a thousand gaps cost a thousand. Percentiles are
exact, with linear interpolation, and equal `numpy.percentile` of the expanded samples bit for bit; the standard
deviation is that of the population. Source of the rule: what vLLM's and AIPerf's reports use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.signedinteger[Any]]

STATISTICS = ("mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std")
_PERCENTILES = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}
SUMMED_AT_ONCE = 1 << 16


class Blocks(Protocol):
    """Samples that are given a block at a time, `SUMMED_AT_ONCE` in each but the last, as often as asked for."""

    def __len__(self) -> int: ...
    def blocks(self) -> Iterator[FloatArray]: ...


def describe(values: FloatArray | Blocks, counts: IntArray | None = None) -> dict[str, float]:
    """The `STATISTICS` of `values`, in the unit of the values; all zero when there are none.

    Args:
        values: finite samples, in any order.
        counts: how often each occurs, 1 or more; once each when left out.
    """
    if not len(values):
        return dict.fromkeys(STATISTICS, 0.0)
    low = min(float(part.min()) for part, _ in _blocks(values, counts))
    high = max(float(part.max()) for part, _ in _blocks(values, counts))
    total = len(values) if counts is None else int(counts.sum(dtype=np.int64))
    # Summing distances from the minimum keeps equal samples exact and the mean between minimum and maximum.
    distance = 0.0
    for part, part_counts in _blocks(values, counts):
        distance += float(np.sum((part - low) * part_counts))
    mean = min(low + distance / total, high)
    squares = 0.0
    for part, part_counts in _blocks(values, counts):
        squares += float(np.sum((part - mean) ** 2 * part_counts))
    result = {"mean": mean, "min": low, "max": high, "std": math.sqrt(squares / total)}
    ranks = {name: (total - 1) * (percent / 100) for name, percent in _PERCENTILES.items()}
    wanted = sorted({min(math.floor(rank) + step, total - 1) for rank in ranks.values() for step in (0, 1)})
    at_rank = dict(zip(wanted, _order_statistics(values, counts, wanted, low, high), strict=True))
    for name, rank in ranks.items():
        below = math.floor(rank)
        share = rank - below
        lower = at_rank[below]
        upper = at_rank[min(below + 1, total - 1)]
        # numpy interpolates from the nearer end, which keeps the result monotonic in the percentile.
        result[name] = lower + (upper - lower) * share if share < 0.5 else upper - (upper - lower) * (1 - share)
    return {name: result[name] for name in STATISTICS}


def _blocks(values: FloatArray | Blocks, counts: IntArray | None) -> Iterator[tuple[FloatArray, IntArray]]:
    """Stretches small enough that the arrays made from one are no matter beside `values`."""
    if not isinstance(values, np.ndarray):
        for part in values.blocks():
            yield part, np.ones(len(part), dtype=np.int32)
        return
    if counts is None:
        counts = np.ones(len(values), dtype=np.int32)
    for at in range(0, len(values), SUMMED_AT_ONCE):
        yield values[at : at + SUMMED_AT_ONCE], counts[at : at + SUMMED_AT_ONCE]


def _order_statistics(
    values: FloatArray | Blocks, counts: IntArray | None, ranks: list[int], low: float, high: float
) -> list[float]:
    """The samples at the ascending 0-based `ranks`, had each been repeated and all been sorted.

    Only those buckets of equal width are sorted that a wanted rank falls in, equal samples of a block as one: sorting
    everything would take three times the memory of the samples.
    """
    buckets = min(len(values), SUMMED_AT_ONCE)
    scale = (buckets - 1) / (high - low) if high > low else 0.0
    if not math.isfinite(scale):  # all within a few of the smallest floats
        scale = 0.0
    mass = np.zeros(buckets)
    for part, part_counts in _blocks(values, counts):
        mass += np.bincount(((part - low) * scale).astype(np.int64), part_counts, minlength=buckets)
    ends = np.cumsum(mass)  # whole numbers below 2**53: exact
    chosen = np.unique(np.searchsorted(ends, ranks, side="right"))
    is_chosen = np.zeros(buckets, dtype=np.bool_)
    is_chosen[chosen] = True
    found: list[FloatArray] = []
    found_counts: list[IntArray] = []
    for part, part_counts in _blocks(values, counts):
        inside = is_chosen[((part - low) * scale).astype(np.int64)]
        distinct, place = np.unique(part[inside], return_inverse=True)
        found.append(distinct)
        found_counts.append(np.bincount(place, part_counts[inside], minlength=len(distinct)).astype(np.int64))
    samples = np.concatenate(found)
    order = np.argsort(samples, kind="stable")
    samples = samples[order]
    # ranks in `samples` begin anew in each bucket, after everything that the buckets before it hold
    bucket = ((samples - low) * scale).astype(np.int64)
    sample_ends = np.cumsum(np.concatenate(found_counts)[order], dtype=np.int64)
    first = np.searchsorted(bucket, chosen)
    before = np.where(first > 0, sample_ends[first - 1], 0)
    skipped = ends[chosen] - mass[chosen] - before
    sample_ends += np.repeat(skipped.astype(np.int64), np.diff(np.append(first, len(samples))))
    return [float(sample) for sample in samples[np.searchsorted(sample_ends, ranks, side="right")]]
