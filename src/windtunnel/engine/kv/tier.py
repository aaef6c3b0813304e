"""What a memory tier behind the KV cache holds: which blocks, which of them are pinned, and which one goes next.

A block is known by its lineage: its place and all tokens up to its end. So equal prefixes are one entry, whoever wrote
them, and a tier may hold a block without those before it. A block is absent, filling (room is taken, its bytes are on
their way) or resident. Resident blocks that nobody pins are evicted least recently used first, where a stretch that was
stored, or let go by its last pin, counts as used from its end to its front: the front of a prefix stays longest. Rules
of vLLM's offloading connector, whose LRU does the same with single blocks. Here blocks that came and were used together
are one node of a tree, so a call costs what the stretches on its path cost, not the blocks. The tier moves no bytes and
knows no time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from windtunnel.engine.kv.haulage import Errand
from windtunnel.workload.content import BlockKey, Content, agree_until

UNLIMITED_BLOCKS = 1 << 60


class BlockState(IntEnum):
    """Of a block in a tier."""

    ABSENT = 0
    FILLING = 1
    RESIDENT = 2


class Stretch(NamedTuple):
    """Blocks [first, end) of a sequence that are in one state.

    Attributes:
        idle: resident, and pinned by nobody.
        filler: who fills them.
    """

    first: int
    end: int
    state: BlockState
    idle: bool
    filler: Errand | None


class TierNode:
    """Blocks [depth, depth + size) of any sequence through it, all in the same state.

    Attributes:
        is_gone: it is no part of the tree any more.
        before, after: neighbours in the order of eviction, for idle ones.
    """

    __slots__ = (
        "after",
        "before",
        "children",
        "content",
        "depth",
        "filler",
        "is_gone",
        "key",
        "parent",
        "pins",
        "size",
        "state",
    )

    def __init__(self, parent: TierNode | None, key: BlockKey, content: Content, depth: int, size: int) -> None:
        self.parent = parent
        self.key = key
        self.content = content
        self.depth = depth
        self.size = size
        self.children: dict[BlockKey, TierNode] = {}
        self.state = BlockState.ABSENT
        self.pins = 0
        self.is_gone = False
        self.filler: Errand | None = None
        self.before: TierNode = self
        self.after: TierNode = self


# Blocks of a sequence: those of a node, and above it down to number so-and-so, as they were filled or pinned together.
# While they are, none is evicted. A node that is split keeps its end, and what it loses is its parent.
Part = tuple[TierNode, int]

NO_NODES: list[TierNode] = []  # never changed


class Tier:
    """The blocks of one tier.

    Attributes:
        num_blocks: capacity.
        free_blocks: room that nothing takes.
        idle_blocks: resident and not pinned: they may be evicted.
        evicted_blocks, dropped_blocks: so far; dropped are those that found no room when they were to be stored.
        num_nodes: for tests and benchmarks, which count work instead of time.
        tip: where the last call of `reserve` has ended.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks = num_blocks
        self.idle_blocks = 0
        self.evicted_blocks = 0
        self.dropped_blocks = 0
        self.num_nodes = 0
        self._root = TierNode(None, (), Content.of(()), 0, 0)
        self._ring = self._root  # its `after` is evicted next
        self._reach = 0  # see `_path`
        self.tip = self._root

    def stretches(self, content: Content, first: int, limit: int) -> list[Stretch]:
        """What the tier has of blocks [first, limit), in order; absent ones are stretches too. Changes nothing."""
        found: list[Stretch] = []
        at = first
        for node in self._path(content, limit):
            end = self._reach if node.depth + node.size > self._reach else node.depth + node.size
            if end > at:
                idle = node.state == BlockState.RESIDENT and not node.pins
                found.append(Stretch(at, end, node.state, idle, node.filler))
                at = end
        if at < limit:
            found.append(Stretch(at, limit, BlockState.ABSENT, False, None))
        return found

    def resident_until(self, content: Content, first: int, limit: int) -> int:
        """The end of the longest stretch of resident blocks from `first` on, at most `limit`. Changes nothing."""
        at = first
        for node in self._path(content, limit):
            end = self._reach if node.depth + node.size > self._reach else node.depth + node.size
            if end > at:
                if node.state != BlockState.RESIDENT:
                    break
                at = end
        return at

    def pin(self, content: Content, first: int, end: int) -> list[Part]:
        """Keep blocks [first, end), none of them absent, from being evicted until their parts are unpinned as often."""
        parts: list[Part] = []
        for node in self._carve(content, first, end):
            assert node.state != BlockState.ABSENT
            if node.state == BlockState.RESIDENT and not node.pins:
                self._take_out(node)
            node.pins += 1
            parts.append((node, node.depth))
        return parts

    def pin_filling(self, part: Part) -> None:
        """The same for a part that is filling."""
        node, first = part
        node.pins += 1
        while node.depth > first:
            assert node.parent is not None
            node = node.parent
            node.pins += 1

    def unpin(self, part: Part) -> None:
        """Take back one pin of a part; those of its blocks that it leaves idle have been used just now."""
        node, first = part
        while True:
            assert node.pins > 0
            node.pins -= 1
            if node.state == BlockState.RESIDENT and not node.pins:
                self._put_in(node)
            if node.depth <= first:
                return
            assert node.parent is not None
            node = node.parent

    def fill(self, part: Part) -> None:
        """The bytes of a filling part have arrived."""
        node, first = part
        while True:
            assert node.state == BlockState.FILLING
            node.state = BlockState.RESIDENT
            node.filler = None
            if not node.pins:
                self._put_in(node)
            if node.depth <= first:
                return
            assert node.parent is not None
            node = node.parent

    def reserve(
        self, content: Content, first: int, end: int, filler: Errand, start: TierNode | None = None
    ) -> list[Part]:
        """Take room for those of blocks [first, end) that are absent, as many from the front as fit.

        Others make room, never those of the stretch itself; what of it is resident has been used just now. `start` is
        where an earlier call for this content left `tip`, if that ended at `first`. Returns what is filling now, in
        ascending order, which `fill` completes.
        """
        if not self.num_blocks:
            self.dropped_blocks += end - first
            return []
        if start is None or start.is_gone or start.depth + start.size != first:
            nodes = self._descend(self._root, content, first, end)
        elif start.children:
            nodes = self._descend(start, content, first, end)
        else:
            nodes = NO_NODES
            self.tip = start
        tip = self.tip
        at = tip.depth + tip.size
        low = at if at > first else first
        wanted = end - low
        room = self.free_blocks + self.idle_blocks
        if nodes:
            for node in nodes:
                if node.state == BlockState.ABSENT:
                    wanted += node.size
                elif node.state == BlockState.RESIDENT and not node.pins:
                    room -= node.size
        if wanted > room:
            return self._reserve_front(content, first, end, filler)
        taken: list[Part] = []
        kept: list[TierNode] = []
        if nodes:
            for node in nodes:
                if node.state == BlockState.ABSENT:
                    node.state = BlockState.FILLING
                    node.filler = filler
                    taken.append((node, node.depth))
                elif node.state == BlockState.RESIDENT and not node.pins:
                    self._take_out(node)
                    kept.append(node)
        if wanted > self.free_blocks:
            self._evict(wanted - self.free_blocks)
        self.free_blocks -= wanted
        if low < end:
            if tip.is_gone or tip.depth + tip.size != at:  # it made room
                node = self._carve(content, low, end)[0]
            else:
                node = self._grow(tip, content, at, low, end - low)
            node.state = BlockState.FILLING
            node.filler = filler
            taken.append((node, low))
            self.tip = node
        while kept:
            self._put_in(kept.pop())
        return taken

    def _reserve_front(self, content: Content, first: int, end: int, filler: Errand) -> list[Part]:
        """The same for a stretch that does not fit as a whole."""
        absent: list[tuple[int, int]] = []
        kept: list[Part] = []
        wanted = 0
        for stretch in self.stretches(content, first, end):
            if stretch.state == BlockState.ABSENT:
                absent.append((stretch.first, stretch.end))
                wanted += stretch.end - stretch.first
            elif stretch.state == BlockState.RESIDENT:
                kept += self.pin(content, stretch.first, stretch.end)
        room = self.free_blocks + self.idle_blocks
        self.dropped_blocks += wanted - room
        wanted = room
        self._evict(self.idle_blocks)
        self.free_blocks = 0
        taken: list[Part] = []
        for low, high in absent:
            if not wanted:
                break
            if high - low > wanted:
                high = low + wanted
            wanted -= high - low
            for node in self._carve(content, low, high):
                node.state = BlockState.FILLING
                node.filler = filler
                taken.append((node, node.depth))
        while kept:
            self.unpin(kept.pop())
        return taken

    # --- the order of eviction

    def _evict(self, count: int) -> None:
        """Make so many idle blocks absent, of which there are enough."""
        self.idle_blocks -= count
        self.free_blocks += count
        self.evicted_blocks += count
        ring = self._ring
        while count:
            node = ring.after
            if node.size > count:
                if not node.children:  # nobody can tell that it ended elsewhere
                    node.size -= count
                    return
                self._split(node, node.size - count)  # `node` is the rest now
            count -= node.size
            self._unlink(node)
            node.state = BlockState.ABSENT
            self._prune(node)

    def _take_out(self, node: TierNode) -> None:
        self.idle_blocks -= node.size
        self._unlink(node)

    def _put_in(self, node: TierNode) -> None:
        self.idle_blocks += node.size
        ring = self._ring
        last = ring.before
        node.before = last
        node.after = ring
        last.after = node
        ring.before = node

    def _unlink(self, node: TierNode) -> None:
        before = node.before
        after = node.after
        before.after = after
        after.before = before
        node.before = node.after = self._ring  # its neighbours may be evicted, and must not live on through it

    # --- the tree

    def _path(self, content: Content, limit: int) -> list[TierNode]:
        """The nodes on the way to block `limit`, as far as there are any; `_reach` is where they leave the way."""
        path: list[TierNode] = []
        bs = self.block_size
        node = self._root
        at = 0
        while at < limit:
            child = node.children.get(content.key(at * bs, bs))
            if child is None:
                break
            end = at + child.size
            if end > limit:
                end = limit
            if child.content is not content:
                end = agree_until(content, child.content, at * bs, end * bs) // bs
            path.append(child)
            count = end - at
            at = end
            if count < child.size:
                break
            node = child
        self._reach = at
        return path

    def _carve(self, content: Content, first: int, end: int) -> list[TierNode]:
        """The nodes of exactly blocks [first, end): made where there are none, split where they reach beyond."""
        carved = self._descend(self._root, content, first, end)
        at = self.tip.depth + self.tip.size
        if at < end:
            low = at if at > first else first
            carved.append(self._grow(self.tip, content, at, low, end - low))
        return carved

    def _grow(self, tip: TierNode, content: Content, at: int, first: int, blocks: int) -> TierNode:
        """A new node of `blocks` blocks from `first` on, below a tip that ends at block `at`."""
        if at < first:
            tip = self._add(tip, content, at, first - at)
        return self._add(tip, content, first, blocks)

    def _add(self, parent: TierNode, content: Content, depth: int, size: int) -> TierNode:
        bs = self.block_size
        key = content.key(depth * bs, bs)
        node = TierNode(parent, key, content, depth, size)
        parent.children[key] = node
        self.num_nodes += 1
        return node

    def _descend(self, start: TierNode, content: Content, first: int, end: int) -> list[TierNode]:
        """The nodes of blocks [first, end), as far as there are any, split where they reach beyond these.

        `start` is on the way to `first`. `tip` is the last node on the way.
        """
        found: list[TierNode] = []
        bs = self.block_size
        node = start
        at = start.depth + start.size
        while at < end:
            child = node.children.get(content.key(at * bs, bs))
            if child is None:
                break
            stop = at + child.size
            limit = first if at < first else end
            if stop > limit:
                stop = limit
            if child.content is not content:
                stop = agree_until(content, child.content, at * bs, stop * bs) // bs
            if stop - at < child.size:
                child = self._split(child, stop - at)
            if at >= first:
                found.append(child)
            at = stop
            node = child
        self.tip = node
        return found

    def _split(self, node: TierNode, blocks: int) -> TierNode:
        """Cut off the first `blocks` blocks of `node`; returns the new upper node, `node` is the rest.

        Of idle ones the rest is evicted first.
        """
        parent = node.parent
        assert parent is not None
        upper = TierNode(parent, node.key, node.content, node.depth, blocks)
        self.num_nodes += 1
        upper.state = node.state
        upper.pins = node.pins
        upper.filler = node.filler
        parent.children[node.key] = upper
        node.parent = upper
        node.depth += blocks
        node.size -= blocks
        bs = self.block_size
        node.key = node.content.key(node.depth * bs, bs)
        upper.children[node.key] = node
        if node.state == BlockState.RESIDENT and not node.pins:
            after = node.after
            upper.before = node
            upper.after = after
            after.before = upper
            node.after = upper
        return upper

    def _prune(self, node: TierNode) -> None:
        """Drop an absent node, and those above it, if nothing hangs below."""
        while not node.children and node.state == BlockState.ABSENT:
            parent = node.parent
            if parent is None:
                return
            del parent.children[node.key]
            node.is_gone = True
            self.num_nodes -= 1
            node = parent
