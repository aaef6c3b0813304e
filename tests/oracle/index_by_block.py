"""A router's index of KV blocks, one block at a time: what windtunnel.cluster.router.block_index must be equal to.

Every owner has a counter of copies by the tokens up to the end of a block. Slow and obvious on purpose; it shares no
code with the index that it judges.
"""

from __future__ import annotations

from collections import Counter

from windtunnel.workload.content import Content


class IndexByBlock:
    """Copies of each block, named by all tokens up to its end, by owner."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.copies: dict[int, Counter[tuple[object, ...]]] = {}

    def store(self, owner: int, content: Content, first: int, end: int) -> None:
        held = self.copies.setdefault(owner, Counter())
        if first and not held[self.name(content, first - 1)]:
            return
        for block in range(first, end):
            held[self.name(content, block)] += 1

    def remove(self, owner: int, content: Content, first: int, end: int) -> None:
        held = self.copies.setdefault(owner, Counter())
        for block in range(first, end):
            name = self.name(content, block)
            if held[name]:
                held[name] -= 1

    def drop(self, owner: int) -> None:
        self.copies.pop(owner, None)

    def overlaps(self, content: Content, limit_blocks: int) -> dict[int, int]:
        found = {}
        for owner, held in self.copies.items():
            blocks = 0
            while blocks < limit_blocks and held[self.name(content, blocks)]:
                blocks += 1
            if blocks:
                found[owner] = blocks
        return found

    def blocks(self) -> dict[int, int]:
        return {owner: sum(count > 0 for count in held.values()) for owner, held in self.copies.items()}

    def name(self, content: Content, block: int) -> tuple[object, ...]:
        """The tokens up to the end of a block, one by one."""
        tokens = [(origin, start + i) for origin, start, length in content.runs() for i in range(length)]
        return tuple(tokens[: (block + 1) * self.block_size])
