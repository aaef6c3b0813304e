"""`windtunnel run` from its arguments to files and tables."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.cli import main
from windtunnel.cluster.simulation import Simulation
from windtunnel.errors import InputError, StalledError

SMALL = ["run", "--isl", "100", "--osl", "5", "--requests", "20", "--rate", "50", "--no-run-info"]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def report_of(arguments: list[str]) -> bytes:
    assert main([*arguments, "--quiet", "--report", "report.json"]) == 0
    return Path("report.json").read_bytes()


def test_the_first_command_of_the_readme(capsys):
    assert main(["run"]) == 0
    captured = capsys.readouterr()
    assert "sample:mooncake-conversation | vllm, 2 workers, round-robin" in captured.out
    assert "Time to First Token (ms)" in captured.out
    assert captured.err == (
        "windtunnel: no load given: this was the sample trace on 2 workers; 'windtunnel run --help' has more\n"
    )


def test_a_load_that_is_given_needs_no_note(capsys):
    assert main(SMALL) == 0
    captured = capsys.readouterr()
    assert "| synthetic |" in captured.out
    assert captured.err == ""


def test_quiet_prints_nothing(capsys):
    assert main(["run", "--limit", "5", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_trace_and_its_options(tmp_path):
    rows = [{"timestamp": 1000 * i, "input_length": 30, "output_length": 4, "hash_ids": [i, i + 1]} for i in range(9)]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = json.loads(report_of(["run", "t.jsonl", "--trace-block-size", "16", "--limit", "6", "--speedup", "2"]))
    assert report["workload"]["requests"] == 6
    assert report["workload"]["arrival_span_ms"] == 2500.0
    assert report["config"]["workload"]["path"] == ["t.jsonl"]


def test_the_command_line_reaches_the_report():
    report = json.loads(
        report_of(
            [*SMALL, "--workers", "3", "--router", "least-loaded", "--slo", "ttft=1s", "--set", "engine.block_size=16"]
        )
    )
    assert report["config"]["cluster"]["workers"] == 3
    assert report["config"]["cluster"]["router"]["kind"] == "least-loaded"
    assert report["config"]["engine"]["block_size"] == 16
    assert report["config"]["slo"]["ttft_ms"] == 1000.0
    assert report["summary"]["completed_requests"] == 20
    assert "run" not in report


def test_stepwise_gives_the_same_numbers():
    fast, stepwise = json.loads(report_of(SMALL)), json.loads(report_of([*SMALL, "--stepwise"]))
    assert (fast["config"]["engine"]["fast_forward"], stepwise["config"]["engine"]["fast_forward"]) == (True, False)
    assert fast["summary"] == stepwise["summary"]


def test_requests_file_has_a_line_a_request():
    assert main([*SMALL, "--quiet", "--requests-out", "requests.jsonl"]) == 0
    lines = Path("requests.jsonl").read_text().splitlines()
    assert len(lines) == 20
    assert json.loads(lines[0])["terminal_status"] == "completed"


def test_report_on_stdout_sends_the_tables_to_stderr(capfdbinary):
    assert main([*SMALL, "--report", "-"]) == 0
    captured = capfdbinary.readouterr()
    assert json.loads(captured.out)["summary"]["num_requests"] == 20
    assert b"Time to First Token (ms)" in captured.err


def test_time_cap_leaves_a_partial_report():
    report = json.loads(report_of([*SMALL, "--max-time-s", "0.1"]))
    assert report["summary"]["interrupted"] == "time cap"
    assert 0 < report["summary"]["not_arrived_requests"] < 20


PRINTABLE = [
    SMALL,
    ["run", "--limit", "30", "--no-run-info"],
    [
        "run",
        "--isl",
        "64",
        "--osl",
        "3",
        "--requests",
        "9",
        "--concurrency",
        "2",
        "--turns",
        "2",
        "--turn-delay-ms",
        "5",
        "--prefix-ratio",
        "0.5",
        "--prefix-groups",
        "2",
        "--cancel-after-ms",
        "900",
        "--max-time-s",
        "3",
        "--seed",
        "7",
        "--slo",
        "itl=20",
        "--router",
        "random",
        "--set",
        "timing.decode_speedup=1.5",
        "--no-run-info",
    ],
]


@pytest.mark.parametrize("arguments", PRINTABLE, ids=["open loop", "sample", "closed loop"])
def test_a_printed_configuration_gives_the_same_report_byte_for_byte(arguments, capsys):
    assert main([*arguments, "--print-config"]) == 0
    printed = capsys.readouterr().out
    Path("printed.yaml").write_text(printed)
    assert report_of(["run", "--config", "printed.yaml"]) == report_of(arguments)
    assert main(["run", "--config", "printed.yaml", "--print-config"]) == 0
    assert capsys.readouterr().out == printed


def test_printing_the_configuration_simulates_and_writes_nothing(capsys):
    assert main([*SMALL, "--report", "report.json", "--print-config"]) == 0
    assert capsys.readouterr().out.startswith("workload:\n")
    assert not Path("report.json").exists()


def test_flags_beat_the_file(capsys):
    Path("c.yaml").write_text("cluster:\n  workers: 3\nseed: 5\n")
    report = json.loads(report_of([*SMALL, "--config", "c.yaml", "--workers", "2"]))
    assert (report["config"]["cluster"]["workers"], report["config"]["seed"]) == (2, 5)


def test_reports_do_not_depend_on_the_hash_seed():
    def outputs(hash_seed: str) -> tuple[bytes, bytes]:
        subprocess.run(
            [sys.executable, "-m", "windtunnel", "run", "--limit", "100", "--router", "random", "--no-run-info",
             "--quiet", "--report", "r.json", "--requests-out", "r.jsonl"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            timeout=60,
        )  # fmt: skip
        return Path("r.json").read_bytes(), Path("r.jsonl").read_bytes()

    assert outputs("0") == outputs("1")


# Objects of the user.

ROUTERS = """
class First:
    def route(self, request, workers, now_ms):
        return workers[0].number

