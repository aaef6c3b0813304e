"""Arrivals that stand at one instant are taken apart inside the step of the trace."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cli import main
from windtunnel.errors import InputError
from windtunnel.workload.spreading import spread_arrivals
from windtunnel.workload.traces import load_trace


def test_the_requests_of_an_instant_share_its_step_evenly():
    spread = spread_arrivals(np.array([0.0, 3000.0, 3000.0, 3000.0, 6000.0, 12000.0, 12000.0]))
    assert spread.times_ms.tolist() == [0.0, 3000.0, 4000.0, 5000.0, 6000.0, 12000.0, 13500.0]
    assert (spread.step_ms, spread.moved) == (3000.0, 3)


def test_distinct_arrivals_stay():
    times = np.array([5.0, 1.0, 2.5])
    assert spread_arrivals(times).times_ms.tolist() == times.tolist()
    assert spread_arrivals(times).moved == 0


def test_one_instant_has_no_step():
    spread = spread_arrivals(np.array([7.0, 7.0]))
    assert (spread.times_ms.tolist(), spread.step_ms, spread.moved) == ([7.0, 7.0], 0.0, 0)


@given(st.lists(st.integers(0, 6).map(lambda n: n * 3000.0) | st.floats(0, 1e15), min_size=1, max_size=30))
def test_order_is_kept_and_nothing_leaves_its_step(times: list[float]):
    given_ms = np.array(times)
    spread = spread_arrivals(given_ms)
    order = np.argsort(given_ms, kind="stable")
    after = spread.times_ms[order]
    assert (np.diff(after) >= 0).all()
    assert (spread.times_ms >= given_ms).all()
    if spread.step_ms:
        assert ((spread.times_ms < given_ms + spread.step_ms) | (spread.times_ms == given_ms)).all()
        firsts = np.unique(given_ms)
        assert set(firsts) <= set(spread.times_ms.tolist())
    assert spread.moved == np.count_nonzero(spread.times_ms != given_ms)


def test_spreading_comes_before_the_speedup_and_is_counted(write_trace):
    rows = [{"timestamp": t, "input_length": 4, "output_length": 1, "hash_ids": [1]} for t in (1000, 1000, 1300)]
    workload = load_trace(write_trace(*rows), spread=True, speedup=2.0)
    assert list(workload.time_ms) == [0.0, 75.0, 150.0]
    assert workload.loading is not None
    assert (workload.loading.spread, workload.loading.spread_step_ms) == (1, 300.0)


def test_only_what_has_an_arrival_is_spread(write_trace):
    rows = [
        {"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1], "session_id": "a"},
        {"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]},
        {"timestamp": 10, "input_length": 4, "output_length": 1, "hash_ids": [1]},
        {"delay": 0, "input_length": 4, "output_length": 1, "hash_ids": [1], "session_id": "a"},
    ]
    assert list(load_trace(write_trace(*rows), spread=True).time_ms) == [0.0, 5.0, 10.0, 0.0]


def test_run_spreads_says_so_and_counts_it_in_the_report(capsys):
    assert main(["run", "--spread", "sample:mooncake-conversation", "--report", "-", "--no-run-info"]) == 0
    printed = capsys.readouterr()
    loading = json.loads(printed.out)["workload"]["loading"]
    assert loading["spread_requests"] == 347
    assert "347 of 394 requests spread inside steps of " in printed.err


@pytest.mark.parametrize("load", [["--concurrency", "2", "sample:mooncake-conversation"]])
def test_a_closed_loop_has_nothing_to_spread(load, capsys):
    assert main(["run", "--spread", *load]) == 2
    assert "--spread has no effect with --concurrency" in capsys.readouterr().err


def test_a_synthetic_load_has_nothing_to_spread(capsys):
    assert main(["run", "--spread", "--isl", "4", "--osl", "4", "--requests", "2", "--rate", "1"]) == 2
    assert "--spread applies to trace files only" in capsys.readouterr().err


def test_the_error_of_a_file_is_the_same():
    with pytest.raises(InputError, match="no such file"):
        load_trace("missing", spread=True)
