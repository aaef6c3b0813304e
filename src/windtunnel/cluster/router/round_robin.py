"""Each worker in turn."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.cluster.router.base import RoutedRequest, WorkerView


class RoundRobinRouter:
    """Places request k on the worker with place k mod n among the n workers there are.

    Args:
        ranks_per_worker: data-parallel ranks of a worker, which stand together and take turns among themselves.
    """

    def __init__(self, ranks_per_worker: int = 1) -> None:
        self._next = 0
        self._ranks_per_worker = ranks_per_worker
        self._next_rank: dict[int, int] = {}  # by the number of a worker's first rank

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        ranks = self._ranks_per_worker
        place = self._next % (len(workers) // ranks)
        self._next = place + 1
        number = workers[place * ranks].number
        if ranks == 1:
            return number
        rank = self._next_rank.get(number, 0)
        self._next_rank[number] = (rank + 1) % ranks
        return number + rank
