"""The progress bar, and times as people read them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from windtunnel.cli import progress
from windtunnel.cli.messages import time_in_words
from windtunnel.cli.progress import SimulationProgress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def test_the_bar_shows_requests_rate_and_virtual_time(clock):
    console = terminal()
    with SimulationProgress(console) as bar:
        clock[0] += 2.0
        bar.update(90_500.0, 3000, 12_000)
        drawn = console.file.getvalue()
    assert "3,000/12,000 requests 1,500/s" in drawn
    assert "virtual 90.5 s" in drawn
    assert "ETA" in drawn


def test_a_short_simulation_draws_nothing(clock):
    console = terminal()
    with SimulationProgress(console) as bar:
        clock[0] += 0.05
        bar.update(1.0, 1, 2)
    assert "requests" not in console.file.getvalue()


def test_it_is_drawn_ten_times_a_second_at_most(clock):
    console = terminal()
    with SimulationProgress(console) as bar:
        for ended in range(1000):
            clock[0] += 0.001
            bar.update(float(ended), ended, 1000)
        drawings = console.file.getvalue().count("requests")
    assert 9 <= drawings <= 2 * 10  # the first of them is drawn as the bar appears, too


@pytest.mark.parametrize(
    ("time_ms", "words"),
    [
        (0.0, "0 ms"),
        (999.4, "999 ms"),
        (1000.0, "1.0 s"),
        (119_940.0, "119.9 s"),
        (125_000.0, "2 min 05 s"),
        (7_200_000.0, "2 h 00 min"),
        (100_000_000.0, "27 h 46 min"),
    ],
)
def test_time_in_words(time_ms, words):
    assert time_in_words(time_ms) == words
