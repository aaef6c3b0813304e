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
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.kv.prefix_tree import Match
from windtunnel.engine.request import EngineRequest


class VllmOffload:
    """Between one scheduler's blocks and the tiers."""

    def __init__(self, tiers: Offload, pool: BlockPool) -> None:
        self.tiers = tiers
        self._pool = pool
        self._tables: dict[int, BlockTable] = {}  # of restores, by what they hold in the host
        if tiers.writes_back:
            pool.evicted = []

    @property
    def num_parked(self) -> int:
        return len(self.tiers.parked)

    def in_transit_tokens(self) -> int:
        """Tokens of blocks that are held for restores and not filled yet."""
        return self.tiers.in_transit_blocks * self._pool.block_size

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
            self._tables[restore.held] = table
        return True

    def land(self) -> list[EngineRequest]:
        """Make the blocks of restores that have ended findable; returns their requests, in that order."""
        pool = self._pool
        returning: list[EngineRequest] = []
        for restore in self.tiers.take_landed():
            request = restore.request
            if restore.end > restore.first:
                table = self._tables.pop(restore.held)
                if request is not None:
                    pool.store(table, restore.end)
                pool.release(table)
            if request is not None:
                returning.append(request)
        return returning

    def note_chunk(self, request: EngineRequest, tokens: int) -> None:
        """A pass that computed a chunk of a prompt has ended; so many tokens are computed."""
        if not self.tiers.writes_back:
            if tokens > request.prompt_tokens:
                tokens = request.prompt_tokens
            self.tiers.note_prompt(request, request.table.content, tokens // self._pool.block_size)
        elif self._pool.evicted:
            self._write_back()

    def note_end(self, request: EngineRequest) -> None:
        """A request has left the engine."""
        self.tiers.forget(request)
        if self._pool.evicted:
            self._write_back()

    def _write_back(self) -> None:
        """What decodes evict is written back when a pass ends that computed a prompt, or a request."""
        evicted = self._pool.evicted
        assert evicted is not None
        self._pool.evicted = []
        self.tiers.write_back(evicted)
