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

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.kv.haulage import Errand, Haulage
from windtunnel.engine.kv.level import Level
from windtunnel.engine.kv.restore_plan import Piece, Plan, plan_restore, plan_without_fillers
from windtunnel.engine.kv.tier import Part
from windtunnel.engine.kv.tier_writer import TierWriter, Trail
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content


class Restore(Errand):
    """A request that is not admitted yet because of KV on its way; as an errand, the copy to GPU memory.

    Attributes:
        request: None once it has given up.
        first, end: the blocks that will be in GPU memory afterwards; none if it only waits for others.
        outstanding: errands or others' work still to wait for.
        parts: what it has pinned in the host, in ascending order.
    """

    __slots__ = ("_offload", "content", "end", "first", "outstanding", "parts", "pieces", "request")

    def __init__(self, offload: Offload, request: EngineRequest, content: Content, first: int, end: int) -> None:
        super().__init__((end - first) * offload.block_bytes)
        self._offload = offload
        self.request: EngineRequest | None = request
        self.content = content
        self.first = first
        self.end = end
        self.pieces: list[Piece] = []
        self.parts: list[Part] = []
        self.outstanding = 0

    def go_on(self, now_ms: float) -> None:
        """Something that it waited for is done."""
        self.outstanding -= 1
        if not self.outstanding:
            self._offload.go_on(self, now_ms)

    def arrive(self, now_ms: float) -> None:
        self._offload.loaded(self, now_ms)


class Promotion(Errand):
    """Blocks from a level behind the host into it, for a restore.

    Attributes:
        level: its number; sources: what it has pinned there.
        parts: what it fills in the host. Both in ascending order.
    """

    __slots__ = ("_offload", "level", "parts", "restore", "sources")

    def __init__(self, offload: Offload, number: int, restore: Restore) -> None:
        super().__init__(0)
        self._offload = offload
        self.level = number
        self.restore = restore
        self.sources: list[Part] = []
        self.parts: list[Part] = []

    def arrive(self, now_ms: float) -> None:
        self._offload.promoted(self, now_ms)


