"""Traces whose arrivals are replaced."""

from __future__ import annotations

import types

import pytest

from windtunnel import Config, load_workload, simulate
from windtunnel.errors import InputError, PluginError
from windtunnel.workload.arrivals import Constant
from windtunnel.workload.retiming import retime

ROW = '{{"timestamp": {}, "input_length": 512, "output_length": 2, "hash_ids": [{}]{}}}\n'


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [(500, 1, ""), (100, 2, ', "session_id": "s"'), (100, 3, ""), (300, 4, ', "session_id": "s"')]
    path.write_text("".join(ROW.format(*row) for row in rows))
    return str(path)


def times(trace: str, arrival: object, **workload: object) -> list[float]:
    config = Config.model_validate({"workload": {"path": trace, "arrival": arrival, **workload}})
    return list(load_workload(config).time_ms)


def test_rows_keep_their_order_and_turns_their_delays(trace):
    assert times(trace, "constant:interval_ms=10") == [20.0, 0.0, 10.0, 200.0]


def test_a_speedup_divides_the_new_times_as_well(trace):
    assert times(trace, "constant:interval_ms=10", speedup=2.0) == [10.0, 0.0, 5.0, 100.0]


def test_a_random_process_depends_on_the_seed_only(trace):
    first = times(trace, "gamma:rate=10,burstiness=0.5")
    assert first == times(trace, "gamma:rate=10,burstiness=0.5")
    assert first != times(trace, "gamma:rate=10,burstiness=0.6")
    assert first[1] == 0.0


def test_what_waits_for_others_keeps_its_delay(tmp_path):
    path = tmp_path / "graph.jsonl"
    row = '{{"request_id": "{}", "timestamp": {}, "input_length": 512, "output_length": 1, "hash_ids": [{}]{}}}\n'
    rows = [("a", 70, 1, ""), ("b", 0, 2, ', "wait_for": ["a"], "delay": 25'), ("c", 30, 3, "")]
    path.write_text("".join(row.format(*values) for values in rows))
    assert times(str(path), "constant:interval_ms=100") == [100.0, 25.0, 0.0]


def test_the_arrivals_of_another_trace(trace, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("arrival_s,input,output\n7,1,1\n5,1,1\n9.5,1,1\n")
    assert times(trace, f"recorded:path={other}") == [4500.0, 0.0, 2000.0, 200.0]


def test_too_few_recorded_arrivals(trace, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("arrival_s,input,output\n7,1,1\n5,1,1\n")
    with pytest.raises(InputError, match=r"workload\.arrival: has 2 arrivals, expected the 3 that are needed"):
        times(trace, f"recorded:path={other}")
    other.write_text("arrival_s,input,output\n7,1,1\n,1,1\n")
    with pytest.raises(InputError, match="has requests without an arrival time"):
        times(trace, f"recorded:path={other}")


def test_a_synthetic_load_at_all_recorded_times(trace):
    synthetic = {"isl": 8, "osl": 1}
    config = Config.model_validate({"workload": {"synthetic": synthetic, "arrival": f"recorded:path={trace}"}})
    assert list(load_workload(config).time_ms) == [0.0, 0.0, 400.0]


def test_a_trace_without_arrivals_can_be_given_some(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input,output\n8,2\n8,2\n")
    with pytest.raises(InputError, match="concurrency: missing"):
        simulate(Config.model_validate({"workload": {"path": str(path)}}))
    config = Config.model_validate({"workload": {"path": str(path), "arrival": "constant:rate=2"}})
    assert list(simulate(config).record.requests.arrival_ms) == [0.0, 500.0]


def test_a_process_given_as_an_object(trace):
    workload = load_workload(Config.model_validate({"workload": {"path": trace}}))
    retime(workload, Constant(30.0))
    assert list(workload.time_ms) == [60.0, 0.0, 30.0, 200.0]
    with pytest.raises(PluginError, match=r"SimpleNamespace: times_ms\(3\) returned 0 times"):
        retime(workload, types.SimpleNamespace(times_ms=lambda count: []))
