import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.report.distribution import STATISTICS, describe

PERCENTILES = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}

# Few distinct values, so that ties are common; wide enough that a naive sum of squares would lose all digits.
values = st.sampled_from([0.0, 0.1, 6.17, 6.1700001, 22.5, 4841.197426, 1e9]) | st.floats(1e-3, 1e9)
weighted = st.lists(st.tuples(values, st.integers(1, 60)), min_size=1, max_size=40)


def test_no_samples_are_all_zeros():
    assert describe(np.empty(0)) == dict.fromkeys(STATISTICS, 0.0)


def test_one_sample_is_every_statistic_but_the_deviation():
    assert describe(np.array([7.25])) == {**dict.fromkeys(STATISTICS, 7.25), "std": 0.0}


def test_percentiles_interpolate_between_neighbours():
    statistics = describe(np.array([40.0, 10.0, 30.0, 20.0]))
    assert statistics["median"] == 25.0
    assert statistics["p75"] == 32.5
    assert statistics["p90"] == pytest.approx(37.0)


def test_deviation_is_of_the_population():
    assert describe(np.array([1.0, 3.0]))["std"] == 1.0


def test_count_is_worth_that_many_samples():
    statistics = describe(np.array([10.0, 1.0]), np.array([1, 3]))
    assert statistics["mean"] == 3.25
    assert statistics["median"] == 1.0
    assert statistics["p75"] == 3.25  # rank 2.25 of 1, 1, 1, 10


def test_equal_samples_have_that_mean_and_no_deviation_despite_rounding():
    statistics = describe(np.array([6.171689, 6.171689]), np.array([3, 7_000_000]))
    assert statistics["mean"] == 6.171689
    assert statistics["std"] == 0.0


@settings(deadline=None)
@given(weighted)
def test_percentiles_equal_numpy_on_the_expanded_samples(pairs):
    samples = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs])
    statistics = describe(samples, counts)
    expanded = np.repeat(samples, counts)
    for name, percent in PERCENTILES.items():
        assert statistics[name] == np.percentile(expanded, percent)
    assert statistics["min"] == expanded.min()
    assert statistics["max"] == expanded.max()


@settings(deadline=None)
@given(weighted)
def test_mean_and_deviation_equal_those_of_the_expanded_samples(pairs):
    samples = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs])
    statistics = describe(samples, counts)
    expanded = np.repeat(samples, counts).astype(np.longdouble)
    scale = float(expanded.max())
    assert statistics["mean"] == pytest.approx(float(expanded.mean()), rel=1e-13, abs=0.0)
    assert statistics["std"] == pytest.approx(float(expanded.std()), rel=1e-9, abs=1e-14 * scale)
    assert statistics["min"] <= statistics["mean"] <= statistics["max"]


@settings(deadline=None)
@given(weighted, st.randoms(use_true_random=False))
def test_order_of_the_samples_changes_only_rounding(pairs, random):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    one, other = (describe(np.array([v for v, _ in p]), np.array([c for _, c in p])) for p in (pairs, shuffled))
    assert one == pytest.approx(other, rel=1e-12, abs=1e-5)
    assert one["p99"] == other["p99"]
