"""The requests of an engine that verify drafts in each pass, as long as nothing but their acceptance sets them apart.

What a request accepts is known when it joins, and so are the positions that it reaches, pass by pass, and the blocks
that it will own. The group adds these up in arrays over its steps: a number of passes is priced, and checked against
the free blocks, without looking at a request. A member is touched when it joins and when it leaves. How far a request
may go in here is its owner's business, who gives it as a position; the group ends its run before.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from windtunnel.engine.acceptance import IntArray
from windtunnel.engine.speculative_request import SpeculativeRequest

NEVER = 1 << 62
FIRST_CAPACITY = 1024


class VerificationGroup:
    """Requests that verify K drafts in each pass, 1 + K tokens of each.

    Attributes:
        size: number of members; num_drafts: K.
        step: passes so far.
        finish_step: step after which the first member has its last token, NEVER without members.
        limit_step: step at which the first member would go beyond its limit, or later.
        owned_blocks: blocks that the members own now, all together.
        last_admission: at least the highest admission number among them.
    """

    __slots__ = (
        "_base",
        "_blocks",
        "_contexts",
        "_finish",
        "_lag",
        "_limits",
        "_lookahead",
        "_origin",
        "_reach",
        "_width",
        "block_size",
        "finish_step",
        "last_admission",
        "limit_step",
        "num_drafts",
        "owned_blocks",
        "size",
        "step",
    )

    def __init__(self, block_size: int, num_drafts: int, lookahead_tokens: int, lag: int) -> None:
        """`lookahead_tokens`: slots that a pass reserves behind the last draft; `lag` is 1 if a pass is scheduled
        before the output of the last one is known, whose drafts then count as accepted."""
        self.block_size = block_size
        self.num_drafts = num_drafts
        self._width = 1 + num_drafts
        self._lookahead = lookahead_tokens
        self._lag = lag
        self.step = 0
        self._origin = 0  # the step of the first entry of the arrays
        self._contexts: IntArray = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._blocks: IntArray = np.zeros(FIRST_CAPACITY, dtype=np.int64)  # owned after the pass
        self.clear()

    def clear(self) -> None:
        """Everybody has left."""
        self._contexts.fill(0)
        self._blocks.fill(0)
        self.size = 0
        self._base = 0  # what the entries of `_contexts` lack
        self._reach = self.step
        self._finish: list[tuple[int, int, SpeculativeRequest]] = []
        self._limits: list[tuple[int, int]] = []
        self.finish_step = NEVER
        self.limit_step = NEVER
        self.owned_blocks = 0
        self.last_admission = 0

    def join(self, request: SpeculativeRequest, start: int, limit: int) -> bool:
        """`request` verifies from the next pass on; False, and nothing done, if that would be beyond its limit.

        Args:
            start: position from which the next pass computes it.
            limit: position that no pass may reach beyond.
        """
        width = self._width
        if start + width > limit:
            return False
        first = request.verifications
        lengths = request.lengths
        begin = lengths.item(first)
        finish = int(lengths.searchsorted(begin + request.max_output_tokens - request.output_tokens))
        step = self.step
        lag = self._lag
        base = request.prompt_tokens + request.output_tokens - 1 + width - begin
        if lag:
            base += width
        request.group_base = base
        passes = finish - first
        if passes > lag and lengths.item(finish - 1 - lag) + base > limit:
            beyond = int(lengths[first : finish - lag].searchsorted(limit - base, side="right")) + lag
            heappush(self._limits, (step + beyond, request.admission))
            if step + beyond < self.limit_step:
                self.limit_step = step + beyond
        request.decoding = True
        request.group_start = start
        request.base = step
        request.finish = finish = step + passes
        self.size += 1
        self._base += base
        self.owned_blocks += request.table.owned
        self._add(request, step, 1)
        heappush(self._finish, (finish, request.admission, request))
        if finish < self.finish_step:
            self.finish_step = finish
        if request.admission > self.last_admission:
            self.last_admission = request.admission
        return True

    def leave(self, request: SpeculativeRequest) -> int:
        """Take a member out that has not finished, or has just been popped; returns the blocks that it owns.

        It is not brought up to date.
        """
        owned = self.owned(request)
        self.size -= 1
        self._base -= request.group_base
        self.owned_blocks -= owned
        if self.step < request.finish:
            self._add(request, self.step, -1)
        return owned

    def forget(self, request: SpeculativeRequest) -> None:
        """Drop the entries of a member that left before its end. O(members)."""
        self._finish = [entry for entry in self._finish if entry[2] is not request]
        heapify(self._finish)
        self.finish_step = self._finish[0][0] if self._finish else NEVER
        self._limits = [entry for entry in self._limits if entry[1] != request.admission]
        heapify(self._limits)
        self.limit_step = self._limits[0][0] if self._limits else NEVER

    def pop_finished(self) -> SpeculativeRequest:
        """The member that has its last token at `finish_step`, the first in batch order; it still has to leave."""
        request = heappop(self._finish)[2]
        self.finish_step = self._finish[0][0] if self._finish else NEVER
        return request

    def advance(self, passes: int) -> int:
        """That many passes are computed; returns the blocks they take."""
        place = self.step - self._origin + passes - 1
        owned = self._blocks.item(place)
        taken = owned - self.owned_blocks
        self.owned_blocks = owned
        self.step += passes
        return taken

    # --- one member

    def done(self, request: SpeculativeRequest) -> int:
        """Passes of a member in here so far."""
        return self.step - request.base

    def start(self, request: SpeculativeRequest, number: int) -> int:
        """Position from which its pass number `number` in here computes a member."""
        if number == 0:
            return request.group_start
        return request.group_base - self._width + request.lengths.item(request.verifications + number - self._lag)

    def owned(self, request: SpeculativeRequest) -> int:
        """Blocks that a member owns now."""
        done = self.step - request.base
        if not done:
            return request.table.owned
        return -(-(self.start(request, done - 1) + self._width + self._lookahead) // self.block_size)

    # --- all of them

    def context_tokens(self) -> int:
        """Sum of the positions that the next pass reaches."""
        return self._contexts.item(self.step - self._origin) + self._base if self.size else 0

    def contexts(self, passes: int) -> IntArray:
        """The same of each of the next passes, before any member has its last token."""
        place = self.step - self._origin
        return self._contexts[place : place + passes] + self._base

    def blocks_for(self, passes: int) -> int:
        """Blocks that the next `passes` passes take."""
        if not self.size or not passes:
            return 0
        return self._blocks.item(self.step - self._origin + passes - 1) - self.owned_blocks

    def passes_within(self, free_blocks: int, limit: int) -> int:
        """The most passes, up to `limit`, that `free_blocks` free blocks cover."""
        place = self.step - self._origin
        owned = self.owned_blocks + free_blocks
        if self._blocks.item(place + limit - 1) <= owned:
            return limit
        return int(self._blocks[place : place + limit].searchsorted(owned, side="right"))

    def _add(self, request: SpeculativeRequest, step: int, sign: int) -> None:
        """Enter the passes of a member from `step` on, or take them out again."""
        finish = request.finish
        if finish - self._origin > len(self._contexts):
            self._make_room(finish)
        if finish > self._reach:
            self._reach = finish
        first = request.verifications
        base = request.group_base
        bs = self.block_size
        lag = self._lag
        contexts = self._contexts
        owned = self._blocks
        place = step - self._origin
        number = step - request.base
        if lag and number == 0:  # where it starts does not follow from its verifications
            end = request.group_start + self._width
            contexts[place] += sign * (end - base)
            owned[place] += sign * -(-(end + self._lookahead) // bs)
            place += 1
            number = 1
        gains = request.lengths[first + number - lag : first + finish - request.base - lag]
        stop = place + len(gains)
        blocks = gains + (base + self._lookahead + bs - 1)
        blocks //= bs
        in_contexts = contexts[place:stop]
        in_owned = owned[place:stop]
        if sign > 0:
            in_contexts += gains
            in_owned += blocks
        else:
            in_contexts -= gains
            in_owned -= blocks

    def _make_room(self, finish: int) -> None:
        """Move what is still to come to the front of arrays that reach up to `finish`."""
        first = self.step - self._origin
        live = max(self._reach - self.step, 0)
        size = max(len(self._contexts), 2 * (finish - self.step))
        contexts = np.zeros(size, dtype=np.int64)
        blocks = np.zeros(size, dtype=np.int64)
        contexts[:live] = self._contexts[first : first + live]
        blocks[:live] = self._blocks[first : first + live]
        self._contexts = contexts
        self._blocks = blocks
        self._origin = self.step
