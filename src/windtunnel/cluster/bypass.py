"""Conditional disaggregation: which requests prefill where they decode, although there are workers that only prefill.

A request whose prompt is mostly cached at the worker that would decode it, or short, gains little from a hand-off; and
if prefill workers have more prompt work than they should, its prompt is computed sooner elsewhere. It then runs from
end to end on the worker that its decode router chose, in the queue of requests without a reservation. The file decides
that and nothing else. Rules and defaults of Dynamo's conditional disaggregation (docs/fidelity.md).
"""

from __future__ import annotations

from windtunnel.cluster.pool import Pool
from windtunnel.cluster.router.base import RoutedRequest
from windtunnel.cluster.router.kv import KvRouter
from windtunnel.cluster.worker import Worker
from windtunnel.workload.session import Workload


class Bypass:
    """Decides for the requests of one cluster.

    Args:
        prefill, decode: the pools and the routers that place requests on them.
        by_length: requests with fewer uncached prompt tokens than `uncached_tokens`, which are less than the share
            `uncached_share` of the prompt, run on one worker.
        prefill_busy_tokens: so do all, while the worker that would prefill has more prompt work than this; None: never.
        decode_busy_share: but none while the worker that would decode has more than this share of its KV blocks in use.
    """

    def __init__(
        self,
        prefill: Pool,
        prefill_router: KvRouter,
        decode: Pool,
        decode_router: KvRouter,
        *,
        by_length: bool,
        uncached_tokens: int,
        uncached_share: float,
        prefill_busy_tokens: float | None,
        decode_busy_share: float | None,
    ) -> None:
        self._prefill = prefill
        self._prefill_router = prefill_router
        self._decode = decode
        self._decode_router = decode_router
        self._by_length = by_length
        self._uncached_tokens = uncached_tokens
        self._uncached_share = uncached_share
        self._prefill_busy_tokens = prefill_busy_tokens
        self._decode_busy_share = decode_busy_share

    def place(self, routed: RoutedRequest, now_ms: float, workload: Workload) -> Worker | None:
        """The worker on which a request runs from end to end, where it is placed then; None if it is handed over."""
        decode = self._decode
        if not decode.routable:
            return None
        worker = decode.place(routed, now_ms, workload)
        assert worker is not None  # routers that keep requests are refused with pools
        uncached = routed.input_tokens - self._decode_router.placed_cached_tokens
        wanted = (self._by_length and self.is_short(uncached, routed.input_tokens)) or self._prefill_is_busy(
            routed, now_ms, workload
        )
        if wanted and self._decode_busy_share is not None:
            wanted = 1.0 - worker.free_blocks / worker.num_blocks <= self._decode_busy_share
        if wanted:
            return worker
        _withdraw(decode, routed.number, now_ms)
        return None

    def is_short(self, uncached_tokens: int, prompt_tokens: int) -> bool:
        """Whether so little of a prompt is to be computed that a hand-off is not worth it."""
        return uncached_tokens < self._uncached_tokens and uncached_tokens / prompt_tokens < self._uncached_share

    def _prefill_is_busy(self, routed: RoutedRequest, now_ms: float, workload: Workload) -> bool:
        """Whether the worker that would prefill has too much to do."""
        pool = self._prefill
        if self._prefill_busy_tokens is None or not pool.routable:
            return False
        worker = pool.place(routed, now_ms, workload)
        assert worker is not None
        _withdraw(pool, routed.number, now_ms)
        return self._prefill_router.prefill_tokens(worker.number, now_ms) > self._prefill_busy_tokens


def _withdraw(pool: Pool, number: int, now_ms: float) -> None:
    """Take back where a request was placed, as if nobody had asked."""
    assert pool.feed is not None
    pool.feed.ended(number, now_ms)
