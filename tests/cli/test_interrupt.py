"""Ctrl-C: once to stop and report, twice to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel.cli import main
from windtunnel.cli.interrupt import StopOnInterrupt

SLOW_ROUTER = """
import os, signal, time

class Slow:
    def route(self, request, workers, now_ms):
        if request.number == 200:
            open("routing", "w").close()
        time.sleep(0.0005)
        return 0

class Interrupting:  # presses Ctrl-C at its 300th request, and at each one after the 300th
    def route(self, request, workers, now_ms):
        if request.number == 300:
            os.kill(os.getpid(), signal.SIGINT)
        return 0

class InterruptingTwice:
    def route(self, request, workers, now_ms):
        if request.number >= 300:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)
        return 0
"""
LONG = ["run", "--isl", "10", "--osl", "10", "--requests", "20000", "--rate", "1000"]


@pytest.fixture(autouse=True)
def _beside_a_slow_router(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("slow_router.py").write_text(SLOW_ROUTER)


def test_ctrl_c_writes_what_has_been_simulated():
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel", *LONG, "--router", "slow_router:Slow", "--report", "r.json",
         "--requests-out", "r.jsonl"],
        env=dict(os.environ),  # without the COLUMNS that readline, which pytest loads, adds behind Python's back
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not Path("routing").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    summary = json.loads(Path("r.json").read_bytes())["summary"]
    assert summary["interrupted"] == "interrupt"
    ended = summary["completed_requests"]
    assert 0 < ended < 20_000
    assert ended + summary["unfinished_requests"] + summary["not_arrived_requests"] == 20_000
    assert len(Path("r.jsonl").read_text().splitlines()) == 20_000
    assert "Time to First Token (ms)" in out
    assert err.startswith("windtunnel: interrupted at virtual time ")
    assert err.endswith(
        f": {ended:,} of 20,000 requests ended; partial report written to r.json, requests written to r.jsonl\n"
    )


def test_without_a_report_ctrl_c_says_that_none_was_written(capsys):
    assert main([*LONG, "--quiet", "--router", "slow_router:Interrupting"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("of 20,000 requests ended; no report written: --report was not given\n")


def test_a_second_ctrl_c_ends_at_once_and_writes_nothing(capsys):
    assert main([*LONG, "--report", "r.json", "--router", "slow_router:InterruptingTwice"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "windtunnel: interrupted\n")
    assert not Path("r.json").exists()


def test_ctrl_c_while_loading_is_one_line(monkeypatch, capsys):
    def load(config):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the interrupt was ignored")

    monkeypatch.setattr("windtunnel.cli.replay.load_workload", load)
    assert main([*LONG, "--report", "r.json"]) == 130
    assert capsys.readouterr().err == "windtunnel: interrupted\n"


def test_the_first_interrupt_is_noted_and_the_second_raised():
    before = signal.getsignal(signal.SIGINT)
    with StopOnInterrupt() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_of_before_is_back_after_a_run():
    before = signal.getsignal(signal.SIGINT)
    main(["run", "--limit", "5", "--quiet"])
    assert signal.getsignal(signal.SIGINT) is before