class Failing:
    def __init__(self):
        self.calls = 0

    def route(self, request, workers, now_ms):
        self.calls += 1
        return give_up() if self.calls > 10 else 0

class Nowhere:
    def route(self, request, workers, now_ms):
        return 99

def give_up():
    raise KeyError("no worker left")
"""


def test_a_router_in_the_current_directory(monkeypatch):
    Path("near_routers.py").write_text(ROUTERS)
    report_of([*SMALL, "--workers", "2", "--router", "near_routers:First", "--requests-out", "r.jsonl"])
    assert {json.loads(line)["worker"] for line in Path("r.jsonl").read_text().splitlines()} == {0}


def test_a_router_that_raises_shows_its_own_traceback_and_leaves_a_partial_report(capsys):
    Path("bad_routers.py").write_text(ROUTERS)
    assert main([*SMALL, "--router", "bad_routers:Failing", "--report", "r.json", "--requests-out", "r.jsonl"]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", ")[-1] for line in lines if line.startswith("  File")] == ["in route", "in give_up"]
    assert lines[-2] == "KeyError: 'no worker left'"
    assert lines[-1].startswith(
        "windtunnel: error: router bad_routers:Failing raised KeyError('no worker left') for request 10 (stopped at "
    )
    assert lines[-1].endswith("of 20 requests ended; partial report written to r.json, requests written to r.jsonl)")
    assert json.loads(Path("r.json").read_bytes())["summary"]["not_arrived_requests"] == 10
    assert len(Path("r.jsonl").read_text().splitlines()) == 20
    assert captured.out.startswith("PARTIAL REPORT")


def test_a_router_that_names_no_worker_is_one_line(capsys):
    Path("lost_routers.py").write_text(ROUTERS)
    assert main([*SMALL, "--router", "lost_routers:Nowhere"]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: error: router lost_routers:Nowhere returned 99 for request 0: expected a worker number from "
        "0 to 0 (stopped at virtual time 0 ms: 0 of 20 requests ended; no report written: --report was not given)\n"
    )


def test_a_module_that_cannot_be_imported_shows_where(capsys):
    Path("broken_routers.py").write_text("import math\n\nmath.floor('x')\n")
    assert main([*SMALL, "--router", "broken_routers:Any"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{Path.cwd()}/broken_routers.py", line 3, in <module>'
    ]
    assert lines[-1].startswith(
        "windtunnel: error: --router: 'broken_routers:Any': importing 'broken_routers' failed: "
    )


def test_a_failure_whose_report_cannot_be_written_says_both(monkeypatch, capsys):
    Path("full_routers.py").write_text(ROUTERS)

    def fail(path, write):
        raise InputError("cannot be written: No space left on device", source=path)

    monkeypatch.setattr("windtunnel.cli.replay.write_output", fail)
    assert main([*SMALL, "--router", "full_routers:Nowhere", "--report", "r.json"]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: error: router full_routers:Nowhere returned 99 for request 0: expected a worker number from "
        "0 to 0 (r.json: cannot be written: No space left on device)\n"
    )


def test_a_terminal_gets_a_progress_bar_and_only_there():
    Path("slow_routers.py").write_text(
        "import time\n\nclass Slow:\n    def route(self, request, workers, now_ms):\n"
        "        time.sleep(0.001)\n        return 0\n"
    )
    ours, theirs = os.openpty()
    arguments = [
        "run",
        "--isl",
        "9",
        "--osl",
        "9",
        "--requests",
        "400",
        "--rate",
        "500",
        "--router",
        "slow_routers:Slow",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "150"},
    )
    os.close(theirs)
    drawn = read_terminal(ours)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "loading" in drawn
    assert "/400 requests" in drawn
    assert b"simulating" not in printed


def read_terminal(descriptor: int) -> str:
    """Everything that is written to a terminal until its last user has closed it, which Linux reports as an error."""
    read = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 65_536):
            read += chunk
    os.close(descriptor)
    return read.decode()


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("windtunnel.cli.replay.simulate", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(SMALL)


def test_a_stalled_simulation_is_exit_code_1(monkeypatch, capsys):
    def stall(self):
        raise StalledError("stalled at 0 ms: nothing can run")

    monkeypatch.setattr(Simulation, "run", stall)
    assert main([*SMALL, "--report", "r.json"]) == 1
    assert capsys.readouterr().err == (
        "windtunnel: error: stalled at 0 ms: nothing can run (stopped at virtual time 0 ms: 0 of 20 requests ended; "
        "partial report written to r.json)\n"
    )
    assert json.loads(Path("r.json").read_bytes())["summary"]["not_arrived_requests"] == 20


def test_a_reader_that_leaves_is_no_error():
    command = (
        f"{sys.executable} -m windtunnel run --limit 20 --report - --no-run-info 2>err | true; echo ${{PIPESTATUS[0]}}"
    )
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "0\n"
    assert "Error" not in Path("err").read_text()
    assert "Traceback" not in Path("err").read_text()


def test_the_table_says_why_requests_were_rejected(capsys):
    assert main(["run", "--set", "engine.num_gpu_blocks=110", "--limit", "4"]) == 0
    why = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Why"))
    assert "request 0: 6758 prompt and 500 output tokens need 114 KV blocks of 64 tokens" in why
    assert "must be at least 114" in why


def test_an_output_that_fails_does_not_take_the_other_with_it(capsys):
    assert main([*SMALL, "--quiet", "--report", "/dev/full", "--requests-out", "kept.jsonl"]) == 2
    assert capsys.readouterr().err == ("windtunnel: error: /dev/full: cannot be written: No space left on device\n")
    assert len(Path("kept.jsonl").read_text().splitlines()) == 20
