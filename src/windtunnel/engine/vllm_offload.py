"""What KV offload means for vLLM's blocks: which of them go to the tiers, and where restored ones land.

A request whose prefix is restored waits aside. The blocks it gets back, and those of its prefix that are in the pool
already, are held meanwhile; once it has them they are cached and free, and the request returns to the front of the
queue, where its admission hits them. So nobody who waits holds a block without an end in sight. Asynchronous, the tiers
learn of a pass when its output is processed, that is when the next one has been decided; a restore starts with the pass
that it was decided with, and who has been restored during a pass is seen by the one after the next. What is restored,
and for how long one waits, is decided in kv/offload.py.
"""

from __future__ import annotations

from windtunnel.engine.kv.block_pool import BlockPool, BlockTable
from windtunnel.engine.kv.offload import Offload, Restore
from windtunnel.engine.kv.prefix_tree import Match
from windtunnel.engine.kv.tier_port import TierPort
from windtunnel.engine.request import EngineRequest


class VllmOffload(TierPort):
    """Between one scheduler's blocks and the tiers."""

    def __init__(self, tiers: Offload, pool: BlockPool) -> None:
        super().__init__(tiers, pool.block_size)
        self._pool = pool
        self._tables: dict[Restore, BlockTable] = {}  # what restores hold
        if tiers.writes_back:
            pool.evicted = tiers.evicted

    def parks(self, request: EngineRequest, match: Match) -> bool:
        """Whether a request that could be admitted with this match waits for KV instead."""
        pool = self._pool
        content = request.table.content
        limit = (request.prompt_tokens + request.output_tokens - 1) // pool.block_size
        room = pool.free_blocks - match.idle_blocks
        restore = self.tiers.consider(request, content, match.blocks, limit, room)
        if restore is None:
            self.tiers.admitted(request)
            return False
        if restore.end > restore.first:
            table = BlockTable(content)
            pool.hold(table, match)
            pool.take(restore.end - restore.first)
            table.owned = restore.end
            self._tables[restore] = table
        return True

    def land(self) -> list[EngineRequest]:
        """Make the blocks of restores that have ended findable; returns their requests, in that order."""
        pool = self._pool
        returning: list[EngineRequest] = []
        for restore in self.tiers.take_landed():
            request = restore.request
            if restore.end > restore.first:
                table = self._tables.pop(restore)
                if request is not None:
                    pool.store(table, restore.end)
                pool.release(table)
            if request is not None:
                returning.append(request)
        return returning
