"""Any worker, uniformly at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from windtunnel.cluster.router.base import RoutedRequest, WorkerView


class RandomRouter:
    """Draws each worker from a seeded stream, independent of load."""

    def __init__(self, stream: Random) -> None:
        self._stream = stream

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        return workers[int(self._stream.random() * len(workers))].number
