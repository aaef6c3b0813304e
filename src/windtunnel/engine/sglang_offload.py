"""What KV offload means for SGLang's radix cache: which pages go to the tiers, and where restored ones land.

A request whose prefix is restored waits aside. The path of its cached prefix is held and pages for the rest are taken;
once it has them they go to the tree, evictable, and the request returns to the front of the queue, where its admission
hits them. So nobody who waits holds a page without an end in sight. What is restored, and for how long one waits, is
decided in kv/offload.py.
"""

from __future__ import annotations

from windtunnel.engine.kv.offload import Offload, Restore
from windtunnel.engine.kv.radix import RadixCache, RadixLease, RadixNode
from windtunnel.engine.kv.tier_port import TierPort
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.sglang_request import SglangRequest


class SglangOffload(TierPort):
    """Between one scheduler's pages and the tiers.

    Attributes:
        leases: the pages that restores hold.
    """

    def __init__(self, tiers: Offload, pool: RadixCache) -> None:
        super().__init__(tiers, pool.page_size)
        self.leases: dict[Restore, RadixLease] = {}
        self._pool = pool
        if tiers.writes_back:
            pool.evicted = tiers.evicted

    def parks(self, request: SglangRequest, node: RadixNode) -> bool:
        """Whether a request that could be admitted, with a cached prefix that ends at `node`, waits for KV instead."""
        pool = self._pool
        page = pool.page_size
        content = request.lease.content
        limit = (request.prompt_tokens + request.output_tokens - 1) // page
        room = (pool.free_tokens + pool.evictable_tokens - pool.unheld_tokens(node)) // page
        restore = self.tiers.consider(request, content, node.end // page, limit, room)
        if restore is None:
            return False
        if restore.end > restore.first:
            lease = RadixLease(content, request.lease.border)
            pool.hold(lease, node)
            tokens = (restore.end - restore.first) * page
            pool.evict_until(tokens)
            pool.take(tokens)
            self.leases[restore] = lease
        return True

    def land(self) -> list[SglangRequest]:
        """Give the pages of restores that have ended to the tree; returns their requests, in that order."""
        returning: list[SglangRequest] = []
        for restore in self.tiers.take_landed():
            request = restore.request
            if restore.end > restore.first:
                lease = self.leases.pop(restore)
                self._pool.release(lease, restore.end * self._pool.page_size, keep=request is not None)
            if request is not None:
                assert isinstance(request, SglangRequest)
                returning.append(request)
        return returning

    def admitted(self, request: EngineRequest) -> None:
        self.tiers.admitted(request)
