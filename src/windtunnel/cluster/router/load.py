"""How loaded a worker is, for routers that compare loads: by requests, prompt tokens or KV blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, TypeAlias

from windtunnel.cluster.router.base import RoutedRequest, TrackingRouter, WorkerView

LoadKind: TypeAlias = Literal["requests", "tokens", "kv"]


class PromptTokens:
    """Prompt tokens of the requests on each worker that have not ended, as the router that placed them knows."""

    def __init__(self) -> None:
        self._by_worker: dict[int, int] = {}
        self._by_request: dict[int, int] = {}

    def placed(self, request: RoutedRequest, worker: int) -> None:
        self._by_request[request.number] = request.input_tokens
        self._by_worker[worker] = self._by_worker.get(worker, 0) + request.input_tokens

    def ended(self, number: int, worker: int) -> None:
        self._by_worker[worker] -= self._by_request.pop(number)

    def of(self, worker: WorkerView) -> float:
        return self._by_worker.get(worker.number, 0)


def num_requests(worker: WorkerView) -> float:
    """Requests that have not ended."""
    return worker.num_requests


def kv_in_use(worker: WorkerView) -> float:
    """The share of its KV blocks that running requests hold."""
    return 1.0 - worker.free_blocks / worker.num_blocks


class LoadRouter(TrackingRouter):
    """Base of routers that compare loads.

    Attributes:
        load_of: the load of a worker.

    Args:
        stream: draws among equals; None takes the lowest number.
    """

    def __init__(self, load: LoadKind = "requests", stream: Random | None = None) -> None:
        super().__init__()
        self.follows = load == "tokens"
        self.reads_prefills = False
        self._tokens = PromptTokens()
        self._tie_stream = stream
        loads: dict[LoadKind, Callable[[WorkerView], float]] = {
            "requests": num_requests,
            "tokens": self._tokens.of,
            "kv": kv_in_use,
        }
        self.load_of = loads[load]

    def least_loaded(self, workers: Sequence[WorkerView]) -> int:
        """The number of the worker with the least load."""
        loads = [self.load_of(worker) for worker in workers]
        least = min(loads)
        if self._tie_stream is None:
            return workers[loads.index(least)].number
        equals = [worker.number for worker, load in zip(workers, loads, strict=True) if load == least]
        return equals[0] if len(equals) == 1 else equals[int(self._tie_stream.random() * len(equals))]

    def ended(self, number: int, worker: int, now_ms: float) -> None:
        self._tokens.ended(number, worker)
