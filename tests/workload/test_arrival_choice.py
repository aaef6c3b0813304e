"""Which arrival process a configuration means, the user's own among them, and how many of its arrivals are taken."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest

from windtunnel import Config, load_workload
from windtunnel.errors import InputError, PluginError

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


def plugin(monkeypatch: pytest.MonkeyPatch, attribute: object) -> str:
    module: Any = types.ModuleType("my_arrivals")
    module.process = attribute
    monkeypatch.setitem(sys.modules, "my_arrivals", module)
    return "my_arrivals:process"


class Pairs:
    """Two at a time."""

    def __init__(self, rng: Any) -> None:
        self.gap_ms = 100.0 + rng.random()

    def times_ms(self, count: int) -> list[float]:
        return [number // 2 * self.gap_ms for number in range(count)]


def test_a_process_of_the_users_own(trace, monkeypatch):
    found = times(trace, plugin(monkeypatch, Pairs))
    assert found[1:3] == [0.0, 0.0]
    assert 100.0 < found[0] < 101.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0], r"times_ms\(3\) returned 1 times, expected 3"),
        ([0.0, -1.0, 2.0], "returned -1.0 for arrival 1, expected a finite number of at least 0"),
        ([0.0, math.nan, 2.0], "returned nan for arrival 1"),
        ([0.0, 5.0, 2.0], "returned 2.0 for arrival 2, after 5.0: expected no decrease"),
        (["x"] * 3, r"times_ms\(3\) raised ValueError"),
        (None, r"times_ms\(3\) raised TypeError"),
    ],
)
def test_a_process_that_answers_nonsense(trace, monkeypatch, answer, message):
    process = types.SimpleNamespace(times_ms=lambda count: answer)
    with pytest.raises(PluginError, match=message):
        times(trace, plugin(monkeypatch, process))


def test_what_is_no_process(trace, monkeypatch):
    with pytest.raises(InputError, match="is no arrival process: it has no method times_ms"):
        times(trace, plugin(monkeypatch, 3))
    with pytest.raises(InputError, match="there is no module 'no_such_module' to import"):
        times(trace, "no_such_module:process")


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        ("constant:rate=4", [0.0, 250.0, 500.0, 750.0, 1000.0]),
        ("ramp:start_rate=0,end_rate=10,ramp_s=10,evenly=true", [1000 * math.sqrt(2 * n) for n in range(5)]),
        ("step:rates=[1, 0, 2],step_s=2,evenly=true", [0.0, 1000.0, 2000.0, 4500.0, 5000.0]),
        ("step:rates=[2, 0],step_s=1,repeat=true,evenly=true", [0.0, 500.0, 1000.0, 2500.0, 3000.0]),
        ("spike:rate=1,spike_rate=4,spike_start_s=1,spike_s=0.5,evenly=true", [0.0, 1000.0, 1250.0, 1500.0, 2500.0]),
        (
            "spike:rate=1,spike_rate=4,spike_start_s=0,spike_s=0.5,period_s=1.5,evenly=true",
            [0.0, 250.0, 500.0, 1500.0, 1750.0],
        ),
        ("diurnal:rate=1,amplitude=1e-12,period_s=9,evenly=true", [0.0, 1000.0, 2000.0, 3000.0, 4000.0]),
    ],
)
def test_schedules_without_chance(arrival, expected):
    synthetic = {"isl": 8, "osl": 1, "requests": 5}
    config = Config.model_validate({"workload": {"synthetic": synthetic, "arrival": arrival}})
    assert list(load_workload(config).time_ms) == pytest.approx(expected)


@pytest.mark.parametrize(
    "arrival",
    [
        "poisson:rate=20",
        "gamma:rate=20,burstiness=2",
        "weibull:rate=20,shape=0.8",
        "ramp:start_rate=20,end_rate=20,ramp_s=5",
        "ramp:start_rate=19,end_rate=21,ramp_s=100,curve=exponential,burstiness=3",
        "step:rates=[10, 30],step_s=1,repeat=true",
        "spike:rate=18,spike_rate=38,spike_start_s=1,spike_s=1,period_s=10",
        "diurnal:rate=20,amplitude=1,period_s=20",
    ],
)
def test_every_process_has_the_rate_that_it_is_given(arrival):
    synthetic = {"isl": 8, "osl": 1, "duration_s": 100.0}
    config = Config.model_validate({"workload": {"synthetic": synthetic, "arrival": arrival}})
    assert load_workload(config).num_requests == pytest.approx(2000, rel=0.08)


def test_a_rate_that_falls_to_nothing_is_enough_for_a_duration_but_not_for_any_number():
    arrival = "ramp:start_rate=10,end_rate=0,ramp_s=10,evenly=true"
    config = {"workload": {"synthetic": {"isl": 8, "osl": 1, "duration_s": 100.0}, "arrival": arrival}}
    assert load_workload(Config.model_validate(config)).num_requests == 51
    config = {"workload": {"synthetic": {"isl": 8, "osl": 1, "requests": 100}, "arrival": arrival}}
    with pytest.raises(InputError, match=r"workload\.arrival: has 51 arrivals, expected the 100 that are needed"):
        load_workload(Config.model_validate(config))
