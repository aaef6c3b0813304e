"""The requests of an SGLang engine that verify drafts in each pass: who gets how many tokens, and the KV that takes.

A pass yields a token of each request and those of its drafts that it accepts. What a request accepts is known when it
joins (engine/acceptance.py), and so is the pass that ends it, and what it holds until then. The group adds these up in
arrays over its steps, so that a run of passes is priced and checked against the free pages without looking at anybody.
Rejected drafts leave nothing behind: a request holds the pages of its computed tokens. It evicts and retracts nobody.
"""

from __future__ import annotations

from array import array
from heapq import heappush

import numpy as np

from windtunnel.engine.acceptance import NOTHING_DRAWN, Acceptance, IntArray, extend_lengths
from windtunnel.engine.decode_group import DecodeGroup
from windtunnel.engine.decode_passes import DecodePasses
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.sglang_request import SglangRequest
from windtunnel.workload.content import Content

FIRST_CAPACITY = 1024


class VerifyingRequest(SglangRequest):
    """A request whose decodes verify drafts.

    Attributes:
        lengths: tokens that its first 0, 1, 2, ... verifications yield, as far as they were drawn.
        verifications: passes that have verified drafts of it; in a group, before it joined that.
        noted: verifications whose tokens are written down.
        joined: while decoding, the step of the group at which it joined; `base` is what it had computed then.
    """

    __slots__ = ("joined", "lengths", "noted", "verifications")

    def __init__(
        self, number: int, content: Content, prompt_tokens: int, max_output_tokens: int, arrival_ms: float
    ) -> None:
        super().__init__(number, content, prompt_tokens, max_output_tokens, arrival_ms)
        self.lengths: IntArray = NOTHING_DRAWN
        self.verifications = 0
        self.noted = 0
        self.joined = 0
        self.burst_extra = array("H")

    @property
    def num_passes_noted(self) -> int:
        """Passes that emitted tokens of it, as far as they are written down."""
        if self.first_pass < 0:
            return 0
        silent = sum(self.break_after) - sum(self.break_before) - len(self.break_before)
        return self.last_pass - self.first_pass + 1 - silent


class VerifyingPasses(DecodePasses):
    """Which passes decode, where each of them yields as many tokens of a request as it accepts."""

    __slots__ = ()

    def note_decodes(
        self, request: EngineRequest, first_gap: int, left_out_before_ms: float, known: int, end_ms: float
    ) -> None:
        assert isinstance(request, VerifyingRequest)
        left = request.max_output_tokens - request.num_emitted
        before = request.num_passes_noted
        super().note_decodes(request, first_gap, left_out_before_ms, known, end_ms)
        passes = request.num_passes_noted - before
        if passes:
            lengths = request.lengths[request.noted : request.noted + passes + 1]
            extra = np.diff(lengths) - 1
            beyond = lengths.item(-1) - lengths.item(0) - left
            if beyond > 0:  # its output ends inside the last verification
                extra[-1] -= beyond
            request.burst_extra.frombytes(extra.astype(np.uint16).tobytes())
            request.noted += passes


