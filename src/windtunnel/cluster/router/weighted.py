"""Weighted scorers, as the inference gateway of llm-d ranks its endpoints.

Each scorer gives a worker 0 to 1: the share of the prompt that is cached there, the length of its queue between the
longest (0) and the shortest one (1), and the share of its KV blocks that are free. The highest weighted sum gets the
request. Names and scales are those of llm-d's prefix-cache, queue and kv-cache-utilization scorers, and the weights are
its documented example (3, 2, 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from windtunnel.cluster.router.base import RoutedRequest, TrackingRouter, WorkerView
from windtunnel.cluster.router.cache_view import CacheView
from windtunnel.cluster.router.selection import choose
from windtunnel.engine.kv.events import CacheEvent


class WeightedRouter(TrackingRouter):
    """Places a request on the worker with the highest score.

    Args:
        stream: draws among equals; None takes the lowest number.
    """

    def __init__(
        self,
        view: CacheView,
        prefix_weight: float = 3.0,
        queue_weight: float = 2.0,
        kv_weight: float = 2.0,
        stream: Random | None = None,
    ) -> None:
        super().__init__()
        self.view = view
        self.dates_events = view.dates_events
        self.follows = self.reads_cache = view.reads_events and prefix_weight > 0
        self.reads_prefills = False
        self._prefix_weight = prefix_weight
        self._queue_weight = queue_weight
        self._kv_weight = kv_weight
        self._stream = Random(0) if stream is None else stream
        self._draws = stream is not None

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        scores = np.zeros(len(workers))
        blocks = request.input_tokens // self.view.block_size
        if self._prefix_weight and blocks:
            numbers = np.array([worker.number for worker in workers])
            self.view.make_room(numbers.item(-1) + 1)
            cached = self.view.look(request.content, blocks, now_ms, self.unread, self.refresh, self.publish)
            scores += self._prefix_weight * (cached[numbers] / blocks)
        if self._queue_weight:
            queues = np.array([worker.num_waiting for worker in workers], dtype=float)
            longest = queues.max()
            spread = longest - queues.min()
            scores += self._queue_weight * ((longest - queues) / spread if spread else np.ones(len(workers)))
        if self._kv_weight:
            scores += self._kv_weight * np.array([worker.free_blocks / worker.num_blocks for worker in workers])
        number = workers[choose(-scores, 0.0, self._stream, self._draws)].number
        self.view.sent(number, request.content, blocks, now_ms)
        return number

    def cache_events(self, worker: int, events: list[CacheEvent], now_ms: float) -> None:
        self.view.learn(worker, events, now_ms)

    def removed(self, worker: int) -> None:
        self.view.forget(worker)
