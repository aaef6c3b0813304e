"""Arrival processes and the random streams they draw from."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.workload.arrivals import (
    ArrivalProcess,
    Constant,
    EvenGaps,
    GammaGaps,
    Modulated,
    Poisson,
    Recorded,
    Renewal,
    Shifted,
    WeibullGaps,
    times_before_ms,
)
from windtunnel.workload.rates import Diurnal, PiecewiseLinear
from windtunnel.workload.streams import named_generator, named_stream


def test_constant_arrivals_are_multiples_of_the_interval():
    assert list(Constant(0.1).times_ms(4)) == [0.0, 0.1, 0.2, 3 * 0.1]


def test_an_interval_of_zero_sends_all_at_once():
    assert list(Constant(0.0).times_ms(3)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("process", [Constant(5.0), Poisson(10.0, named_stream(0, "arrival-times"))])
def test_no_arrivals_for_a_count_of_zero(process: ArrivalProcess):
    assert len(process.times_ms(0)) == 0


def test_a_poisson_gap_is_the_inverted_draw():
    draws = named_stream(3, "arrival-times")
    expected = -100.0 * math.log(1.0 - draws.random())
    assert list(Poisson(10.0, named_stream(3, "arrival-times")).times_ms(2)) == [0.0, expected]


def test_poisson_arrivals_never_fall():
    times = Poisson(1000.0, named_stream(0, "arrival-times")).times_ms(5000)
    assert all(a <= b for a, b in pairwise(times))


@pytest.mark.parametrize("seed", [0, 7, 42])
def test_poisson_gaps_have_the_moments_of_an_exponential(seed: int):
    count = 20_000
    times = Poisson(10.0, named_stream(seed, "arrival-times")).times_ms(count + 1)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / count
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / count)
    above_mean = sum(gap > 100.0 for gap in gaps) / count
    assert mean == pytest.approx(100.0, rel=0.03)
    assert deviation == pytest.approx(100.0, rel=0.05)
    assert above_mean == pytest.approx(math.exp(-1), abs=0.015)


@pytest.mark.parametrize("seed", [0, 7, 42])
def test_two_thousand_arrivals_at_ten_a_second_have_that_rate(seed: int):
    times = Poisson(10.0, named_stream(seed, "arrival-times")).times_ms(2000)
    assert 2000 / (times[-1] / 1000.0) == pytest.approx(10.0, abs=0.5)


def test_a_stream_is_determined_by_seed_and_name():
    assert named_stream(1, "a").random() == named_stream(1, "a").random()


def test_streams_of_other_seeds_or_names_differ():
    streams = [named_stream(seed, name) for seed in (0, 1, 11) for name in ("a", "b", "1/a")]
    assert len({stream.random() for stream in streams}) == len(streams)


def test_a_stream_begins_with_known_numbers():
    assert named_stream(0, "arrival-times").random() == 0.37120719293877735
    assert named_stream(42, "prefix-groups").random() == 0.800444545798661


def test_streams_do_not_depend_on_the_hash_seed():
    program = (
        "from windtunnel.config.schema import SyntheticConfig as C\n"
        "from windtunnel.workload.synthetic import synthetic_workload as s\n"
        "w = s(C(isl=64, osl=2, requests=50, rate=3.0, prefix_ratio=0.5, prefix_groups=7), block_size=16, seed=5)\n"
        "print(list(w.time_ms), [w.prompt_runs(r) for r in range(50)])\n"
        "from windtunnel import Config, load_workload\n"
        "mix = {n: dict(isl='lognormal:mean=90,std=40', osl='geometric:mean=9', turns='geometric:mean=2', requests=20, "
        "accumulate=True, prefix_tokens=9, prefix_groups=5, prefix_zipf=1.0, arrival='weibull:rate=2,shape=0.7') "
        "for n in 'ab'}\n"
        "w = load_workload(Config.model_validate({'workload': {'classes': mix}}))\n"
        "print(list(w.time_ms), [w.prompt_runs(r) for r in range(w.num_requests)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


def gaps_of(process: ArrivalProcess, count: int = 30_000) -> np.ndarray:
    return np.diff(np.array(process.times_ms(count + 1)))


def test_no_arrival_process_moves_the_draws_that_published_results_rest_on():
    times = list(Poisson(10.0, named_stream(0, "arrival-times")).times_ms(4))
    assert times == [0.0, 46.39534770845675, 111.14522673137839, 159.5679560616295]


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 4.0, 100.0])
def test_burstiness_is_the_shape_of_gamma_distributed_gaps(burstiness):
    """vllm bench serve: numpy's gamma with shape b and scale 1 / (rate b): mean 1 / rate, variance 1 / (rate^2 b)."""
    gaps = gaps_of(Renewal(10.0, GammaGaps(burstiness, named_generator(0, "arrival-times"))))
    assert gaps.mean() == pytest.approx(100.0, rel=0.03)
    assert gaps.std() == pytest.approx(100.0 / math.sqrt(burstiness), rel=0.04)
    skewness = ((gaps - gaps.mean()) ** 3).mean() / gaps.std() ** 3
    assert skewness == pytest.approx(2.0 / math.sqrt(burstiness), rel=0.15, abs=0.05)


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0])
def test_weibull_gaps(shape):
    gaps = gaps_of(Renewal(10.0, WeibullGaps(shape, named_generator(0, "arrival-times"))))
    second = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    assert gaps.mean() == pytest.approx(100.0, rel=0.04)
    assert gaps.std() == pytest.approx(100.0 * math.sqrt(second - 1), rel=0.06)
    scale = 100.0 / math.gamma(1 + 1 / shape)
    assert (gaps > scale).mean() == pytest.approx(math.exp(-1), abs=0.01)  # whatever the shape


