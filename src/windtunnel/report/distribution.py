"""Statistics of samples, each given once with the number of times it occurs.

It never expands the multiplicities: a million tokens that share a thousand gaps cost a thousand. Percentiles are
exact, with linear interpolation, and equal `numpy.percentile` of the expanded samples bit for bit; the standard
deviation is that of the population. Source of the rule: what vLLM's and AIPerf's reports use.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

STATISTICS = ("mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std")
_PERCENTILES = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}


def describe(values: FloatArray, counts: IntArray | None = None) -> dict[str, float]:
    """The `STATISTICS` of `values`, in the unit of the values; all zero when there are none.

    Args:
        values: finite samples, in any order.
        counts: how often each occurs, 1 or more; once each when left out.
    """
    if not len(values):
        return dict.fromkeys(STATISTICS, 0.0)
    if counts is None:
        values = np.sort(values)
        counts = np.ones(len(values), dtype=np.int64)
    else:
        order = np.argsort(values, kind="stable")  # ties in a fixed order keep the sums below the same everywhere
        values = values[order]
        counts = counts[order]
    ends = np.cumsum(counts)
    total = int(ends[-1])
    low = float(values[0])
    high = float(values[-1])
    # Summing distances from the minimum keeps equal samples exact and the mean between minimum and maximum.
    mean = min(low + float(np.sum((values - low) * counts)) / total, high)
    variance = float(np.sum((values - mean) ** 2 * counts)) / total
    result = {"mean": mean, "min": low, "max": high, "std": math.sqrt(variance)}
    for name, percent in _PERCENTILES.items():
        result[name] = _percentile(values, ends, percent)
    return {name: result[name] for name in STATISTICS}


def _percentile(values: FloatArray, ends: IntArray, percent: int) -> float:
    """Percentile of sorted `values`, the i-th of which fills the ranks below `ends[i]` that are not filled before."""
    total = int(ends[-1])
    rank = (total - 1) * (percent / 100)
    below = math.floor(rank)
    share = rank - below
    lower = float(values[np.searchsorted(ends, below, side="right")])
    upper = float(values[np.searchsorted(ends, min(below + 1, total - 1), side="right")])
    # numpy interpolates from the nearer end, which keeps the result monotonic in `percent`.
    if share < 0.5:
        return lower + (upper - lower) * share
    return upper - (upper - lower) * (1 - share)
