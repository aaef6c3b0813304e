"""Ctrl-C: the first one asks a simulation to stop and report, the second one ends the process.

Between the two the simulation finishes the event it is at, so that what it has recorded is consistent.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class StopOnInterrupt:
    """While entered, the first SIGINT sets a flag and the second raises KeyboardInterrupt. Then all is as before.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._requested = False

    def requested(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._requested

    def __enter__(self) -> StopOnInterrupt:
        self._installed = threading.current_thread() is threading.main_thread()
        if self._installed:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
