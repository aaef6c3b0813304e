"""The decode group of a vLLM engine and its KV blocks: when they are taken, and when they are hashed.

Blocks are taken for the group as a number; which member owns how many follows from its position and is written
down only when somebody looks. Hashing of generated blocks is put off likewise, until the member leaves or a
content that quotes it is matched or stored: nobody can tell, as long as no two requests generate the same content. If
they may, or somebody reads the order of KV events, `ordered` has every block taken and hashed in the pass and place
that vLLM does.
"""

from __future__ import annotations

from windtunnel.engine.decode_group import DecodeGroup
from windtunnel.engine.kv.block_pool import BlockPool
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import PassColumns
from windtunnel.workload.content import Content


class VllmDecodes:
    """The decoding requests of an engine.

    Attributes:
        group: what the members have in common.
        by_output: the live requests of the engine by the origin of their output, decoding or not.
        lag: 1 if a pass is scheduled before the output of the last one is known: a block is hashed a pass later then.
        suspended: while a pass in flight goes request by request, the group is empty and `decoding` requests are
            up to date by themselves.
    """

    def __init__(self, pool: BlockPool, passes: PassColumns, ordered: bool, lag: int = 0) -> None:
        self.pool = pool
        self.passes = passes
        self.ordered = ordered
        self.lag = lag
        self.group = DecodeGroup(pool.block_size, ordered, lag)
        self.by_output: dict[int, EngineRequest] = {}
        self.suspended = False

    def keep_order(self) -> None:
        """Be `ordered` from now on; before any request joins."""
        if not self.ordered:
            self.ordered = True
            self.group.track_slots()

    def join(self, request: EngineRequest) -> None:
        """`request` emits a token in each pass from the next one on."""
        request.decoding = True
        request.emitting_from = len(self.passes.end_ms)
        self.group.join(request)

    def leave(self, request: EngineRequest, now_ms: float) -> None:
        """Bring a member up to date and take it out; its finish entry stays in the group, and it is `decoding`."""
        self.catch_up(request)
        self.group.leave(request)
        first_pass = request.emitting_from
        last_pass = len(self.passes.end_ms) - 1
        if self.lag:  # its client may have given up before the last pass began
            while last_pass > first_pass and self.passes.end_ms[last_pass - 1] > request.cancelled_ms:
                last_pass -= 1
        if last_pass >= first_pass:
            request.note_tokens(first_pass, last_pass, self.passes.end_ms[last_pass])
        request.note_decodes(now_ms)

    def advance(self, passes: int) -> None:
        """Blocks of `passes` passes, in no particular order."""
        group = self.group
        self.pool.take(group.blocks_for(passes))
        group.step += passes
        group.context_tokens += passes * group.size

    def advance_one(self) -> None:
        """Blocks of one pass."""
        group = self.group
        bs = group.block_size
        step = group.step
        if not self.ordered:
            need = group.ring[step % bs]
            if need:
                self.pool.take(need)
            group.step = step + 1
            group.context_tokens += group.size
            return
        openers = group.openers()
        closers = group.closers()
        order = openers
        if closers is not openers and closers:
            order = sorted(openers + closers, key=lambda request: request.admission) if openers else closers
        group.step = step + 1
        group.context_tokens += group.size
        for request in order:
            computed = request.base + step
            if computed % bs == 0:
                self.pool.take(1)
            if (computed + 1 - self.lag) % bs == 0:
                self.catch_up(request)

    def advance_in_order(self, passes: int) -> None:
        """Blocks of `passes` passes in the order of passes and requests, visiting only passes that take or hash."""
        group = self.group
        first = group.step
        size = group.size
        busy = group.busy_steps()
        for cycle in range(0, passes, group.block_size):
            for offset in busy:
                if cycle + offset >= passes:
                    break
                step = first + cycle + offset
                group.context_tokens += (step - group.step) * size
                group.step = step
                self.advance_one()
        group.context_tokens += (first + passes - group.step) * size
        group.step = first + passes

    def catch_up(self, request: EngineRequest) -> None:
        """Make explicit the blocks that a member has got, and filled, since it was last touched."""
        table = request.table
        bs = self.group.block_size
        computed = request.base + self.group.step
        table.owned = -(-computed // bs)
        full = (computed - self.lag) // bs
        if full > table.hashed and self.pool.caching:
            self.pool.store(table, full)

    def catch_up_sources(self, content: Content, in_flight: bool = False) -> None:
        """Hash what those members have decoded whose output this content quotes: it may be hit now.

        `in_flight` leaves out the last step, whose pass has not ended.
        """
        if self.suspended:
            return
        bs = self.group.block_size
        for origin in content.sources:
            other = self.by_output.get(origin)
            if other is not None and other.decoding:
                if not in_flight:
                    self.catch_up(other)
                    continue
                computed = other.base + self.group.step
                other.table.owned = -(-computed // bs)
                full = (computed - 1 - self.lag) // bs
                if full > other.table.hashed and self.pool.caching:
                    self.pool.store(other.table, full)