class Offload:
    """The tiers as one engine sees them.

    Attributes:
        levels: host memory first.
        parked: restores by the number of their request.
        landed: restores that have ended, for the scheduler to take note of at its next pass boundary.
        writes_back: blocks are stored when GPU memory evicts them, and not when they are computed.
        evicted: where GPU memory then notes them.
        in_transit_blocks: GPU blocks that are being restored.
        lookups, lookup_blocks: requests that asked at admission, and the blocks that they lacked.
        fallbacks: restores that were cut short, or given up, for lack of room in the host.
        waits: requests that waited for what others had in flight. cancelled: those that gave up meanwhile.
        restored: prompt blocks that each request got back before its first admission, by level.
    """

    def __init__(self, levels: list[Level], block_bytes: int, write_back: bool, haulage: Haulage) -> None:
        self.levels = levels
        self.block_bytes = block_bytes
        self.parked: dict[int, Restore] = {}
        self.landed: list[Restore] = []
        self.writes_back = write_back
        self.evicted: list[CacheEvent] = []
        self.in_transit_blocks = 0
        self.on_landing: Callable[[], None] | None = None  # somebody has to look at `landed`
        self.lookups = 0
        self.lookup_blocks = 0
        self.fallbacks = 0
        self.waits = 0
        self.cancelled = 0
        self.restored: dict[int, list[int]] = {}
        self.haulage = haulage
        self._writer = TierWriter(levels, block_bytes, haulage)
        self._trails: dict[int, Trail] = {}  # of requests that are in the engine

    # --- writing

    def note_computed(self, request: EngineRequest, content: Content, blocks: int) -> None:
        """The first so many blocks of a prompt are computed, in a pass that has ended."""
        if self.writes_back:
            if self.evicted:
                self._write_back()
            return
        trail = self._trails.get(request.number)
        if trail is None:
            trail = self._trails[request.number] = Trail(len(self.levels))
        if blocks > trail.stored_blocks:
            self._writer.write_prompt(trail, content, blocks)

    def note_end(self, request: EngineRequest) -> None:
        """A request has left the engine."""
        self._trails.pop(request.number, None)
        if self.evicted:
            self._write_back()

    def _write_back(self) -> None:
        """What decodes evict is written back when a pass ends that computed a prompt, or a request."""
        self._writer.write_back(self.evicted)
        self.evicted.clear()

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
        trail = self._trails.get(request.number)
        if trail is None:
            trail = self._trails[request.number] = Trail(len(self.levels))
        if not trail.has_waited and not trail.has_restored:
            self.lookups += 1
            self.lookup_blocks += limit - first
        limit = min(limit, first + room_blocks)
        if trail.has_restored or first >= limit:
            return None
        now_ms = self.haulage.catch_up()
        plan = plan_restore(self.levels, content, first, limit)
        if trail.has_waited:
            if plan.fillers:
                plan = plan_without_fillers(self.levels, content, first, limit)
        elif plan.fillers or (plan.is_short and self.levels[0].holders):
            trail.has_waited = True
            return self._wait_for_others(Restore(self, request, content, first, first), plan, now_ms)
        if plan.is_short:
            self.fallbacks += 1
        if plan.end == first:
            return None
        trail.has_restored = True
        restore = Restore(self, request, content, first, plan.end)
        restore.pieces = plan.pieces
        self._park(restore, now_ms)
        self._fetch(restore, now_ms)
        return restore

    def _wait_for_others(self, restore: Restore, plan: Plan, now_ms: float) -> Restore:
        """A job of somebody else has an end; then once more, without waiting."""
        for filler in plan.fillers or list(self.levels[0].holders)[:1]:
            filler.wait(restore)
            restore.outstanding += 1
        self.waits += 1
        self._park(restore, now_ms)
        return restore

    def _park(self, restore: Restore, now_ms: float) -> None:
        request = restore.request
        assert request is not None
        request.note_wait(now_ms)
        self.parked[request.number] = restore
        self.in_transit_blocks += restore.end - restore.first
        self.haulage.num_awaited += 1
        self.haulage.plan()

    def _fetch(self, restore: Restore, now_ms: float) -> None:
        """Pin what a restore needs, and read what the host lacks."""
        content = restore.content
        host = self.levels[0]
        host.holders[restore] = None
        pinned: list[list[Part]] = []
        for first, end, number in restore.pieces:
            self.levels[number].hit_blocks += end - first
            pinned.append(self.levels[number].tier.pin(content, first, end))
        promotions: dict[int, Promotion] = {}
        for (first, end, number), parts in zip(restore.pieces, pinned, strict=True):
            if number:
                promotion = promotions.get(number)
                if promotion is None:
                    promotion = promotions[number] = Promotion(self, number, restore)
                promotion.sources += parts
                promotion.size_bytes += (end - first) * self.block_bytes
                parts = host.tier.reserve(content, first, end, restore)
                for part in parts:
                    host.tier.pin_filling(part)
                promotion.parts += parts
            restore.parts += parts
        restore.outstanding = len(promotions)
        for number, promotion in promotions.items():
            self.haulage.start(self.levels[number].reads, promotion, now_ms)
        if not promotions:
            self.haulage.start(host.reads, restore, now_ms)

    def promoted(self, promotion: Promotion, now_ms: float) -> None:
        """Blocks have arrived in the host for a restore."""
        behind = self.levels[promotion.level].tier
        for part in reversed(promotion.sources):
            behind.unpin(part)
        for part in reversed(promotion.parts):
            self.levels[0].tier.fill(part)
        promotion.restore.go_on(now_ms)

    def go_on(self, restore: Restore, now_ms: float) -> None:
        """All that a restore has waited for so far is done."""
        if restore.first == restore.end:
            self._land(restore, now_ms)
        elif restore.request is None:  # nobody wants the rest
            self.loaded(restore, now_ms)
        else:
            self.haulage.start(self.levels[0].reads, restore, now_ms)

    def loaded(self, restore: Restore, now_ms: float) -> None:
        """All blocks are in GPU memory, or nobody waits for them any more."""
        host = self.levels[0]
        for part in reversed(restore.parts):
            host.tier.unpin(part)
        del host.holders[restore]
        restore.done(now_ms)
        self._land(restore, now_ms)

    def _land(self, restore: Restore, now_ms: float) -> None:
        self.haulage.num_awaited -= 1
        request = restore.request
        if request is not None:
            request.note_transfer(now_ms)
            if restore.pieces and not request.admitted:
                counts = self.restored.setdefault(request.number, [0] * len(self.levels))
                for first, end, number in restore.pieces:
                    counts[number] += end - first
        elif restore.first == restore.end:
            return
        self.landed.append(restore)
        if self.on_landing is not None:
            self.haulage.tell(self.on_landing)

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
        trail = self._trails.get(request.number)
        if trail is not None:
            trail.has_waited = trail.has_restored = False

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