def test_a_fitted_rate_puts_the_last_arrival_where_vllm_does():
    for seed in range(3):
        process = Renewal(8.0, GammaGaps(0.5, named_generator(seed, "arrival-times")), fits_rate=True)
        times = process.times_ms(400)
        assert times[-1] == pytest.approx(400 / 8.0 * 1000.0, rel=1e-12)
        assert times[0] > 0.0


def test_a_process_that_starts_with_a_gap_has_the_same_gaps():
    at_zero, later = (
        list(Poisson(10.0, named_stream(0, "arrival-times"), starts_with_gap=gap).times_ms(4)) for gap in (False, True)
    )
    assert later[:3] == at_zero[1:]


def test_more_arrivals_begin_like_fewer():
    def times(count: int) -> list[float]:
        gaps = GammaGaps(0.7, named_generator(5, "arrival-times"))
        return list(Modulated(Diurnal(2.0, 0.5, 60.0, 30.0), gaps).times_ms(count))

    assert times(500)[:100] == times(100)


@pytest.mark.parametrize("burstiness", [0.5, 1.0])
def test_arrivals_follow_a_rate_that_changes(burstiness):
    """Three steps of 200 s at 5, 20 and 0 a second: counts have the mean of the rate, and no arrival in the last."""
    counts = []
    for seed in range(40):
        gaps = GammaGaps(burstiness, named_generator(seed, "arrival-times"))
        steps = PiecewiseLinear([(200.0, 5.0, 5.0), (200.0, 20.0, 20.0), (200.0, 0.0, 0.0)], 0.0)
        times = np.array(Modulated(steps, gaps).times_ms(6000))
        counts.append([np.count_nonzero((times >= start) & (times < start + 200e3)) for start in (0.0, 200e3, 400e3)])
    first, second, third = np.array(counts).T
    assert first.mean() == pytest.approx(1000, rel=0.03)
    assert second.mean() == pytest.approx(4000, rel=0.03)
    assert third.max() == 0
    assert first.var() / first.mean() == pytest.approx(1 / burstiness, rel=0.6)  # Poisson: 1


def test_an_even_schedule_is_the_inverse_of_the_rate():
    ramp = PiecewiseLinear([(10.0, 0.0, 10.0)], 10.0)
    times = Modulated(ramp, EvenGaps()).times_ms(60)
    assert list(times)[:4] == pytest.approx([math.sqrt(2 * n) * 1000.0 for n in range(4)])
    assert times[59] == pytest.approx(10_900.0)


def test_what_was_recorded_comes_in_order_from_zero_on_and_then_nothing_does():
    recorded = Recorded(np.array([700.0, 500.0, 500.0, 900.5]))
    assert list(recorded.times_ms(3)) == [0.0, 0.0, 200.0]
    assert list(recorded.times_ms(5)) == [0.0, 0.0, 200.0, 400.5, math.inf]


def test_arrivals_before_a_time():
    assert list(times_before_ms(lambda: Constant(100.0), 350.0, 10**6)) == [0.0, 100.0, 200.0, 300.0]
    assert len(times_before_ms(lambda: Constant(100.0), 400.0, 10**6)) == 4
    assert len(times_before_ms(lambda: Constant(1.0), 5000.0, 10**6)) == 5000
    assert len(times_before_ms(lambda: Recorded(np.array([0.0, 5.0])), 1e9, 10**6)) == 2


def test_a_time_with_too_many_arrivals_or_none():
    with pytest.raises(InputError, match="more than 2,000 arrivals before 5 s"):
        times_before_ms(lambda: Constant(1.0), 5000.0, 2000)
    with pytest.raises(InputError, match="no arrival before 5 s"):
        times_before_ms(lambda: Shifted(Constant(1.0), 6000.0), 5000.0, 2000)
