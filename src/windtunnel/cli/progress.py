"""The progress bar of a simulation: on a terminal only, drawn by the thread that simulates, ten times a second.

The only clock it reads is the wall clock, which no simulation sees.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from windtunnel.cli.messages import time_in_words

_REDRAW_S = 0.1


class SimulationProgress:
    """Shows requests done and in all, requests per second, virtual time and the time left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("simulating"),
            BarColumn(),
            TextColumn("{task.fields[requests]}"),
            TextColumn("[dim]virtual[/dim] {task.fields[virtual]}"),
            TextColumn("[dim]ETA[/dim]"),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,  # its thread would compete with the simulation for the interpreter
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("", total=None, requests="", virtual="")
        self._entered_s = 0.0
        self._drawn_s = 0.0

    def __enter__(self) -> SimulationProgress:
        self._entered_s = self._drawn_s = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, now_ms: float, ended_requests: int, total_requests: int) -> None:
        """Take note of where the simulation is, and draw it if the last drawing is old enough."""
        now_s = time.monotonic()
        if now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        rate = ended_requests / (now_s - self._entered_s)
        self._progress.update(
            self._task,
            completed=ended_requests,
            total=total_requests,
            requests=f"{ended_requests:,}/{total_requests:,} requests {rate:,.0f}/s",
            virtual=time_in_words(now_ms),
        )
        self._progress.start()  # not before, so that a simulation shorter than this shows no bar
        self._progress.refresh()
