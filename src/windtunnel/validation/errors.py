"""Relative errors of predictions against measurements, by group: medians, tails, counts. Nothing is averaged away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Median difference between two real runs of the same: what no model can be better than.
# Source: repeated rows of the AIConfigurator silicon sample.
REALITY = {"tpot": 0.008, "ttft": 0.035}


@dataclass(frozen=True)
class Comparison:
    """One prediction and what was measured.

    Attributes:
        group: what it belongs to, such as (engine, model, GPU).
        metric: `tpot`, `ttft`, `itl`, `throughput`, ...
        is_apart: whether it is listed but counts in no total.
    """

    group: tuple[str, ...]
    metric: str
    predicted: float
    measured: float
    is_apart: bool = False

    @property
    def error(self) -> float:
        """Relative error with its sign."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class ErrorSummary:
    """Relative errors of some comparisons: their sizes, and as `bias` the median with its sign."""

    count: int
    median: float
    p90: float
    mean: float
    largest: float
    bias: float


def summarise(comparisons: Iterable[Comparison]) -> ErrorSummary | None:
    """Errors of these, None if there are none."""
    errors = np.array([one.error for one in comparisons])
    if not len(errors):
        return None
    sizes = np.abs(errors)
    return ErrorSummary(
        count=len(errors),
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        mean=float(sizes.mean()),
        largest=float(sizes.max()),
        bias=float(np.median(errors)),
    )
