"""Consistent hashing of the beginning of a prompt, with bounded loads.

Every worker has places on a ring; a prompt goes to the first place after the hash of its first tokens whose worker has
room. A worker has room while its requests stay within `load_factor` times the mean (V. Mirrokni, M. Thorup and
M. Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018), so that a popular prefix spreads to the workers
that follow. Workers that come and go move few prefixes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from math import ceil

from windtunnel.cluster.router.base import RoutedRequest, WorkerView
from windtunnel.workload.content import Content

PLACES = 128  # of a worker on the ring


class PrefixHashRouter:
    """Places prompts that begin alike together, within the bound.

    Args:
        prefix_tokens: leading tokens that are hashed.
        load_factor: above 1.
    """

    def __init__(self, prefix_tokens: int = 256, load_factor: float = 1.25) -> None:
        self._prefix_tokens = prefix_tokens
        self._load_factor = load_factor
        self._seen: tuple[int, ...] = ()
        self._ring: list[tuple[int, int]] = []  # hash, place among the workers

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        numbers = tuple(worker.number for worker in workers)
        if numbers != self._seen:
            self._seen = numbers
            self._ring = sorted(
                (_hash(f"worker {number} {place}"), at) for at, number in enumerate(numbers) for place in range(PLACES)
            )
        loads = [worker.num_requests for worker in workers]
        most = ceil(self._load_factor * (sum(loads) + 1) / len(loads))
        ring = self._ring
        first = bisect_left(ring, (_hash(_prefix(request.content, self._prefix_tokens)), -1))
        for step in range(len(ring)):
            at = ring[(first + step) % len(ring)][1]
            if loads[at] < most:
                return numbers[at]
        raise AssertionError("some worker is at most at the mean")


def _prefix(content: Content, tokens: int) -> str:
    """The first tokens of a prompt, as text that equal tokens have in common."""
    parts = []
    for origin, start, length in content.runs():
        parts.append(f"{origin} {start} {min(length, tokens)}")
        tokens -= length
        if tokens <= 0:
            break
    return ",".join(parts)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
