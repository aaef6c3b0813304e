"""All turns of a session on one worker."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from windtunnel.cluster.router.base import RoutedRequest, WorkerView
from windtunnel.cluster.router.load import LoadKind, LoadRouter


class SessionAffinityRouter(LoadRouter):
    """Sends a session where its last turn went, and a new one, or one whose worker is gone, to the least loaded."""

    def __init__(self, stream: Random | None = None, load: LoadKind = "requests") -> None:
        super().__init__(load, stream)
        self._homes: dict[int, int] = {}

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        home = self._homes.get(request.session, -1)
        is_there = 0 <= home < len(workers) and workers[home].number == home  # as long as no worker has left
        if not is_there and not any(worker.number == home for worker in workers):
            home = self._homes[request.session] = self.least_loaded(workers)
        if self.follows:
            self._tokens.placed(request, home)
        return home
