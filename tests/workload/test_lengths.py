"""What is drawn from distributions of lengths, counts and delays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windtunnel.config.distribution import Distribution
from windtunnel.errors import InputError
from windtunnel.workload.lengths import draw_counts, draw_delays_ms, pick
from windtunnel.workload.streams import named_generator, named_stream

COUNT = 40_000


def counts(text: str | int, count: int = COUNT, seed: int = 0) -> np.ndarray:
    value = Distribution.model_validate(text) if isinstance(text, str) else text
    return draw_counts(value, count, named_generator(seed, "lengths"), field="isl")


def delays(text: str | float, count: int = COUNT) -> np.ndarray:
    value = Distribution.model_validate(text) if isinstance(text, str) else text
    return draw_delays_ms(value, count, named_generator(0, "turn-delays"))


def test_a_generator_is_the_stream_of_its_name():
    stream, generator = named_stream(7, "lengths"), named_generator(7, "lengths")
    assert generator.random_sample(700).tolist() == [stream.random() for _ in range(700)]


def test_one_number_for_all_draws_nothing():
    rng = named_generator(0, "x")
    assert draw_counts(5, 3, rng, field="isl").tolist() == [5, 5, 5]
    assert draw_delays_ms(2.5, 2, rng).tolist() == [2.5, 2.5]
    assert rng.random_sample() == named_stream(0, "x").random()


# Mean and standard deviation from the textbook; rounding to whole numbers adds 1/12 to the variance.
MOMENTS = [
    ("normal:mean=1000,std=100", 1000.0, math.sqrt(100**2 + 1 / 12)),
    ("lognormal:mean=800,std=600", 800.0, 600.0),
    ("lognormal:median=300,sigma=0.5", 300 * math.exp(0.125), 300 * math.exp(0.125) * math.sqrt(math.exp(0.25) - 1)),
    ("uniform:min=10,max=500", 255.0, math.sqrt((491**2 - 1) / 12)),
    ("exponential:mean=4000", 4000.0, 4000.0),
    ("geometric:mean=4", 4.0, math.sqrt(12.0)),
]


@pytest.mark.parametrize(("text", "mean", "std"), MOMENTS)
@pytest.mark.parametrize("seed", [0, 42])
def test_lengths_have_the_moments_of_their_distribution(text, mean, std, seed):
    drawn = counts(text, seed=seed)
    assert drawn.mean() == pytest.approx(mean, rel=4 * std / mean / math.sqrt(COUNT))
    assert drawn.std() == pytest.approx(std, rel=0.04)
    assert drawn.min() >= 1


def test_the_median_of_a_lognormal_is_what_was_asked_for():
    assert np.median(counts("lognormal:median=300,sigma=1.2")) == pytest.approx(300, rel=0.03)


def test_uniform_lengths_include_both_bounds_and_each_is_as_likely():
    values, occurrences = np.unique(counts("uniform:min=3,max=6"), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert occurrences / COUNT == pytest.approx([0.25] * 4, abs=0.01)


def test_beyond_a_bound_a_length_is_that_bound():
    drawn = counts("normal:mean=100,std=50,min=80.5,max=120.5")
    assert (drawn.min(), drawn.max()) == (81, 120)
    below = 0.5 * (1 + math.erf((81 - 100) / 50 / math.sqrt(2)))
    assert (drawn == 81).mean() == pytest.approx(below, abs=0.012)


def test_without_a_lower_bound_a_length_is_at_least_one():
    assert counts("normal:mean=1,std=10").min() == 1


def test_a_geometric_number_of_turns_has_no_memory():
    drawn = counts("geometric:mean=3")
    assert (drawn == 1).mean() == pytest.approx(1 / 3, abs=0.01)
    assert (drawn[drawn > 1] == 2).mean() == pytest.approx(1 / 3, abs=0.015)


def test_a_length_that_no_request_can_have_is_refused():
    with pytest.raises(InputError, match=r"^isl: drew .*, expected at most 2147483648: give a max"):
        counts("lognormal:median=1000,sigma=30")


def test_no_whole_number_between_the_bounds():
    with pytest.raises(InputError, match="no whole number"):
        counts("uniform:min=3.2,max=3.8")


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("uniform:min=100,max=300", 200.0, 200 / math.sqrt(12)),
        ("exponential:mean=250.5", 250.5, 250.5),
        ("lognormal:mean=5000,std=2000", 5000.0, 2000.0),
    ],
)
def test_delays_have_the_moments_of_their_distribution(text, mean, std):
    drawn = delays(text)
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(std, rel=0.04)


def test_delays_may_be_zero_and_are_not_rounded():
    drawn = delays("normal:mean=1,std=1,max=2.5")
    assert (drawn.min(), drawn.max()) == (0.0, 2.5)
    assert len(np.unique(drawn)) > COUNT / 2


def test_picks_are_in_range_and_uniform():
    places = pick(7, COUNT, named_generator(1, "lengths"))
    assert np.bincount(places) / COUNT == pytest.approx([1 / 7] * 7, abs=0.01)


EXTREMES = ["1e15", "1e9", "1", "1e-6"]


@pytest.mark.parametrize("kind", ["normal", "lognormal", "exponential", "geometric", "median"])
@pytest.mark.parametrize("high", EXTREMES)
@pytest.mark.parametrize("low", [*EXTREMES, "50"])
def test_extreme_parameters_give_lengths_within_bounds(kind: str, high: str, low: str):
    parameters = {
        "normal": f"normal:mean={high},std={low}",
        "lognormal": f"lognormal:mean={high},std={low}",
        "exponential": f"exponential:mean={high}",
        "geometric": f"geometric:mean={max(float(high), 1.0)}",
        "median": f"lognormal:median={high},sigma={min(float(low), 50.0)}",
    }[kind]
    drawn = counts(parameters + ",max=100", count=50)
    assert ((drawn >= 1) & (drawn <= 100)).all()
    assert np.isfinite(delays(parameters, count=50)).all()
    if high == "1e15" and kind in ("exponential", "geometric"):
        assert (drawn == 100).all()
        with pytest.raises(InputError, match=r"drew .*, expected at most 2147483648: give a max"):
            counts(parameters, count=50)


@pytest.mark.parametrize(
    "text", ["normal:mean=1e308,std=1", "lognormal:mean=5,std=1e300", "lognormal:median=1,sigma=99"]
)
def test_parameters_beyond_what_can_be_drawn_are_refused(text: str):
    with pytest.raises(ValueError, match="less than or equal to"):
        Distribution.model_validate(text)
