"""The KV-aware router: each request goes where prompt work, cached prefix and running load add up to least.

Cost of a worker in blocks, after Dynamo's KV router (lower is better):

    prefill = prefill_load_scale * max((P + prompt tokens) / block size - credit * overlap, 0)
    cost = prefill + A + blocks of this prompt that are not active there + active_request_weight * N

with P the prompt tokens it still has to compute, A the distinct prompt blocks of its active requests, N their number,
and overlap the leading blocks of the prompt that its cache is believed to hold. While all workers are busy with
prompts, requests may wait in the router (`policy_queue.py`). Loads are the router's own reckoning from what it placed
and was told; it never looks into an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from windtunnel.cluster.router.base import QUEUED, RoutedRequest, TrackingRouter, WorkerView
from windtunnel.cluster.router.block_index import Numbers
from windtunnel.cluster.router.cache_view import CacheView
from windtunnel.cluster.router.policy_queue import PolicyQueue, QueuedRequest
from windtunnel.cluster.router.prefill_load import UNKNOWN, PrefillLoad
from windtunnel.cluster.router.selection import choose
from windtunnel.config.policy_classes import PolicyClass, PolicyClasses
from windtunnel.engine.kv.events import CacheEvent

Costs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KvWeights:
    """What enters the cost.

    Attributes:
        overlap_credit: blocks that an overlapping block saves.
        overlap_credit_decay: how fast that falls on workers with more prompt work than the least loaded one.
        prefill_load_scale, active_request_weight: see the module.
        track_prefill_tokens, track_active_blocks: False leaves P and this prompt, or A and its blocks, out.
        decode_credit: of workers that only decode, what an overlapping block saves of the active ones, down to none.
        assume_kv_reuse: False counts the blocks of a prompt anew wherever it runs.
    """

    overlap_credit: float = 1.0
    overlap_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    active_request_weight: float = 0.0
    track_prefill_tokens: bool = True
    track_active_blocks: bool = True
    assume_kv_reuse: bool = True
    decode_credit: float = 0.0


class KvRouter(TrackingRouter):
    """Places requests by the cost above, at `temperature` 0 on the cheapest worker.

    Attributes:
        max_batched_tokens: what thresholds of prompt work are shares of.
        placed_cached_tokens: prompt tokens of the request placed last that its worker is believed to have cached.

    Args:
        stream: draws where chance decides.
        temperature: of a softmax over the costs.
        tie_break_random: among equally cheap workers a draw, else the lowest number.
        classes: who may wait in the router, and when.
        expect_prefill_ms: expected duration of computing so many uncached tokens behind so many cached ones, by which
            prompt work decays; None: it stays until the first token.
    """

    def __init__(
        self,
        view: CacheView,
        weights: KvWeights,
        stream: Random,
        *,
        temperature: float = 0.0,
        tie_break_random: bool = False,
        classes: PolicyClasses | None = None,
        max_batched_tokens: int = 8192,
        expect_prefill_ms: Callable[[int, int], float] | None = None,
    ) -> None:
        super().__init__()
        self.view = view
        self.dates_events = view.dates_events
        self.reads_cache = view.reads_events
        self.weights = weights
        self.reads_prefills = weights.track_prefill_tokens
        self.queue = None if classes is None else PolicyQueue(classes)
        self.placed_cached_tokens = 0
        self._stream = stream
        self._temperature = temperature
        self._tie_break_random = tie_break_random
        self.max_batched_tokens = max_batched_tokens
        self._expect_prefill_ms = expect_prefill_ms
        self._placed: dict[int, RoutedRequest] = {}
        self._prefills: list[PrefillLoad] = []  # by worker number, like the arrays
        self._prefill_tokens: Costs = np.zeros(0)
        self._active_blocks: Numbers = np.zeros(0, dtype=np.int64)  # if they are not counted by the view
        self._num_active: Costs = np.zeros(0)
        self._seen: Sequence[WorkerView] = ()
        self._numbers: Numbers = np.zeros(0, dtype=np.int64)
        self._are_all = True  # the workers that may be chosen are all that the arrays have

    # --- decisions

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        self._notice(workers)
        bs = self.view.block_size
        cached = self.view.look(
            request.content, request.input_tokens // bs, now_ms, self.unread, self.refresh, self.publish
        )
        queue = self.queue
        if queue is not None:
            most = int((cached if self._are_all else cached[self._numbers]).max())
            uncached_tokens = max(request.input_tokens - most * bs, 1)
            number = queue.classes.number_of(request.urgency.policy_class, uncached_tokens)
            rules = queue.classes.classes[number]
            if rules.queues and (queue.has_backlog(number) or self._is_blocked(rules, now_ms)):
                queue.push(QueuedRequest(request, number, cached.copy(), uncached_tokens), now_ms, len(workers))
                return QUEUED
        return self._place(request, cached, self.view.active_of_last(), now_ms)

    def released(self, workers: Sequence[WorkerView], now_ms: float) -> tuple[int, int] | None:
        queue = self.queue
        if not queue or not workers:
            return None
        self._notice(workers)
        entry = queue.pop(lambda rules: self._is_blocked(rules, now_ms))
        if entry is None:
            return None
        request = entry.request
        cached: Numbers = np.zeros(len(self._prefills), dtype=np.int64)
        cached[: len(entry.cached)] = entry.cached  # as it was when the request arrived
        active = self.view.active(request.content, request.input_tokens // self.view.block_size)
        return request.number, self._place(request, cached, active, now_ms)

    def _is_blocked(self, rules: PolicyClass, now_ms: float) -> bool:
        """Whether every worker has more prompt work than a class allows it."""
        most = self.max_batched_tokens * (rules.prefill_busy_threshold_frac or 0.0)
        if rules.prefill_busy_threshold_frac is None:
            assert rules.prefill_busy_threshold is not None
            most = float(rules.prefill_busy_threshold)
        elif rules.prefill_busy_threshold is not None:
            most = min(most, rules.prefill_busy_threshold)
        return float(self._prefill(now_ms).min()) > most

    def _place(self, request: RoutedRequest, cached: Numbers, active: Numbers, now_ms: float) -> int:
        """Choose a worker, by the leading blocks of the prompt that each has cached and that are active there."""
        tokens = request.input_tokens
        view = self.view
        bs = view.block_size
        blocks = tokens // bs
        costs = self._costs(tokens, cached, active, now_ms)
        place = choose(costs, self._temperature, self._stream, self._tie_break_random)
        worker = place if self._are_all else self._numbers.item(place)
        weights = self.weights
        cached_tokens = min(cached.item(worker) * bs, tokens)
        self.placed_cached_tokens = cached_tokens
        if weights.track_prefill_tokens and tokens > cached_tokens:
            expected_ms = UNKNOWN
            if self._expect_prefill_ms is not None:
                expected_ms = self._expect_prefill_ms(cached_tokens, tokens - cached_tokens)
            load = self._prefills[worker]
            load.add(request.number, tokens - cached_tokens, expected_ms, now_ms)
            self._prefill_tokens[worker] = load.tokens
        if weights.track_active_blocks:
            if weights.assume_kv_reuse:
                view.begin(worker, request.content, blocks)
            else:
                self._active_blocks[worker] += blocks
        view.sent(worker, request.content, blocks, now_ms)
        self._num_active[worker] += 1
        self._placed[request.number] = request
        return worker

    def _costs(self, tokens: int, cached: Numbers, active: Numbers, now_ms: float) -> Costs:
        """The cost of each worker that may be chosen."""
        weights = self.weights
        bs = self.view.block_size
        numbers = None if self._are_all else self._numbers
        prefill_tokens = self._prefill(now_ms)
        costs: Costs
        if weights.track_prefill_tokens:
            credit = weights.overlap_credit * (cached if numbers is None else cached[numbers])
            if weights.overlap_credit_decay:
                excess_blocks = (prefill_tokens - prefill_tokens.min()) / bs
                credit /= 1.0 + weights.overlap_credit_decay * excess_blocks / -(-tokens // bs)
            costs = prefill_tokens + tokens
            costs /= bs
            costs -= credit
            if weights.overlap_credit > 1.0:  # else a prompt is no shorter than what is cached of it
                np.maximum(costs, 0.0, out=costs)
            if weights.prefill_load_scale != 1.0:
                costs *= weights.prefill_load_scale
        else:
            costs = np.zeros(len(prefill_tokens))
        if weights.track_active_blocks:
            blocks = self._active_blocks + tokens // bs
            if weights.assume_kv_reuse:
                blocks += self.view.active_blocks - active
            costs += blocks if numbers is None else blocks[numbers]
        if weights.decode_credit:
            costs -= weights.decode_credit * (cached if numbers is None else cached[numbers])
            np.maximum(costs, 0.0, out=costs)
        if weights.active_request_weight:
            num_active = self._num_active if numbers is None else self._num_active[numbers]
            costs += weights.active_request_weight * num_active
        return costs

    def prefill_tokens(self, worker: int, now_ms: float) -> int:
        """Prompt tokens that a worker still has to compute."""
        load = self._prefills[worker]
        return load.tokens if self._expect_prefill_ms is None else load.decayed_tokens(now_ms)

    def _prefill(self, now_ms: float) -> Costs:
        """Prompt tokens that each worker that may be chosen still has to compute."""
        if self._expect_prefill_ms is not None:
            return np.array([self._prefills[n].decayed_tokens(now_ms) for n in self._numbers.tolist()], dtype=float)
        return self._prefill_tokens if self._are_all else self._prefill_tokens[self._numbers]

    def _notice(self, workers: Sequence[WorkerView]) -> None:
        """Take notice of which workers may be chosen."""
        if workers is self._seen:
            return
        self._seen = workers if isinstance(workers, tuple) else ()
        self._numbers = np.array([worker.number for worker in workers], dtype=np.int64)
        missing = int(self._numbers[-1]) + 1 - len(self._prefills)
        if missing > 0:
            self._prefills += [PrefillLoad() for _ in range(missing)]
            self._prefill_tokens = np.append(self._prefill_tokens, np.zeros(missing))
            self._active_blocks = np.append(self._active_blocks, np.zeros(missing, dtype=np.int64))
            self._num_active = np.append(self._num_active, np.zeros(missing))
            self.view.make_room(len(self._prefills))
        self._are_all = len(workers) == len(self._prefills)

    # --- what it is told

    def cache_events(self, worker: int, events: list[CacheEvent], now_ms: float) -> None:
        self.view.learn(worker, events, now_ms)

    def first_token(self, number: int, worker: int, now_ms: float) -> None:
        load = self._prefills[worker]
        if load.remove(number, now_ms):
            self._prefill_tokens[worker] = load.tokens

    def ended(self, number: int, worker: int, now_ms: float) -> None:
        load = self._prefills[worker]
        if load.tokens and load.remove(number, now_ms):
            self._prefill_tokens[worker] = load.tokens
        request = self._placed.pop(number)
        self._num_active[worker] -= 1
        if self.weights.track_active_blocks:
            if self.weights.assume_kv_reuse:
                self.view.end(worker, request.content)
            else:
                self._active_blocks[worker] -= request.input_tokens // self.view.block_size

    def withdrawn(self, number: int, now_ms: float) -> None:
        assert self.queue is not None
        self.queue.withdraw(number)

    def removed(self, worker: int) -> None:
        self.view.forget(worker)
