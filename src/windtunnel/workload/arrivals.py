"""When independent sessions are sent: arrival processes of the open loop.

Decides arrival times only, never what is sent. The first arrival is always at zero. Poisson gaps are exponential by
inversion, -mean ln(1 - u), as in the replayers this package is compared with.
"""

from __future__ import annotations

from array import array
from math import log
from random import Random
from typing import Protocol


class ArrivalProcess(Protocol):
    """A source of arrival times."""

    def times_ms(self, count: int) -> array[float]:
        """The first `count` arrival times in virtual ms, as an array("d"): from 0.0 on, never decreasing."""
        ...


class Constant:
    """One arrival every `interval_ms`; an interval of 0 sends everything at once."""

    __slots__ = ("interval_ms",)

    def __init__(self, interval_ms: float) -> None:
        self.interval_ms = interval_ms

    def times_ms(self, count: int) -> array[float]:
        return array("d", [number * self.interval_ms for number in range(count)])


class Poisson:
    """`rate_per_s` arrivals a second on average, with independent exponential gaps drawn from `rng`."""

    __slots__ = ("rate_per_s", "rng")

    def __init__(self, rate_per_s: float, rng: Random) -> None:
        self.rate_per_s = rate_per_s
        self.rng = rng

    def times_ms(self, count: int) -> array[float]:
        mean_gap_ms = 1000.0 / self.rate_per_s
        draw = self.rng.random
        times = array("d")
        now_ms = 0.0
        for _ in range(count):
            times.append(now_ms)
            now_ms -= mean_gap_ms * log(1.0 - draw())  # u < 1, so the logarithm is finite
        return times
