"""Arrival processes and the random streams they draw from."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from windtunnel.workload.arrivals import ArrivalProcess, Constant, Poisson
from windtunnel.workload.streams import named_stream


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
        "print(list(w.time_ms), [w.prompt_runs(r) for r in range(50)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000
