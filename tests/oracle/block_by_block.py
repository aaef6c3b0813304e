"""vLLM's block pool, one block at a time: what the span pool of windtunnel.engine.kv must be equal to.

Blocks have ids, a reference count and perhaps a hash; free ones stand in a queue that is taken from the front.
Slow and obvious on purpose. Rules of vLLM 0.33, or those before it; it shares no code with the pool that it judges.
"""

from __future__ import annotations

from collections import OrderedDict

from golden.vllm_format import RawEvent


class BlockByBlockPool:
    """All blocks of an engine, by id. Block 0 is never handed out: it is vLLM's null block.

    Attributes:
        free: ids of free blocks, the next one to be taken first.
        refs, hashes: of each block.
        copies: the blocks that hold each hash, in the order in which they were cached.
        events: what was stored and removed since the owner last cleared it.
    """

    def __init__(self, num_blocks: int, caching: bool = True, unhashed_first: bool = True) -> None:
        self.caching = caching
        self.unhashed_first = unhashed_first
        self.free = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self.refs = [0] * (num_blocks + 1)
        self.hashes: list[int | None] = [None] * (num_blocks + 1)
        self.copies: dict[int, list[int]] = {}
        self.events: list[RawEvent] = []

    def match(self, hashes: list[int]) -> list[int]:
        """Blocks of the longest cached prefix: of each hash, the copy that was cached first."""
        blocks: list[int] = []
        for block_hash in hashes:
            if block_hash not in self.copies:
                break
            blocks.append(self.copies[block_hash][0])
        return blocks

    def idle(self, blocks: list[int]) -> int:
        """How many of `blocks` nobody holds."""
        return sum(self.refs[block] == 0 for block in blocks)

    def hold(self, blocks: list[int]) -> None:
        """Hold cached blocks: they leave the free queue."""
        for block in blocks:
            if self.refs[block] == 0:
                del self.free[block]
            self.refs[block] += 1

    def take(self, count: int) -> list[int]:
        """Take free blocks from the front of the queue; one that has a hash is evicted now."""
        taken: list[int] = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            block_hash = self.hashes[block]
            if block_hash is not None:
                self.copies[block_hash].remove(block)
                if not self.copies[block_hash]:
                    del self.copies[block_hash]
                self.hashes[block] = None
                self.events.append(("R", None, [block_hash]))
            self.refs[block] = 1
            taken.append(block)
        return taken

    def store(self, parent: int | None, blocks: list[int], hashes: list[int]) -> None:
        """Make full blocks findable; `parent` is the hash of the block before them."""
        for block, block_hash in zip(blocks, hashes, strict=True):
            self.hashes[block] = block_hash
            self.copies.setdefault(block_hash, []).append(block)
        self.events.append(("S", parent, hashes))

    def release(self, blocks: list[int]) -> None:
        """Give up blocks in the order of their table, walked from its tail.

        Those with a hash go to the back of the queue, those without to its front, to be used next; before 0.33 all
        go to the back.
        """
        hashed: list[int] = []
        blank: list[int] = []
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                (blank if self.hashes[block] is None and self.unhashed_first else hashed).append(block)
        for block in reversed(blank):
            self.free[block] = None
            self.free.move_to_end(block, last=False)
        for block in hashed:
            self.free[block] = None
