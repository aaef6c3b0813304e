"""The decoding requests of an engine, which advance together.

Every pass computes one token for each member, so one step counter serves all of them: a member's computed
tokens are `base + step`. Which members need a new block at a step depends only on their base modulo the block
size, so a ring of `block_size` counters says how many blocks any number of steps will take without looking at
a member. A member is touched when it joins and when it leaves.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush
from itertools import accumulate

from windtunnel.engine.request import EngineRequest


def _by_admission(request: EngineRequest) -> int:
    return request.admission


NEVER = 1 << 62


class DecodeGroup:
    """Requests that decode one token in each pass.

    Attributes:
        size: number of members.
        step: passes so far.
        ring: per residue of steps modulo block_size, members whose next block opens at such a step.
        context_tokens: sum of the members' logical contexts in the next pass, the token it computes included.
        finish_step: step at which the first member is done; NEVER without members.
        finish_sum: sum of the members' finish steps: less `step` for each, the tokens they still have to compute.
        last_admission: at least the highest admission number among the members; stale after leaves, which
            only makes its reader careful.
    """

    __slots__ = (
        "_fills_after",
        "_finish",
        "_slots",
        "block_size",
        "context_tokens",
        "finish_step",
        "finish_sum",
        "last_admission",
        "ring",
        "size",
        "step",
    )

    def __init__(self, block_size: int, track_slots: bool, lag: int = 0) -> None:
        """`track_slots` keeps the members of each slot too, for owners that must order their blocks; a block counts
        as full `lag` steps after its last token."""
        self.block_size = block_size
        self._fills_after = (1 - lag) % block_size
        self.size = 0
        self.step = 0
        self.context_tokens = 0
        self.last_admission = 0
        self.finish_step = NEVER
        self.finish_sum = 0
        self.ring = [0] * block_size
        self._slots: list[list[EngineRequest]] = []
        if track_slots:
            self.track_slots()
        self._finish: list[tuple[int, int, EngineRequest]] = []

    def track_slots(self) -> None:
        """Keep the members of each slot from now on; before any joins."""
        self._slots = [[] for _ in range(self.block_size)]

    def join(self, request: EngineRequest) -> None:
        """`request` decodes from the next pass on."""
        step = self.step
        computed = request.computed
        admission = request.admission
        base = request.base = computed - step
        self.size += 1
        self.context_tokens += computed + 1
        slot = -base % self.block_size
        self.ring[slot] += 1
        if self._slots:
            insort(self._slots[slot], request, key=_by_admission)
        finish = request.finish = step + request.max_output_tokens - request.output_tokens
        self.finish_sum += finish
        heappush(self._finish, (finish, admission, request))
        if finish < self.finish_step:
            self.finish_step = finish
        if admission > self.last_admission:
            self.last_admission = admission

    def leave(self, request: EngineRequest) -> None:
        """Take a member out, its tokens brought up to date, except for its entry among the finish steps."""
        self.size -= 1
        computed = request.base + self.step
        request.computed = computed
        request.output_tokens = request.max_output_tokens + self.step - request.finish
        self.finish_sum -= request.finish
        self.context_tokens -= computed + 1
        slot = -request.base % self.block_size
        self.ring[slot] -= 1
        if self._slots:
            self._slots[slot].remove(request)

    def forget(self, request: EngineRequest) -> None:
        """Drop the finish entry of a member that left before its end. O(members)."""
        self._finish = [entry for entry in self._finish if entry[2] is not request]
        heapify(self._finish)
        self.finish_step = self._finish[0][0] if self._finish else NEVER

    def dissolve(self) -> None:
        """Drop all finish entries; every member has left."""
        self._finish.clear()
        self.finish_step = NEVER
        self.last_admission = 0

    def pop_finished(self) -> EngineRequest:
        """The member that is done at `finish_step`, the first of them in batch order; it still has to leave."""
        finish = self._finish
        request = heappop(finish)[2]
        self.finish_step = finish[0][0] if finish else NEVER
        return request

    def finishing(self) -> list[EngineRequest]:
        """The members that are done at `finish_step`, in no particular order. O(of them)."""
        finish = self._finish
        finish_step = self.finish_step
        below = finish[1:3]
        if below and below[0][0] != finish_step != below[-1][0]:  # mostly
            return [finish[0][2]]
        found: list[EngineRequest] = []
        places = [0] if finish else []  # in a heap they stand together at the top
        for place in places:
            found.append(finish[place][2])
            places += [i for i in (2 * place + 1, 2 * place + 2) if i < len(finish) and finish[i][0] == finish_step]
        return found

    def longest_context(self, passes: int = 0) -> int:
        """The longest context in the pass after the next `passes`, as in `context_tokens`; 0 without members.

        Members who are done before that pass are left out. O(members).
        """
        step = self.step + passes
        bases = [request.base for finish, _, request in self._finish if finish > step]
        return max(bases) + step + 1 if bases else 0

    def blocks_for(self, passes: int) -> int:
        """Blocks that the next `passes` passes take."""
        bs = self.block_size
        whole = passes // bs
        need = whole * self.size
        start = self.step % bs
        stop = start + passes - whole * bs
        if stop > start:
            need += sum(self.ring[start:stop])
            if stop > bs:
                need += sum(self.ring[: stop - bs])
        return need

    def passes_within(self, free_blocks: int, limit: int) -> int:
        """The most passes, up to `limit`, that `free_blocks` free blocks cover."""
        decodes = self.size
        bs = self.block_size
        if decodes * (limit // bs + 1) <= free_blocks:
            return limit
        # every bs passes take one block a member: whole cycles fit for certain, then at most one more is scanned
        fits = free_blocks // decodes * bs
        if fits >= limit:
            return limit
        start = self.step % bs
        ring = self.ring
        fits += bisect_right(list(accumulate(ring[start:] + ring[:start])), free_blocks % decodes)
        return fits if fits < limit else limit

    def unfilled_tokens(self) -> int:
        """Tokens that would fill the last block of each member, over all members. O(block_size)."""
        bs = self.block_size
        step = self.step
        total = 0
        for slot, members in enumerate(self.ring):
            if members:
                total += members * ((slot - step) % bs)
        return total

    # --- for owners that take and hash blocks in batch order

    def openers(self) -> list[EngineRequest]:
        """Members whose next token opens a block, in batch order. Needs `track_slots`."""
        return self._slots[self.step % self.block_size]

    def closers(self) -> list[EngineRequest]:
        """Members who fill a block with the next step, in batch order; at block size 1 the same list as `openers`."""
        return self._slots[(self.step + self._fills_after) % self.block_size]

    def busy_steps(self) -> list[int]:
        """Ascending offsets, within one cycle of block_size passes, of those that open or fill a block."""
        bs = self.block_size
        first = self.step
        ring = self.ring
        return sorted((slot - first) % bs for slot in range(bs) if ring[slot] or ring[(slot + self._fills_after) % bs])
