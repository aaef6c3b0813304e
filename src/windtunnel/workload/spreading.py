"""Arrivals that a trace has rounded to a grid, taken apart again inside its steps.

Decides by how much each arrival moves, never their order. The step of the grid is the smallest gap between two distinct
times; the n requests of one instant t move to t, t + step/n, t + 2 step/n and so on, in the order in which they stand
in the trace. So nothing leaves its step, the first of an instant stays, and no random number is drawn. What a replay
otherwise sees as a burst are the 3 s steps of the Mooncake traces: 12,031 requests at 1,180 instants.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windtunnel.workload.session import FloatColumn


class Spread(NamedTuple):
    """Arrivals after spreading.

    Attributes:
        times_ms: one entry an arrival, in the order given.
        step_ms: width of the step; 0 if there are fewer than two distinct times.
        moved: arrivals that are not where they were.
    """

    times_ms: FloatColumn
    step_ms: float
    moved: int


def spread_arrivals(times_ms: FloatColumn) -> Spread:
    """Take apart the arrivals (ms, no NaN, any order) that stand at one instant."""
    order = np.argsort(times_ms, kind="stable")
    ordered = times_ms[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))  # place of the first arrival of each instant
    if len(begins) < 2:
        return Spread(times_ms.copy(), 0.0, 0)
    step_ms = float(np.diff(ordered[begins]).min())
    counts = np.diff(np.append(begins, len(ordered)))
    place = np.arange(len(ordered)) - np.repeat(begins, counts)
    moved_ms = ordered + step_ms * (place / np.repeat(counts, counts))
    last_ms = np.nextafter(ordered + step_ms, -np.inf)  # of the step, where adding has rounded up
    moved_ms = np.maximum(ordered, np.minimum(moved_ms, last_ms))
    result = np.empty_like(times_ms)
    result[order] = moved_ms
    return Spread(result, step_ms, int(np.count_nonzero(result != times_ms)))
