"""What one engine writes to its KV tiers: to host memory, and from there to the levels behind it.

Blocks go to the host when a prompt is computed (write-through), or when GPU memory evicts them (write-back). Those that
have arrived there are copied to every level behind the host that lacks them, and pinned meanwhile. Of a write that does
not fit, the leading blocks are kept. The file decides neither what is computed or evicted, nor what comes back.
"""

from __future__ import annotations

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.kv.haulage import Errand, Haulage
from windtunnel.engine.kv.level import Level
from windtunnel.engine.kv.tier import Part, TierNode
from windtunnel.workload.content import Content, agree_until


class Trail:
    """How far a request has come with the tiers.

    Attributes:
        stored_blocks: blocks of its prompt that were offered to the host.
        tips: where in each level the last of them ended.
        has_waited, has_restored: in its present attempt to be admitted.
    """

    __slots__ = ("has_restored", "has_waited", "stored_blocks", "tips")

    def __init__(self, num_levels: int) -> None:
        self.stored_blocks = 0
        self.tips: list[TierNode | None] = [None] * num_levels
        self.has_waited = False
        self.has_restored = False


class Write(Errand):
    """Blocks on their way into a level.

    Attributes:
        level: its number.
        trail: of the request whose prompt it is; None for what was evicted.
        parts: what is filling, in the order in which it will count as used.
        sources: what is read in the host for it.
    """

    __slots__ = ("_writer", "level", "parts", "sources", "trail")

    def __init__(self, writer: TierWriter, number: int, trail: Trail | None) -> None:
        super().__init__(0)
        self._writer = writer
        self.level = number
        self.trail = trail
        self.parts: list[Part] = []
        self.sources: list[Part] = []

    def arrive(self, now_ms: float) -> None:
        if self.level:
            self._writer.copied(self, now_ms)
        else:
            self._writer.stored(self, now_ms)


class TierWriter:
    """Writes what one engine has computed or evicted."""

    def __init__(self, levels: list[Level], block_bytes: int, haulage: Haulage) -> None:
        self._levels = levels
        self._block_bytes = block_bytes
        self._haulage = haulage

    def write_prompt(self, trail: Trail, content: Content, blocks: int) -> None:
        """The first so many blocks of a prompt are computed; those that were not offered before are stored."""
        now_ms = self._haulage.catch_up()
        write = Write(self, 0, trail)
        tier = self._levels[0].tier
        write.parts = tier.reserve(content, trail.stored_blocks, blocks, write, trail.tips[0])
        trail.tips[0] = tier.tip
        trail.stored_blocks = blocks
        if len(write.parts) > 1:
            write.parts.reverse()
        self._send(write, now_ms)

    def write_back(self, events: list[CacheEvent]) -> None:
        """Store blocks that GPU memory has evicted, of which there are some, in this order."""
        now_ms = self._haulage.catch_up()
        write = Write(self, 0, None)
        bs = self._levels[0].tier.block_size
        content = events[0].content
        first, end = events[0].first, events[0].end
        for event in events[1:]:
            # blocks that went one after the other, end first, are one stretch, in however many events
            other = event.content
            if event.end == first and agree_until(other, content, 0, first * bs) == first * bs:
                first = event.first
                continue
            self._reserve(write, content, first, end)
            content, first, end = other, event.first, event.end
        self._reserve(write, content, first, end)
        self._send(write, now_ms)

    def _reserve(self, write: Write, content: Content, first: int, end: int) -> None:
        parts = self._levels[write.level].tier.reserve(content, first, end, write)
        if len(parts) > 1:
            parts.reverse()
        write.parts += parts

    def _send(self, write: Write, now_ms: float) -> None:
        """Send what has room in a level on its way there."""
        if not write.parts:
            return
        blocks = 0
        for node, first in write.parts:
            blocks += node.depth + node.size - first
        level = self._levels[write.level]
        level.stored_blocks += blocks
        self._levels[0].holders[write] = None
        write.size_bytes = blocks * self._block_bytes
        self._haulage.start(level.writes, write, now_ms)

    def stored(self, write: Write, now_ms: float) -> None:
        """Blocks have arrived in the host; they go on to the levels behind it."""
        host = self._levels[0]
        for number in range(1, len(self._levels)):
            self._copy(write, number, now_ms)
        for part in write.parts:
            host.tier.fill(part)
        del host.holders[write]
        if write.waiters is not None:
            write.done(now_ms)

    def _copy(self, write: Write, number: int, now_ms: float) -> None:
        """What has arrived in the host goes to a level behind it, as far as that lacks it and has room."""
        copy = Write(self, number, write.trail)
        tier = self._levels[number].tier
        host = self._levels[0].tier
        trail = write.trail
        parts = write.parts
        at = 0
        while at < len(parts):
            part = parts[at]
            at += 1
            node, first = part
            end = node.depth + node.size
            while at < len(parts) and _follows(parts[at], node, first):  # one stretch in several nodes
                node, first = parts[at]
                at += 1
            taken = tier.reserve(part[0].content, first, end, copy, None if trail is None else trail.tips[number])
            if trail is not None:
                trail.tips[number] = tier.tip
            if len(taken) == 1 and taken[0][1] == first and taken[0][0].depth + taken[0][0].size == end:
                copy.parts.append(taken[0])
                if node is part[0]:
                    host.pin_filling(part)
                    copy.sources.append(part)
                    continue
            else:
                copy.parts += reversed(taken)
            for there, low in reversed(taken):
                copy.sources += reversed(host.pin(there.content, low, there.depth + there.size))
        self._send(copy, now_ms)

    def copied(self, write: Write, now_ms: float) -> None:
        """Blocks have arrived in a level behind the host."""
        tier = self._levels[write.level].tier
        for part in write.parts:
            tier.fill(part)
        host = self._levels[0]
        for part in write.sources:
            host.tier.unpin(part)
        del host.holders[write]
        if write.waiters is not None:
            write.done(now_ms)


def _follows(part: Part, node: TierNode, first: int) -> bool:
    """Whether a part ends where the stretch that begins with block `first` of `node` begins."""
    other = part[0]
    if other.depth + other.size != first:
        return False
    while node.depth > first:
        assert node.parent is not None
        node = node.parent
    return node.parent is other