class VerifyingGroup(DecodeGroup):
    """Requests that verify `num_drafts` drafts in each pass.

    What the base class says, with this difference: how many tokens a step computes of a member is what it accepts, so
    `ring`, `context_tokens` and `finish_sum` are not kept; `contexts` and `remaining_tokens` are in their place.

    Attributes:
        num_drafts: drafts of each member.
        room_blocks: pages that a pass must find free for each of them.
    """

    __slots__ = (
        "_acceptance",
        "_after",
        "_before",
        "_final",
        "_origin",
        "_owned",
        "_reach",
        "num_drafts",
        "room_blocks",
    )

    def __init__(self, page_size: int, acceptance: Acceptance, num_drafts: int, room_blocks: int) -> None:
        super().__init__(page_size, track_slots=False)
        self._acceptance = acceptance
        self.num_drafts = num_drafts
        self.room_blocks = room_blocks
        self._final = 0  # tokens that the members will have computed in the end
        self._owned = 0  # pages that they own now
        self._origin = 0  # the step of the first entry of the arrays
        self._reach = 0  # the step up to which there are entries
        self._before: IntArray = np.zeros(FIRST_CAPACITY, dtype=np.int64)  # tokens computed before the pass
        self._after: IntArray = np.zeros(FIRST_CAPACITY, dtype=np.int64)  # pages owned after it

    def join(self, request: EngineRequest) -> None:
        assert isinstance(request, VerifyingRequest)
        left = request.max_output_tokens - request.output_tokens
        first = request.verifications
        reached = request.lengths.item(first) + left
        request.lengths = extend_lengths(request.lengths, self._acceptance, request.number, reached)
        passes = int(request.lengths.searchsorted(reached)) - first
        request.base = request.computed
        request.joined = self.step
        finish = request.finish = self.step + passes
        self.size += 1
        self._final += request.computed + left
        self._owned += -(-request.computed // self.block_size)
        self._enter(request, 1)
        heappush(self._finish, (finish, request.admission, request))
        if finish < self.finish_step:
            self.finish_step = finish

    def leave(self, request: EngineRequest) -> None:
        assert isinstance(request, VerifyingRequest)
        computed = self.computed(request)
        self.size -= 1
        self._final -= request.base + request.max_output_tokens - request.output_tokens
        self._owned -= -(-computed // self.block_size)
        if self.step < request.finish:
            self._enter(request, -1)
        request.verifications += self.step - request.joined
        request.output_tokens += computed - request.base
        request.computed = computed

    def computed(self, request: VerifyingRequest) -> int:
        """Tokens that a member has computed."""
        first = request.verifications
        lengths = request.lengths
        gained = lengths.item(first + self.step - request.joined) - lengths.item(first)
        return request.base + min(gained, request.max_output_tokens - request.output_tokens)

    def advance(self, passes: int) -> None:
        """So many passes are computed."""
        self._owned = self._after.item(self.step - self._origin + passes - 1)
        self.step += passes

    # --- all of them

    def computed_tokens(self) -> int:
        """Tokens that the members have computed."""
        return self._before.item(self.step - self._origin) if self.size else 0

    def remaining_tokens(self) -> int:
        """Output tokens that they have still to get."""
        return self._final - self.computed_tokens()

    def contexts(self, passes: int) -> IntArray:
        """Of each of the next passes, the sum of the positions that they reach, drafts included."""
        place = self.step - self._origin
        return self._before[place : place + passes] + self.size * (1 + self.num_drafts)

    def blocks_for(self, passes: int) -> int:
        if not self.size or not passes:
            return 0
        return self._after.item(self.step - self._origin + passes - 1) - self._owned

    def room_for(self, passes: int) -> int:
        """Free pages that the next `passes` passes want: the last of them, room for all that it may compute."""
        return self.blocks_for(passes - 1) + self.size * self.room_blocks

    def passes_within(self, free_blocks: int, limit: int) -> int:
        owned = self._owned + free_blocks - self.size * self.room_blocks
        if owned < self._owned:
            return 0
        place = self.step - self._origin
        return 1 + int(self._after[place : place + limit - 1].searchsorted(owned, side="right"))

    def unfilled_tokens(self) -> int:
        return self._owned * self.block_size - self.computed_tokens()

    def _enter(self, request: VerifyingRequest, sign: int) -> None:
        """Add what a member computes and owns from now on to the arrays, or take it out again."""
        if request.finish - self._origin >= len(self._before):
            self._make_room(request.finish)
        self._reach = max(self._reach, request.finish)
        first = request.verifications + self.step - request.joined
        gains = request.lengths[first : request.verifications + request.finish - request.joined + 1]
        computed = gains + (request.base - request.lengths.item(request.verifications))
        computed[-1] = request.base + request.max_output_tokens - request.output_tokens
        place = self.step - self._origin
        stop = place + len(gains) - 1
        pages = -(-computed[1:] // self.block_size)
        self._before[place:stop] += sign * computed[:-1]
        self._after[place:stop] += sign * pages

    def _make_room(self, finish: int) -> None:
        """Move what is still to come to the front of arrays that reach beyond `finish`."""
        first = self.step - self._origin
        live = max(self._reach - self.step, 0)
        size = max(len(self._before), 2 * (finish - self.step + 1))
        before: IntArray = np.zeros(size, dtype=np.int64)
        after: IntArray = np.zeros(size, dtype=np.int64)
        before[:live] = self._before[first : first + live]
        after[:live] = self._after[first : first + live]
        self._before = before
        self._after = after
        self._origin = self.step
