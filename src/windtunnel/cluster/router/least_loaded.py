"""The worker with the fewest requests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from windtunnel.cluster.router.base import RoutedRequest, WorkerView


class LeastLoadedRouter:
    """Places a request where the fewest requests are queued or running.

    Args:
        stream: draws among equals; None takes the lowest number.
    """

    def __init__(self, stream: Random | None = None) -> None:
        self._stream = stream

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        least = min(worker.num_requests for worker in workers)
        equals = [worker.number for worker in workers if worker.num_requests == least]
        if self._stream is None or len(equals) == 1:
            return equals[0]
        return equals[int(self._stream.random() * len(equals))]
