"""When independent sessions are sent: arrival processes of the open loop.

Decides arrival times only, never what is sent. Processes of a constant rate begin with an arrival at zero, unless
they start with a gap as in a mix, where no class may own the zero of the clock. Poisson gaps are exponential by
inversion, -mean ln(1 - u), as in the replayers this package is compared with. Burstiness is that of `vllm bench
serve`: gaps are gamma-distributed with that shape and a scale of 1 / (rate * burstiness).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import gamma, log
from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windtunnel.errors import InputError
from windtunnel.workload.rates import Rate

FloatColumn = npt.NDArray[np.float64]

INFINITE = float("inf")
_FIRST_GUESS = 1024


class ArrivalProcess(Protocol):
    """A source of arrival times."""

    def times_ms(self, count: int) -> array[float]:
        """The first `count` arrival times in virtual ms, as an array("d"), never decreasing.

        Infinity stands for arrivals that never come.
        """
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

    __slots__ = ("rate_per_s", "rng", "starts_with_gap")

    def __init__(self, rate_per_s: float, rng: Random, *, starts_with_gap: bool = False) -> None:
        self.rate_per_s = rate_per_s
        self.rng = rng
        self.starts_with_gap = starts_with_gap

    def times_ms(self, count: int) -> array[float]:
        mean_gap_ms = 1000.0 / self.rate_per_s
        draw = self.rng.random
        times = array("d")
        now_ms = 0.0
        if self.starts_with_gap:
            now_ms -= mean_gap_ms * log(1.0 - draw())
        for _ in range(count):
            times.append(now_ms)
            now_ms -= mean_gap_ms * log(1.0 - draw())  # u < 1, so the logarithm is finite
        return times


class Gaps(Protocol):
    """Independent gaps with a mean of one."""

    def draw(self, count: int) -> FloatColumn:
        """The first `count` of them."""
        ...


class GammaGaps:
    """Gamma-distributed gaps of the given shape, drawn from `rng`; shape 1 is exponential."""

    __slots__ = ("rng", "shape")

    def __init__(self, shape: float, rng: np.random.RandomState) -> None:
        self.shape = shape
        self.rng = rng

    def draw(self, count: int) -> FloatColumn:
        gaps = self.rng.standard_exponential(count) if self.shape == 1.0 else self.rng.standard_gamma(self.shape, count)
        return gaps / self.shape


class WeibullGaps:
    """Weibull-distributed gaps of the given shape, drawn from `rng`; shape 1 is exponential."""

    __slots__ = ("rng", "shape")

    def __init__(self, shape: float, rng: np.random.RandomState) -> None:
        self.shape = shape
        self.rng = rng

    def draw(self, count: int) -> FloatColumn:
        return self.rng.weibull(self.shape, count) / gamma(1.0 + 1.0 / self.shape)


class EvenGaps:
    """Gaps of exactly one: arrivals on schedule."""

    __slots__ = ()

    def draw(self, count: int) -> FloatColumn:
        return np.ones(count)


class Renewal:
    """Independent gaps at a constant rate.

    Args:
        rate_per_s: mean arrivals a second.
        gaps: what the gaps are drawn from.
        starts_with_gap: whether the first arrival comes a gap after zero instead of at it.
        fits_rate: stretch the times so that the last of n arrivals is at n / rate, after a first gap: what
            `vllm bench serve` does, so that every seed makes the same load.
    """

    __slots__ = ("fits_rate", "gaps", "rate_per_s", "starts_with_gap")

    def __init__(
        self, rate_per_s: float, gaps: Gaps, *, starts_with_gap: bool = False, fits_rate: bool = False
    ) -> None:
        self.rate_per_s = rate_per_s
        self.gaps = gaps
        self.starts_with_gap = starts_with_gap
        self.fits_rate = fits_rate

    def times_ms(self, count: int) -> array[float]:
        if not count:
            return array("d")
        mean_gap_ms = 1000.0 / self.rate_per_s
        if self.starts_with_gap or self.fits_rate:
            counted = np.cumsum(self.gaps.draw(count))
        else:
            counted = np.concatenate(([0.0], np.cumsum(self.gaps.draw(count - 1))))
        if self.fits_rate and counted[-1] > 0.0:
            counted *= count / counted[-1]
        return array("d", (counted * mean_gap_ms).tobytes())


class Modulated:
    """A rate that changes with time; see `rates`.

    Args:
        rate: expected arrivals over time.
        gaps: of the process of rate one that it is made from. Even ones begin at zero, others with a gap.
    """

    __slots__ = ("gaps", "rate")

    def __init__(self, rate: Rate, gaps: Gaps) -> None:
        self.rate = rate
        self.gaps = gaps

    def times_ms(self, count: int) -> array[float]:
        counted = np.arange(count, dtype=np.float64)
        if not isinstance(self.gaps, EvenGaps):
            counted = np.cumsum(self.gaps.draw(count))
        return array("d", self.rate.times_ms(counted).tobytes())


class Recorded:
    """Arrival times that were recorded, from zero on; what comes after the last of them never comes."""

    __slots__ = ("recorded_ms",)

    def __init__(self, recorded_ms: FloatColumn) -> None:
        """`recorded_ms`: in any order and on any clock."""
        times = np.sort(recorded_ms)
        self.recorded_ms = times - times[0] if len(times) else times

    def times_ms(self, count: int) -> array[float]:
        missing = max(0, count - len(self.recorded_ms))
        return array("d", self.recorded_ms[:count].tobytes()) + array("d", [INFINITE]) * missing


class Shifted:
    """Another process that starts `start_ms` later."""

    __slots__ = ("process", "start_ms")

    def __init__(self, process: ArrivalProcess, start_ms: float) -> None:
        self.process = process
        self.start_ms = start_ms

    def times_ms(self, count: int) -> array[float]:
        return array("d", [time_ms + self.start_ms for time_ms in self.process.times_ms(count)])


def times_before_ms(make: Callable[[], ArrivalProcess], end_ms: float, most: int) -> array[float]:
    """All arrival times before `end_ms` of the process that `make` makes, each time anew from its beginning.

    Raises:
        InputError: there are more than `most`, or none.
    """
    count = _FIRST_GUESS
    while True:
        times = make().times_ms(count)
        if times[-1] >= end_ms:
            break
        if count > most:
            raise InputError(f"found more than {most:,} arrivals before {end_ms / 1000.0:g} s, expected fewer")
        count *= 2
    kept = int(np.searchsorted(np.array(times), end_ms, side="left"))
    if not kept:
        raise InputError(f"found no arrival before {end_ms / 1000.0:g} s, expected at least one: a longer time")
    return times[:kept]
