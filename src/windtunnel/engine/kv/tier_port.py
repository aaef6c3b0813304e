"""Between one scheduler's KV cache and its tiers: what both engines have in common.

A subclass says how the blocks of its cache are held while a prefix is restored, and how they become findable.
"""

from __future__ import annotations

from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content


class TierPort:
    """The tiers as a scheduler sees them.

    Attributes:
        tiers: what decides what is written and restored.
        block_size: tokens of a block, or page.
    """

    def __init__(self, tiers: Offload, block_size: int) -> None:
        self.tiers = tiers
        self.block_size = block_size

    @property
    def num_parked(self) -> int:
        """Requests that wait aside for KV."""
        return len(self.tiers.parked)

    def in_transit_tokens(self) -> int:
        """Tokens of blocks that are held for restores and not filled yet."""
        return self.tiers.in_transit_blocks * self.block_size

    def note_computed(self, request: EngineRequest, content: Content, tokens: int) -> None:
        """The first so many tokens of a request are computed, in a pass that computed a chunk of its prompt."""
        if tokens > request.prompt_tokens:
            tokens = request.prompt_tokens
        self.tiers.note_computed(request, content, tokens // self.block_size)

    def note_end(self, request: EngineRequest) -> None:
        """A request has left the engine."""
        self.tiers.note_end(request)
