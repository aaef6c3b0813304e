"""In which order SGLang looks at its waiting queue when it tries to form a prefill batch.

Rules of SGLang 0.5.23: first come first served, longest prefix match, longest output first; larger priority first
within any of them, if asked for. Sorting persists in the queue. It admits nobody, but its looks at the cache are
accesses, which change what is evicted next.
"""

from __future__ import annotations

from collections import deque

from windtunnel.engine.kv.radix import RadixCache, RadixLease
from windtunnel.engine.sglang_request import SglangRequest

LONGEST_MATCHED_QUEUE = 128  # beyond this, matching every request is given up
SHARED_TOKENS = 32  # a prefix so long, and hardly cached, is left to the first of those that share it
REFRESH_ATTEMPTS = 32  # how often the cached prefixes of the queue count as accessed
NEVER_NOW = float("inf")


class QueueOrder:
    """Sorts the waiting queue before each attempt to form a prefill batch."""

    def __init__(self, policy: str, cache: RadixCache, refreshes: bool, by_priority: bool = False) -> None:
        """`refreshes` keeps the cached prefixes of waiting requests from being evicted first (with lru)."""
        self.policy = policy
        self.by_priority = by_priority
        self._cache = cache
        self._refreshes = refreshes
        self._attempts = 0  # that could have refreshed

    def arrange(self, waiting: deque[SglangRequest]) -> None:
        """Put the queue in the order in which it is to be scanned now."""
        if self.policy == "lpm" and len(waiting) <= LONGEST_MATCHED_QUEUE:
            self._by_longest_match(waiting)
            return
        if self.policy == "lof":
            _sort(waiting, sorted(waiting, key=lambda request: -request.max_output_tokens))
        if self.by_priority:
            _sort(waiting, sorted(waiting, key=lambda request: (-request.priority, request.entry)))
        if waiting and self._refreshes:
            if self._attempts % REFRESH_ATTEMPTS == 0:
                self._refresh(waiting)
            self._attempts += 1

    def _by_longest_match(self, waiting: deque[SglangRequest]) -> None:
        cache = self._cache
        queued = RadixCache(0, 1)  # the prompts seen so far, to find those that share a prefix
        ranked: list[tuple[float, int, SglangRequest]] = []
        for place, request in enumerate(waiting):
            length = request.prompt_tokens + request.output_tokens
            content = request.lease.content
            hit = cache.match(content, length).end
            rank = float(-min(hit, length - 1))
            if hit <= SHARED_TOKENS:
                if queued.match(content, length).end >= SHARED_TOKENS:
                    rank = NEVER_NOW
                else:
                    queued.store(RadixLease(content, 0), length, hold=False)
            ranked.append((rank, place, request))
        ranked.sort()
        _sort(waiting, [entry[2] for entry in ranked])

    def _refresh(self, waiting: deque[SglangRequest]) -> None:
        """Touch the cached prefixes of the head of the queue, the very head last."""
        head = [request for request, _ in zip(waiting, range(LONGEST_MATCHED_QUEUE), strict=False)]
        for request in reversed(head):
            self._cache.match(request.lease.content, request.prompt_tokens + request.output_tokens)


def _sort(waiting: deque[SglangRequest], order: list[SglangRequest]) -> None:
    waiting.clear()
    waiting.extend(order)
