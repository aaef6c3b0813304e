"""A curve's runs are its single passes, and both are the pieces that they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.timing.decode_curve import DecodeCurve, linear_curve


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_linear_curve_goes_through_its_points_and_on_beyond_them() -> None:
    curve = linear_curve(array(10, 20, 40), array(5, 6, 12), 0.1)
    assert [curve.price_ms(c) for c in (10, 15, 20, 30, 40, 50)] == [5, 5.5, 6, 9, 12, 15]
    assert curve.price_ms(0) == 4


def test_a_curve_of_one_point_is_flat() -> None:
    curve = linear_curve(array(10), array(5), 0.1)
    assert [curve.price_ms(c) for c in (0, 10, 1000)] == [5, 5, 5]
    assert curve.price_run_ms(3, 1, 3).tolist() == [5, 5, 5]


def test_no_pass_costs_less_than_the_floor() -> None:
    curve = linear_curve(array(10, 20), array(1, 2), 0.5)
    assert curve.price_ms(2) == 0.5
    assert curve.price_run_ms(0, 5, 5).tolist() == [0.5, 0.5, 1, 1.5, 2]


def test_a_piece_may_be_quadratic() -> None:
    curve = DecodeCurve(array(10), array(1, 101), array(0, 0), array(1, 0), 0.1)
    assert curve.price_run_ms(8, 1, 4).tolist() == [65, 82, 101, 101]


@given(
    points=st.lists(
        st.tuples(st.integers(1, 3000), st.floats(0.01, 1e3)), min_size=2, max_size=12, unique_by=lambda p: p[0]
    ),
    square=st.floats(0, 1e-3),
    start=st.integers(0, 4000),
    num_decodes=st.integers(1, 300),
    passes=st.integers(1, 60),
)
def test_a_run_costs_what_its_passes_cost_bit_for_bit(
    points: list[tuple[int, float]], square: float, start: int, num_decodes: int, passes: int
) -> None:
    points.sort()
    linear = linear_curve(array(*(p[0] for p in points)), array(*(p[1] for p in points)), 1e-3)
    pieces = len(linear.starts) + 1
    ones = np.ones(pieces)
    for curve in (linear, DecodeCurve(array(*linear.starts), ones, ones / 7, ones * square, 0.3)):
        single = [curve.price_ms(start + i * num_decodes) for i in range(passes)]
        assert curve.price_run_ms(start, num_decodes, passes).tolist() == single


@pytest.mark.parametrize("context", [0, 10**6])
def test_prices_are_floats_of_the_machine(context: int) -> None:
    assert type(linear_curve(array(10, 20), array(1, 2), 0.5).price_ms(context)) is float
