"""Rates that change with time: ramps, steps, spikes, days.

A rate says how many arrivals are to be expected by any time; its inverse turns the arrival times of a process of rate
one into those of a process with this rate. For exponential gaps that is exactly the inhomogeneous Poisson process
(Cinlar, Introduction to Stochastic Processes, 1975, section 4.7: time change by the cumulative rate). Nothing here is
random. Only square roots and scalar functions of the C library are used, so that no vector unit changes a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, log, log1p, pi, sin
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatColumn = npt.NDArray[np.float64]

_MAX_STEPS = 200  # of halving, beyond which no double is left between the bounds


class Rate(Protocol):
    """Expected arrivals over time."""

    def times_ms(self, expected: FloatColumn) -> FloatColumn:
        """When so many arrivals are expected, for ascending numbers from 0 on; infinity for more than ever come."""
        ...


class PiecewiseLinear:
    """A rate that changes linearly within pieces, and may jump between them; the last one goes on, or all repeat.

    Args:
        pieces: (duration in s, rate at its start, rate at its end) in arrivals a second, at least one.
        last_rate: from the end of the last piece on; None repeats all pieces for ever.
    """

    __slots__ = ("_counts", "_durations_s", "_ends", "_last_rate", "_starts", "_starts_s")

    def __init__(self, pieces: Sequence[tuple[float, float, float]], last_rate: float | None) -> None:
        durations = np.array([piece[0] for piece in pieces])
        self._durations_s = durations
        self._starts = np.array([piece[1] for piece in pieces])
        self._ends = np.array([piece[2] for piece in pieces])
        self._starts_s = np.concatenate(([0.0], np.cumsum(durations)))
        self._counts = np.concatenate(([0.0], np.cumsum((self._starts + self._ends) / 2.0 * durations)))
        self._last_rate = last_rate

    def times_ms(self, expected: FloatColumn) -> FloatColumn:
        total = self._counts[-1]
        period_s = self._starts_s[-1]
        base_s = np.zeros(len(expected))
        rest = expected
        if self._last_rate is None:
            periods = np.maximum(np.ceil(expected / total) - 1.0, 0.0)
            rest = np.clip(expected - periods * total, 0.0, total)
            base_s = periods * period_s
        # `left` finds the first piece by whose end the number is reached, so pieces without arrivals are passed over
        piece = np.clip(np.searchsorted(self._counts, rest, side="left") - 1, 0, len(self._durations_s) - 1)
        within_s = self._within_piece_s(piece, rest - self._counts[piece])
        times_s = base_s + np.minimum(self._starts_s[piece] + within_s, self._starts_s[piece + 1])
        if self._last_rate is not None:
            beyond = rest > total
            with np.errstate(over="ignore", divide="ignore"):  # never, or so late that it is never
                times_s[beyond] = period_s + (rest[beyond] - total) / self._last_rate
        with np.errstate(over="ignore"):
            return times_s * 1000.0

    def _within_piece_s(self, piece: npt.NDArray[np.intp], count: FloatColumn) -> FloatColumn:
        """When `count` arrivals are expected after the start of a piece: the root of start t + slope/2 t^2 = count."""
        start = self._starts[piece]
        slope = (self._ends[piece] - start) / self._durations_s[piece]
        root = np.sqrt(np.maximum(start * start + 2.0 * slope * count, 0.0))
        denominator = start + root
        within_s: FloatColumn = np.divide(2.0 * count, denominator, out=np.zeros(len(count)), where=denominator > 0)
        return within_s


class ExponentialRamp:
    """A rate that grows (or falls) by the same factor in equal times, then stays.

    Args:
        start_rate, end_rate: in arrivals a second, above 0.
        ramp_s: how long that takes.
    """

    __slots__ = ("_count", "_end_rate", "_growth_per_s", "_ramp_s", "_start_rate")

    def __init__(self, start_rate: float, end_rate: float, ramp_s: float) -> None:
        self._start_rate = start_rate
        self._end_rate = end_rate
        self._ramp_s = ramp_s
        self._growth_per_s = log(end_rate / start_rate) / ramp_s
        # the integral of start e^(growth t) over the ramp
        self._count = (end_rate - start_rate) / self._growth_per_s if self._growth_per_s else start_rate * ramp_s

    def times_ms(self, expected: FloatColumn) -> FloatColumn:
        growth = self._growth_per_s
        times = []
        for count in expected.tolist():
            if count >= self._count:
                time_s = self._ramp_s + (count - self._count) / self._end_rate
            elif growth:
                time_s = log1p(growth * count / self._start_rate) / growth
            else:
                time_s = count / self._start_rate
            times.append(time_s * 1000.0)
        return np.array(times, dtype=np.float64)


class Diurnal:
    """A rate that follows the day: rate (1 + amplitude cos(2 pi (t - peak) / period)).

    Args:
        rate: mean, in arrivals a second.
        amplitude: from 0 to 1, where the rate falls to 0 once a day.
        period_s: length of a day.
        peak_s: when the rate is highest.
    """

    __slots__ = ("_amplitude", "_angular", "_peak_s", "_period_s", "_rate", "_swing")

    def __init__(self, rate: float, amplitude: float, period_s: float, peak_s: float) -> None:
        self._rate = rate
        self._amplitude = amplitude
        self._period_s = period_s
        self._peak_s = peak_s
        self._angular = 2.0 * pi / period_s
        self._swing = amplitude / self._angular

    def times_ms(self, expected: FloatColumn) -> FloatColumn:
        """Newton's method between bounds that hold: the swing moves no arrival by more than 2 amplitude / (2 pi)."""
        offset = sin(-self._angular * self._peak_s)
        times = []
        before = 0.0
        for count in expected.tolist():
            target = count / self._rate  # t + swing (sin(w (t - peak)) - offset) = target
            low = max(before, target - 2.0 * self._swing)
            high = target + 2.0 * self._swing
            time = min(max(target, low), high)
            for _ in range(_MAX_STEPS):
                phase = self._angular * (time - self._peak_s)
                error = time + self._swing * (sin(phase) - offset) - target
                if error > 0.0:
                    high = time
                else:
                    low = time
                slope = 1.0 + self._amplitude * cos(phase)
                following = time - error / slope if slope > 1e-6 else low
                if not low < following < high:
                    following = low + (high - low) / 2.0
                if following == time or high - low <= 0.0:
                    break
                time = following
            before = time = max(before, time)
            times.append(time * 1000.0)
        return np.array(times, dtype=np.float64)
