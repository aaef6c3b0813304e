"""What has ended costs nothing any more: idle gaps do not look at it, and its prompts are not kept.

The numbers are those of a public review of another replayer.
"""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

from windtunnel import Config, simulate
from windtunnel.workload.content import output_origin
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload


class Counted(list[Any]):
    """The heap of turns that wait, which counts how often one is looked at."""

    looked_at = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.looked_at += 1
        return super().__getitem__(place)


def test_an_idle_gap_looks_at_no_session_that_has_ended():
    """Twice the sparse sessions of one turn take twice the steps, not four times."""
    steps = []
    for count in (500, 1000):
        workload = Workload()
        for number in range(count):
            workload.add([(number, 0, 8)], 1, time_ms=number * 1000.0)
        driver = Driver(workload)
        driver._ready = Counted(driver._ready)
        Counted.looked_at = 0
        while not driver.exhausted:
            (request,) = driver.release(driver.next_ready_ms())
            assert not driver._ready
            driver.finished(request, driver.arrival_ms[request] + 1.0)
        steps.append(Counted.looked_at)
    assert steps[1] <= 2 * steps[0]


def calls_of_a_replay(sessions: int) -> int:
    """Calls that simulating so many sparse sessions of one turn takes."""
    workload = Workload()
    for number in range(sessions):
        workload.add([(number % 7, 0, 100)], 2, time_ms=number * 1000.0)
    config = Config.model_validate({"engine": {"num_gpu_blocks": 64}, "cluster": {"workers": 2}})
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        simulate(config, workload=workload)
    finally:
        sys.setprofile(None)
    return calls


def test_twice_the_sparse_sessions_take_twice_the_calls():
    calls_of_a_replay(10)  # imports, caches
    few, many, more = (calls_of_a_replay(sessions) for sessions in (200, 400, 800))
    assert many <= 2.02 * few
    assert more <= 2.02 * many


def test_ten_thousand_sessions_of_64_000_tokens_hold_next_to_nothing_once_done():
    workload = Workload()
    workload.accumulates = True
    for number in range(10_000):
        workload.add([(number, 0, 32_000)], 4000, time_ms=float(number))
        runs = [(number, 0, 32_000), (output_origin(2 * number), 0, 4000), (number, 50_000, 28_000)]
        workload.add(runs, 100, session=number, time_ms=1.0)
    driver = Driver(workload)
    for request in driver.release(0.0):  # the first copy of the workload that a shortened output makes
        driver.finished(request, 0.5, output_tokens=10)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    while not driver.exhausted:
        now_ms = driver.next_ready_ms()
        for request in driver.release(now_ms):
            content = driver.workload.content(request, workload.output_tokens[request])
            assert content.length >= 32_000
            failed = "rejected" if request % 7 == 0 else ""
            driver.finished(request, now_ms + 2.0, failed=failed, cancelled=request % 11 == 0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 100_000  # bytes: ten a session


def test_a_live_session_has_exactly_its_tokens():
    workload = Workload()
    workload.accumulates = True
    workload.add([(0, 0, 60_000)], 4000, time_ms=0.0)
    workload.add([(0, 0, 60_000), (output_origin(0), 0, 4000), (0, 90_000, 5)], 1, session=0, time_ms=0.0)
    driver = Driver(workload)
    assert driver.release(0.0) == [0]
    driver.finished(0, 1.0, output_tokens=3000)
    assert driver.release(1.0) == [1]
    assert driver.workload.input_tokens[1] == 63_005
    assert driver.workload.prompt_runs(1) == [(0, 0, 60_000), (output_origin(0), 0, 3000), (0, 90_000, 5)]
