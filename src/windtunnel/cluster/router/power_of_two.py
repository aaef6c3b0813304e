"""The better of two workers drawn at random (M. Mitzenmacher, The Power of Two Choices, IEEE TPDS 2001)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from windtunnel.cluster.router.base import RoutedRequest, WorkerView
from windtunnel.cluster.router.load import LoadKind, LoadRouter


class PowerOfTwoRouter(LoadRouter):
    """Draws two different workers and takes the less loaded one, of equals the one drawn first."""

    def __init__(self, stream: Random, load: LoadKind = "requests") -> None:
        super().__init__(load)
        self._stream = stream

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        first = int(self._stream.random() * len(workers))
        if len(workers) > 1:
            second = int(self._stream.random() * (len(workers) - 1))
            second += second >= first
            if self.load_of(workers[second]) < self.load_of(workers[first]):
                first = second
        number = workers[first].number
        if self.follows:
            self._tokens.placed(request, number)
        return number
