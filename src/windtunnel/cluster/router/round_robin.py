"""Each worker in turn."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.cluster.router.base import RoutedRequest, WorkerView


class RoundRobinRouter:
    """Places request k on the worker with place k mod n among the n workers there are."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        place = self._next % len(workers)
        self._next = place + 1
        return workers[place].number
