"""One KV tier with the links into it and out of it."""

from __future__ import annotations

from windtunnel.engine.kv.haulage import Errand
from windtunnel.engine.kv.link import Link
from windtunnel.engine.kv.tier import Tier


class Level:
    """A tier, its links, and what went over them.

    Attributes:
        writes, reads: the links into the tier and out of it.
        holders: who fills or pins blocks of the tier, in the order in which they began.
        hit_blocks: blocks that restores took from here; stored_blocks: those that writes brought.
    """

    def __init__(self, name: str, tier: Tier, writes: Link, reads: Link) -> None:
        self.name = name
        self.tier = tier
        self.writes = writes
        self.reads = reads
        self.holders: dict[Errand, None] = {}
        self.hit_blocks = 0
        self.stored_blocks = 0
