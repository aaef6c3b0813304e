"""The worker with the least load."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from windtunnel.cluster.router.base import RoutedRequest, WorkerView
from windtunnel.cluster.router.load import LoadKind, LoadRouter


class LeastLoadedRouter(LoadRouter):
    """Places a request where the load, by default the number of requests that have not ended, is least."""

    def __init__(self, stream: Random | None = None, load: LoadKind = "requests") -> None:
        super().__init__(load, stream)

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        number = self.least_loaded(workers)
        if self.follows:
            self._tokens.placed(request, number)
        return number
