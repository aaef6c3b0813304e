"""Rates that change with time, held to the numerical integral of what they say they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.workload.rates import Diurnal, ExponentialRamp, PiecewiseLinear, Rate


def expected_until(rate_at: Callable[[float], float], end_s: float, steps: int = 20_000) -> float:
    """The integral of a rate by the midpoint rule: slow and obvious."""
    width = end_s / steps
    return sum(rate_at((i + 0.5) * width) for i in range(steps)) * width


def times_s(rate: Rate, *expected: float) -> list[float]:
    return (rate.times_ms(np.array(expected, dtype=np.float64)) / 1000.0).tolist()


def test_a_linear_ramp_at_points_that_can_be_computed_by_hand():
    # 0 to 10 a second in 10 s: t^2 / 2 arrivals until t, 50 at its end, then 10 a second
    ramp = PiecewiseLinear([(10.0, 0.0, 10.0)], 10.0)
    assert times_s(ramp, 0, 2, 8, 18, 50, 60, 100) == pytest.approx([0, 2, 4, 6, 10, 11, 15])


def test_a_ramp_down_to_nothing_ends():
    ramp = PiecewiseLinear([(10.0, 10.0, 0.0)], 0.0)
    assert times_s(ramp, 0, 18, 32, 42, 48, 50, 51) == pytest.approx([0, 2, 4, 6, 8, 10, math.inf])


def test_steps_with_a_silent_one_between_them():
    steps = PiecewiseLinear([(10.0, 2.0, 2.0), (10.0, 0.0, 0.0), (10.0, 1.0, 1.0)], 1.0)
    assert times_s(steps, 0, 10, 20, 21, 30, 40) == pytest.approx([0, 5, 10, 21, 30, 40])


def test_steps_that_begin_in_silence():
    steps = PiecewiseLinear([(5.0, 0.0, 0.0), (5.0, 2.0, 2.0)], 2.0)
    assert times_s(steps, 1, 2, 10) == pytest.approx([5.5, 6.0, 10.0])


def test_repeated_steps():
    steps = PiecewiseLinear([(1.0, 4.0, 4.0), (3.0, 0.0, 0.0)], None)
    assert times_s(steps, 1, 4, 5, 8, 9) == pytest.approx([0.25, 1, 4.25, 5, 8.25])


def test_an_exponential_ramp():
    ramp = ExponentialRamp(1.0, 16.0, 4.0)
    seconds = [0.0, 1.0, 2.5, 4.0, 6.0]
    counts = [expected_until(lambda t: min(2.0**t, 16.0), end) if end else 0.0 for end in seconds]
    assert times_s(ramp, *counts) == pytest.approx(seconds, abs=1e-3)


def test_an_exponential_ramp_that_does_not_rise():
    assert times_s(ExponentialRamp(2.0, 2.0, 3.0), 0, 1, 8) == pytest.approx([0, 0.5, 4])


@pytest.mark.parametrize(("amplitude", "peak_s"), [(0.5, 50.0), (1.0, 50.0), (1.0, 0.0), (0.9, 13.0), (1e-9, 0.0)])
def test_a_day(amplitude, peak_s):
    day = Diurnal(2.0, amplitude, 100.0, peak_s)
    seconds = [1.0, 20.0, 49.0, 77.0, 100.0, 130.0, 250.0]

    def rate_at(t: float) -> float:
        return 2.0 * (1.0 + amplitude * math.cos(2 * math.pi * (t - peak_s) / 100.0))

    assert times_s(day, *(expected_until(rate_at, end) for end in seconds)) == pytest.approx(seconds, abs=2e-2)


def test_a_day_has_as_many_arrivals_as_a_flat_one():
    assert times_s(Diurnal(3.0, 0.9, 86_400.0, 43_200.0), 3.0 * 86_400.0) == pytest.approx([86_400.0])


@given(
    st.sampled_from(["piecewise", "repeated", "exponential", "day"]),
    st.lists(st.floats(0.0, 50.0), min_size=2, max_size=5),
    st.lists(st.floats(0.0, 3000.0), min_size=1, max_size=30),
)
def test_times_never_fall_and_begin_at_zero_or_later(kind, rates, counts):
    rates[0] = max(rates[0], 0.5)
    rate: Rate = {
        "piecewise": PiecewiseLinear([(3.0, a, b) for a, b in pairwise(rates)], rates[-1]),
        "repeated": PiecewiseLinear([(3.0, a, b) for a, b in pairwise(rates)], None),
        "exponential": ExponentialRamp(rates[0], rates[-1] + 0.1, 7.0),
        "day": Diurnal(rates[0], 1.0, 11.0, 4.0),
    }[kind]
    times = rate.times_ms(np.sort(np.array(counts)))
    assert not np.isnan(times).any()
    assert (times[1:] >= times[:-1]).all()
    assert times[0] >= 0.0
