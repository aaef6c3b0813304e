"""KV that leaves the GPU's memory and comes back: what one engine writes to its tiers, and what it restores from them.

Engine-independent: a scheduler says which blocks of which sequence it has computed or evicted, and asks about each
request that it is about to admit. The first level is host memory; disk and object store lie behind it. Writes go to the
host and from there to the levels behind. A restore reads what the host lacks into it, then copies to the GPU; meanwhile
the request waits aside and others overtake it.

Restoring is bounded, so that no request can wait for ever (targets.md, finding 10): a restore is planned once, for the
longest prefix whose blocks fit in the host all at once; what it uses is pinned until it has been copied; each block is
read at most once; what does not fit is computed. An attempt to be admitted waits at most once for what others have in
flight, whose end is finite, and restores at most once. The file never looks at GPU blocks or queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.kv.link import Link, Transfer
from windtunnel.engine.kv.tier import BlockState, Filler, Range, Tier, TierNode
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content, agree_until

Piece = tuple[int, int, int]  # blocks [first, end) of a sequence that level number so-and-so has

HAS_WAITED = 1  # how far an attempt to be admitted has come
HAS_RESTORED = 2


class Level:
    """One tier with its links, and what went over them.

    Attributes:
        writes, reads: the links into the tier and out of it.
        is_shared: whether several engines use it.
        holders: who fills or pins blocks of the tier, in the order in which they began.
        hit_blocks: blocks that restores took from here; stored_blocks: those that writes brought.
    """

    def __init__(self, name: str, tier: Tier, writes: Link, reads: Link, is_shared: bool = False) -> None:
        self.name = name
        self.is_shared = is_shared
        self.tier = tier
        self.writes = writes
        self.reads = reads
        self.holders: dict[int, Filler] = {}
        self.hit_blocks = 0
        self.stored_blocks = 0
        self._held = 0

    def hold(self, holder: Filler) -> int:
        """Note who fills or pins blocks; returns what `let_go` takes."""
        self._held += 1
        self.holders[self._held] = holder
        return self._held

    def let_go(self, number: int) -> None:
        del self.holders[number]


class Errand(Transfer):
    """A transfer between two levels."""

    __slots__ = ()

    def arrive(self) -> None:
        """It has ended, now."""
        raise NotImplementedError


class Traffic(Protocol):
    """Virtual time, and who starts errands and lets them `arrive`."""

    @property
    def now_ms(self) -> float: ...

    def start(self, link: Link, errand: Errand) -> None:
        """Send an errand over a link now."""
        ...

    def plan(self, link: Link) -> None:
        """Look at a link when something happens on it next."""
        ...


class Store(Filler):
    """Blocks on their way into a level, in the order in which they will count as used."""

    __slots__ = ("held", "nodes", "num_blocks", "ranges")

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[Content, int, int]] = []
        self.nodes: list[TierNode | None] = []  # what each range was when it was reserved, if that was one node
        self.num_blocks = 0
        self.held = 0

    def add(self, content: Content, ranges: list[Range]) -> None:
        """Blocks that have room, front first; they count as used from their end on."""
        for first, end in reversed(ranges):
            self.ranges.append((content, first, end))
            self.nodes.append(self.node)
            self.num_blocks += end - first


class Restore(Filler):
    """A request that is not admitted yet because of KV on its way.

    Attributes:
        request: None once it has given up.
        first, end: the blocks that will be in GPU memory afterwards; none if it only waits for others.
        outstanding: errands or others' work still to wait for.
    """

    __slots__ = ("_offload", "content", "end", "first", "held", "outstanding", "pieces", "request")

    def __init__(self, offload: Offload, request: EngineRequest, content: Content, first: int, end: int) -> None:
        super().__init__()
        self._offload = offload
        self.request: EngineRequest | None = request
        self.content = content
        self.first = first
        self.end = end
        self.pieces: list[Piece] = []
        self.outstanding = 0
        self.held = 0

    def go_on(self) -> None:
        """Something that it waited for is done."""
        self.outstanding -= 1
        if not self.outstanding:
            self._offload.go_on(self)


class Plan:
    """Which prefix can be restored, and what stands in the way of more.

    Attributes:
        pieces: what it consists of, in order.
        end: its last block, exclusive.
        fillers: whose blocks would be part of it.
        is_short: the host has no room for the rest.
    """

    __slots__ = ("end", "fillers", "is_short", "pieces")

    def __init__(self, first: int) -> None:
        self.pieces: list[Piece] = []
        self.end = first
        self.fillers: list[Filler] = []
        self.is_short = False


def plan_restore(levels: list[Level], content: Content, first: int, limit: int) -> Plan:
    """The longest run of blocks from `first` on that the levels have and the host can hold all at once.

    Blocks that are filling are taken to be there. Changes nothing.
    """
    plan = Plan(first)
    tier = levels[0].tier
    room = tier.free_blocks + tier.idle_blocks
    lacks = False
    for stretch in tier.stretches(content, first, limit):
        at, end = stretch.first, stretch.end
        if stretch.state == BlockState.FILLING:
            assert stretch.filler is not None
            if stretch.filler not in plan.fillers:
                plan.fillers.append(stretch.filler)
            plan.end = end
            continue
        if stretch.state == BlockState.RESIDENT:
            if stretch.idle:  # it could have made room
                if lacks and end - at > room:
                    end = at + room
                    plan.is_short = True
                room -= end - at
            if end > at:
                plan.pieces.append((at, end, 0))
                plan.end = end
            if plan.is_short:
                return plan
            continue
        while at < end:
            number = 1
            stop = at
            while number < len(levels):
                stop = levels[number].tier.resident_until(content, at, end)
                if stop > at:
                    break
                number += 1
            if stop == at:
                return plan
            lacks = True
            if stop - at > room:
                stop = at + room
                plan.is_short = True
            room -= stop - at
            if stop > at:
                plan.pieces.append((at, stop, number))
                plan.end = at = stop
            if plan.is_short:
                return plan
    return plan


class Offload:
    """The tiers as one engine sees them.

    Attributes:
        levels: host memory first.
        parked: restores by the number of their request.
        landed: restores that have ended, for the scheduler to take note of at its next pass boundary.
        writes_back: blocks are stored when GPU memory evicts them, and not when they are computed.
        in_transit_blocks: GPU blocks that are being restored.
        lookups, lookup_blocks: requests that asked at admission, and the blocks that they lacked.
        fallbacks: restores that were cut short, or given up, for lack of room in the host.
        waits: requests that waited for what others had in flight. cancelled: those that gave up meanwhile.
        restored: prompt blocks that each request got back before its first admission, by level.
    """

    def __init__(
        self,
        levels: list[Level],
        block_bytes: int,
        write_back: bool,
        traffic: Traffic,
    ) -> None:
        self.levels = levels
        self.block_bytes = block_bytes
        self.parked: dict[int, Restore] = {}
        self.landed: list[Restore] = []
        self.writes_back = write_back
        self.in_transit_blocks = 0
        self.on_landing: Callable[[], None] | None = None  # somebody has to look at `landed`
        self.lookups = 0
        self.lookup_blocks = 0
        self.fallbacks = 0
        self.waits = 0
        self.cancelled = 0
        self.restored: dict[int, list[int]] = {}
        # nobody else sees such a host: that a write has ended need not be known before the next look at it
        self._is_alone = len(levels) == 1 and not levels[0].is_shared
        self._traffic = traffic
        self._progress: dict[int, int] = {}  # of the attempt of a request to be admitted
        self._stored: dict[int, int] = {}  # blocks of a request's prompt that were offered to the host

    # --- writing

    def note_prompt(self, request: EngineRequest, content: Content, blocks: int) -> None:
        """The first so many blocks of a prompt are computed; those that were not offered before are stored."""
        first = self._stored.get(request.number, 0)
        if blocks > first:
            self._stored[request.number] = blocks
            self.catch_up()
            store = Store()
            store.add(content, self.levels[0].tier.reserve(content, first, blocks, store))
            self._write(0, store)

    def write_back(self, events: list[CacheEvent]) -> None:
        """Store blocks that GPU memory has evicted, of which there are some, in this order."""
        self.catch_up()
        store = Store()
        tier = self.levels[0].tier
        bs = tier.block_size
        content = events[0].content
        first, end = events[0].first, events[0].end
        for event in events[1:]:
            # blocks that went one after the other, end first, are one stretch, in however many events
            other = event.content
            if event.end == first and agree_until(other, content, 0, first * bs) == first * bs:
                first = event.first
                continue
            store.add(content, tier.reserve(content, first, end, store))
            content, first, end = other, event.first, event.end
        store.add(content, tier.reserve(content, first, end, store))
        self._write(0, store)

    def _write(self, number: int, store: Store) -> None:
        """Send what has room in a level on its way there."""
        if not store.ranges:
            return
        level = self.levels[number]
        level.stored_blocks += store.num_blocks
        host = self.levels[0]
        store.held = host.hold(store)
        errand = Write(self, number, store)
        if self._is_alone and not self.parked:
            level.writes.start(errand, self._traffic.now_ms)
        else:
            self._traffic.start(level.writes, errand)

    def catch_up(self) -> None:
        """Take note of writes that have ended by now."""
        writes = self.levels[0].writes
        if self._is_alone and writes.next_ms <= self._traffic.now_ms:
            for errand in writes.advance(self._traffic.now_ms):
                assert isinstance(errand, Errand)
                errand.arrive()

    def stored(self, number: int, store: Store) -> None:
        """Blocks have arrived in a level; those that the host got go on to the levels behind it."""
        tier = self.levels[number].tier
        for (content, first, end), node in zip(store.ranges, store.nodes, strict=True):
            tier.fill(content, first, end, node)
        host = self.levels[0]
        if number:
            for content, first, end in store.ranges:
                host.tier.unpin(content, first, end)
        else:
            for behind in range(1, len(self.levels)):
                copy = Store()
                for content, first, end in store.ranges:
                    copy.add(content, self.levels[behind].tier.reserve(content, first, end, copy))
                for content, first, end in copy.ranges:
                    host.tier.pin(content, first, end)
                self._write(behind, copy)
        host.let_go(store.held)
        store.done()

    # --- restoring

    def consider(
        self, request: EngineRequest, content: Content, first: int, limit: int, room_blocks: int
    ) -> Restore | None:
        """Whether a request that could be admitted now, with `first` blocks in GPU memory, waits for KV instead.

        Args:
            limit: blocks that are of use to it; room_blocks: how many GPU memory could take in.

        Returns:
            What it waits for, which has begun; `landed` will have it. None if it is to be admitted.
        """
        progress = self._progress.get(request.number, 0)
        if not progress:
            self.lookups += 1
            self.lookup_blocks += limit - first
        limit = min(limit, first + room_blocks)
        if progress == HAS_RESTORED or first >= limit:
            return None
        self.catch_up()
        plan = plan_restore(self.levels, content, first, limit)
        if not progress:
            holders = self.levels[0].holders
            if plan.fillers or (plan.is_short and holders):
                # an end of a job of somebody else; then once more, without waiting
                restore = Restore(self, request, content, first, first)
                for filler in plan.fillers or list(holders.values())[:1]:
                    filler.waiters.append(restore)
                    restore.outstanding += 1
                self._progress[request.number] = HAS_WAITED
                self.waits += 1
                if self._is_alone:
                    self._traffic.plan(self.levels[0].writes)
                return self._park(restore)
        elif plan.fillers:
            plan = self._without_fillers(content, first, limit)
        if plan.is_short:
            self.fallbacks += 1
        if plan.end == first:
            return None
        self._progress[request.number] = HAS_RESTORED
        restore = Restore(self, request, content, first, plan.end)
        restore.pieces = plan.pieces
        self._fetch(restore)
        return self._park(restore)

    def _without_fillers(self, content: Content, first: int, limit: int) -> Plan:
        """The plan up to the first block that is filling."""
        for stretch in self.levels[0].tier.stretches(content, first, limit):
            if stretch.state == BlockState.FILLING:
                limit = stretch.first
                break
        return plan_restore(self.levels, content, first, limit)

    def _park(self, restore: Restore) -> Restore:
        request = restore.request
        assert request is not None
        request.note_wait(self._traffic.now_ms)
        self.parked[request.number] = restore
        self.in_transit_blocks += restore.end - restore.first
        return restore

    def _fetch(self, restore: Restore) -> None:
        """Pin what a restore needs, and read what the host lacks."""
        content = restore.content
        host = self.levels[0]
        restore.held = host.hold(restore)
        for first, end, number in restore.pieces:
            self.levels[number].hit_blocks += end - first
            self.levels[number].tier.pin(content, first, end)
        behind: dict[int, list[Range]] = {}
        for first, end, number in restore.pieces:
            if number:
                taken = host.tier.reserve(content, first, end, restore)
                assert taken == [(first, end)]
                host.tier.pin(content, first, end)
                behind.setdefault(number, []).append((first, end))
        restore.outstanding = len(behind)
        for number, ranges in behind.items():
            self._traffic.start(self.levels[number].reads, Promotion(self, number, restore, ranges))
        if not behind:
            self._load(restore)

    def promoted(self, number: int, restore: Restore, ranges: list[Range]) -> None:
        """Blocks have arrived in the host for a restore."""
        content = restore.content
        for first, end in reversed(ranges):
            self.levels[number].tier.unpin(content, first, end)
            self.levels[0].tier.fill(content, first, end)
        restore.go_on()

    def go_on(self, restore: Restore) -> None:
        """All that a restore has waited for so far is done."""
        if restore.first == restore.end:
            self._land(restore)
        elif restore.request is None:  # nobody wants the rest
            self.loaded(restore)
        else:
            self._load(restore)

    def _load(self, restore: Restore) -> None:
        size_bytes = (restore.end - restore.first) * self.block_bytes
        self._traffic.start(self.levels[0].reads, Load(self, restore, size_bytes))

    def loaded(self, restore: Restore) -> None:
        """All blocks are in GPU memory, or nobody waits for them any more."""
        host = self.levels[0]
        host.tier.unpin(restore.content, restore.first, restore.end)
        host.let_go(restore.held)
        restore.done()
        self._land(restore)

    def _land(self, restore: Restore) -> None:
        request = restore.request
        if request is not None:
            request.note_transfer(self._traffic.now_ms)
            if restore.pieces and not request.admitted:
                counts = self.restored.setdefault(request.number, [0] * len(self.levels))
                for first, end, number in restore.pieces:
                    counts[number] += end - first
        elif restore.first == restore.end:
            return
        self.landed.append(restore)
        if self.on_landing is not None:
            self.on_landing()

    # --- requests come and go

    def take_landed(self) -> list[Restore]:
        """The restores that have ended since the last call, in that order."""
        landed = self.landed
        self.landed = []
        for restore in landed:
            self.in_transit_blocks -= restore.end - restore.first
            if restore.request is not None:
                del self.parked[restore.request.number]
        return landed

    def admitted(self, request: EngineRequest) -> None:
        """A request is admitted; its next attempt, after a preemption, is a new one."""
        self._progress.pop(request.number, None)

    def give_up(self, request: EngineRequest, now_ms: float) -> bool:
        """Its client has given up; whether the request was parked. What is under way for it goes on to its end."""
        restore = self.parked.pop(request.number, None)
        if restore is None:
            return False
        if request.marker_ms < now_ms:
            request.note_transfer(now_ms)
        restore.request = None
        self.cancelled += 1
        return True

    def settle(self, now_ms: float) -> list[EngineRequest]:
        """The simulation stops: the requests that still wait for KV, accounted for until then."""
        remaining = [restore.request for restore in self.parked.values() if restore.request is not None]
        for request in remaining:
            if request.marker_ms < now_ms:
                request.note_transfer(now_ms)
        return remaining

    def forget(self, request: EngineRequest) -> None:
        """A request has left the engine."""
        self._progress.pop(request.number, None)
        self._stored.pop(request.number, None)


class Write(Errand):
    """Blocks from GPU memory to the host, or from there to a level behind it."""

    __slots__ = ("_number", "_offload", "_store")

    def __init__(self, offload: Offload, number: int, store: Store) -> None:
        super().__init__(store.num_blocks * offload.block_bytes)
        self._offload = offload
        self._number = number
        self._store = store

    def arrive(self) -> None:
        self._offload.stored(self._number, self._store)


class Promotion(Errand):
    """Blocks from a level behind the host into it."""

    __slots__ = ("_number", "_offload", "_ranges", "_restore")

    def __init__(self, offload: Offload, number: int, restore: Restore, ranges: list[Range]) -> None:
        super().__init__(sum(end - first for first, end in ranges) * offload.block_bytes)
        self._offload = offload
        self._number = number
        self._restore = restore
        self._ranges = ranges

    def arrive(self) -> None:
        self._offload.promoted(self._number, self._restore, self._ranges)


class Load(Errand):
    """Blocks from the host into GPU memory."""

    __slots__ = ("_offload", "_restore")

    def __init__(self, offload: Offload, restore: Restore, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._offload = offload
        self._restore = restore

    def arrive(self) -> None:
        self._offload.loaded(self._restore)
