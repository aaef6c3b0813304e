"""Columns on disk are columns: the same numbers, however they were appended, and the same simulation."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel import disk_columns
from windtunnel.cli import main
from windtunnel.disk_columns import DiskColumn, filled, give_back
from windtunnel.errors import InputError
from windtunnel.workload.arrival_order import arrival_order, is_sorted
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_columns, "ROWS_IN_MEMORY", 20)
    monkeypatch.setattr(disk_columns, "_VALUES_AT_ONCE", 8)


@settings(max_examples=60, deadline=None)
@given(
    first=st.lists(st.integers(-9, 9), max_size=5),
    parts=st.lists(st.lists(st.integers(-9, 9), max_size=20), max_size=4),
    writes=st.lists(st.tuples(st.integers(0, 40), st.integers(-9, 9)), max_size=5),
)
def test_a_column_on_disk_is_the_array(first: list[int], parts: list[list[int]], writes: list[tuple[int, int]]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_columns, "_VALUES_AT_ONCE", 8)
        expected = array("q", first)
        column: Any = DiskColumn(array("q", first))
        for number, part in enumerate(parts):
            if number % 3 == 0:
                column.extend(part)
            elif number % 3 == 1:
                column.frombytes(array("q", part).tobytes())
            else:
                for value in part:
                    column.append(value)
            expected.extend(part)
        for place, value in writes:
            if place < len(expected):
                column[place] = expected[place] = value
        assert len(column) == len(expected)
        assert list(column) == list(expected)
        assert [column[i] for i in range(-len(expected), len(expected))] == list(expected) * 2
        assert column[3:17].tolist() == expected[3:17].tolist()
        if expected:
            view = column.mapped()
            give_back(view)
            assert view.tolist() == list(expected)
            view[0] = 77
            assert column[0] == 77


def test_a_column_filled_with_a_number(small_memory: None):
    assert type(filled("d", 0.5, 19)) is array
    column: Any = filled("d", 0.5, 21)
    assert type(column) is memoryview
    assert column.tolist() == [0.5] * 21
    assert np.asarray(column).dtype == np.float64


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.integers(0, 6).map(float), min_size=1, max_size=60), run=st.integers(1, 20), at=st.integers(1, 9)
)
def test_runs_on_disk_merge_to_the_stable_order(times: list[float], run: int, at: int):
    given_ms = np.array(times)
    numbers, ordered = arrival_order(given_ms, run, at)
    order = np.argsort(given_ms, kind="stable")
    assert list(numbers) == order.tolist()
    assert list(ordered) == given_ms[order].tolist()
    assert is_sorted(given_ms) == (sorted(times) == times)


def rows(shuffled: bool, turns: bool) -> list[dict[str, Any]]:
    dice = np.random.default_rng(3)
    found: list[dict[str, Any]] = []
    for number in range(150):
        row: dict[str, Any] = {
            "timestamp": int(dice.integers(0, 60)) * 10 if shuffled else number * 7 // 3 * 5,
            "input_length": int(dice.integers(1, 1500)),
            "output_length": int(dice.integers(0, 9)),
        }
        row["hash_ids"] = dice.integers(0, 12, -(-row["input_length"] // 512)).tolist()
        if turns and number > 70 and number % 3:
            row["session_id"] = f"s{number % 5}"
            if any(other.get("session_id") == row["session_id"] for other in found):
                row["delay"] = row.pop("timestamp")
        found.append(row)
    return found


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("flags", [[], ["--concurrency", "4"], ["--spread", "--speedup", "3"]])
def test_a_run_from_disk_is_byte_identical(
    shuffled: bool, turns: bool, flags: list[str], write_trace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trace = write_trace(*rows(shuffled, turns))
    written = []
    for limit in (10**9, 20):
        monkeypatch.setattr(disk_columns, "ROWS_IN_MEMORY", limit)
        monkeypatch.setattr(disk_columns, "_VALUES_AT_ONCE", 8)
        report, requests = tmp_path / f"{limit}.json", tmp_path / f"{limit}.jsonl"
        out = ["--report", str(report), "--requests-out", str(requests)]
        command = ["run", trace, "--workers", "2", "--set", "engine.num_gpu_blocks=100", "--no-run-info", "--quiet"]
        assert main([*command, *flags, *out]) == 0
        written.append(report.read_bytes() + requests.read_bytes())
    assert written[0] == written[1]


def test_a_workload_on_disk_can_be_added_to(small_memory: None):
    workload = Workload()
    for number in range(50):
        workload.add([(0, number, 3)], 1, time_ms=float(number), session=number // 2 if number % 2 else None)
        if number == 29:
            workload.complete()
            workload.complete()
    workload.complete()
    assert workload.num_requests == 50
    assert [workload.prompt_runs(number) for number in (0, 25, 49)] == [[(0, n, 3)] for n in (0, 25, 49)]


def test_a_table_on_disk_means_the_same(small_memory: None, tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input,output\n" + "".join(f"{n},{n + 1},{n % 3}\n" for n in range(100)))
    workload = load_trace(path)
    assert type(workload.input_tokens) is memoryview
    assert list(workload.input_tokens) == list(range(1, 101))
    assert list(workload.time_ms) == [n * 1000.0 for n in range(100)]


def test_a_disk_without_room_is_one_line(small_memory: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InputError, match="are kept on disk, and it cannot be written: No such file or directory"):
        filled("q", 0, 100)


PEAK = """
import resource, sys
import windtunnel.disk_columns
windtunnel.disk_columns.ROWS_IN_MEMORY = 20_000
from windtunnel.workload.driver import Driver
from windtunnel.workload.traces import load_trace
workload = load_trace(sys.argv[1])
driver = Driver(workload)
sent = 0
while (ready_ms := driver.next_ready_ms()) != float("inf"):
    for request in driver.release(ready_ms):
        workload.content(request, 1)
        driver.finished(request, ready_ms)
        sent += 1
        if sent % 20_000 == 0:
            driver.give_back()
print(sent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform != "darwin" else 1 << 20))
"""


@pytest.mark.parametrize("order", [1, -1])
def test_three_times_the_rows_take_hardly_more_memory(order: int, tmp_path: Path):
    """Two bytes a request, and what numpy sorts at once; columns in memory take 120 bytes a request."""
    peaks = []
    for count in (50_000, 250_000):
        path = tmp_path / "trace.jsonl"
        with path.open("w") as file:
            for number in range(count)[::order]:
                file.write(
                    f'{{"timestamp": {number}, "input_length": 9, "output_length": 1, "hash_ids": [{number}]}}\n'
                )
        process = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
        sent, peak_mb = map(int, process.stdout.split())
        assert sent == count
        peaks.append(peak_mb)
    assert peaks[1] - peaks[0] < 12, peaks
