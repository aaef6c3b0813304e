"""SGLang's running batch: who decodes, in which order, and how much output is still to be expected of them.

With overlap scheduling the batch is a pass ahead of what is known: a token in flight is computed, so its request goes
on from there, but it does not count as generated yet. Rules of SGLang 0.5.23. The file admits, evicts and ends nobody.
"""

from __future__ import annotations

from typing import TypeAlias

from windtunnel.engine.decode_group import DecodeGroup
from windtunnel.engine.decode_passes import DecodePasses
from windtunnel.engine.new_token_ratio import NewTokenRatio
from windtunnel.engine.sglang_request import NO_ENDERS, Batch, SglangRequest

OUTPUT_CLIP = 4096  # output tokens of one request that admission counts at most

BUILT = 1 << 40  # the number of no merge

Demand: TypeAlias = tuple[float, int]  # output tokens still expected, and KV tokens that end with the request


class RunningBatch:
    """The running batch of one engine.

    Attributes:
        members: by place. One that has ended stays until the next turn.
        group: those of them whose last token is not computed yet.
        full: no prefill is tried; falls when the batch shrinks.
        log: which passes decode.
        in_flight: with overlap, the batch that was launched one turn before; its requests have joined.
    """

    def __init__(self, page_size: int, ratio: NewTokenRatio, overlap: bool) -> None:
        self.members: dict[int, SglangRequest] = {}
        self.group = DecodeGroup(page_size, track_slots=False)
        self.full = False
        self.log = DecodePasses()
        self.in_flight: Batch | None = None
        self._ratio = ratio
        self._overlap = overlap
        self._in_order = True  # whether `members` is in the order of its places
        self._front = 0  # the lowest place that was given, and the first one free behind the highest
        self._back = 0
        self._merges = 0
        self._just_joined = 0  # with the last merge, while a token of theirs is in flight
        self._num_uncertain = 0  # members whose reserve is not simple

    def ordered(self) -> list[SglangRequest]:
        """The members in the order of their places."""
        if not self._in_order:
            self.members = dict(sorted(self.members.items()))
            self._in_order = True
        return list(self.members.values())

    def merge(self, last: Batch) -> None:
        """The requests of a prefill batch, whose prompts are computed or in flight, join."""
        self._merges += 1
        self._just_joined = 0
        chunks = last.chunks
        unfinished = last.unfinished
        if unfinished is not None and len(chunks) == 1:
            self.full = False
            return
        joining = [c.request for c in chunks if c.request is not unfinished and not c.request.gone]
        if last.decodes:  # the mixed batch becomes the running batch, and its prompts stand in front
            self.full = False
            self._in_order = False
            self._front -= len(joining)
            place = self._front
        else:
            if len(joining) < len(chunks) or not self.members:
                self.full = False
            place = self._back
            self._back += len(joining)
        merge = self._merges
        gaps = self.log.num_gaps
        emitting_from = self.log.last + 1
        for request in joining:
            self.members[place] = request
            request.admission = place
            place += 1
            request.merge = merge
            request.first_gap = gaps
            request.emitting_from = emitting_from
            left = request.max_output_tokens - request.output_tokens
            request.simple_reserve = request.ignore_eos and 0 < left <= OUTPUT_CLIP
            if not request.simple_reserve:
                self._num_uncertain += 1
            if self._overlap and left:
                request.output_tokens += 1
                self._just_joined += 1
                left -= 1
            if left:
                request.decoding = True
                self.group.join(request)
            else:
                request.is_last_token = True
                last.enders = [*last.enders, request]

    def join_built(self, request: SglangRequest) -> None:
        """A request joins whose prompt was computed elsewhere; it has no token in flight."""
        request.admission = self._back
        self.members[self._back] = request
        self._back += 1
        request.merge = BUILT
        request.first_gap = self.log.num_gaps
        request.emitting_from = self.log.last + 1
        request.left_out_before_ms = self.log.left_out_ms
        request.simple_reserve = request.ignore_eos and request.max_output_tokens <= OUTPUT_CLIP
        if not request.simple_reserve:
            self._num_uncertain += 1
        request.decoding = True
        self.group.join(request)

    def drop(self, request: SglangRequest) -> bool:
        """Take a request out, if it is a member."""
        if self.members.get(request.admission) is not request:
            return False
        del self.members[request.admission]
        self.full = False
        if not request.simple_reserve:
            self._num_uncertain -= 1
        return True

    def drop_enders(self) -> bool:
        """Take out those whose last token is in flight: they are not decoded again. Whether there were any."""
        dropped = False
        if self.in_flight is not None:
            for request in self.in_flight.enders:
                dropped = self.drop(request) or dropped
        return dropped

    def launch(self, number: int, passes: int) -> list[SglangRequest]:
        """Every member computes one token in each of `passes` passes, the last of which is `number`.

        Returns those whose last token that is, in the order of their places.
        """
        group = self.group
        log = self.log
        if log.last == number - passes:
            log.last = number
        else:
            log.add(number - passes + 1, number)
        step = group.step = group.step + passes
        group.context_tokens += passes * group.size
        return NO_ENDERS if group.finish_step != step else self._take_enders()

    def _take_enders(self) -> list[SglangRequest]:
        """Those whose last token the pass just launched computes leave the group."""
        group = self.group
        enders: list[SglangRequest] = []
        while group.finish_step == group.step:
            request = group.pop_finished()
            assert isinstance(request, SglangRequest)
            group.leave(request)
            request.decoding = False
            enders.append(request)
        return enders

    def leave_group(self, request: SglangRequest) -> None:
        """Bring a request up to date that decodes no more, or not for now; its finish entry stays."""
        self.group.leave(request)
        request.decoding = False

    def disband(self) -> list[tuple[SglangRequest, int]]:
        """Take all requests out of the group, with their known output; returns them and their tokens in flight."""
        found = [(request, self._tokens_in_flight(request)) for request in self.ordered()]
        for request, tokens in found:
            self.leave_group(request)
            request.output_tokens -= tokens
        self.group.dissolve()
        return found

    def retraction_order(self, requests: list[SglangRequest]) -> list[SglangRequest]:
        """The members in the order in which they stay: the last one is retracted first."""
        return sorted(requests, key=lambda request: (request.output_tokens, -request.prompt_tokens), reverse=True)

    def room_tokens(self, requests: list[SglangRequest]) -> int:
        """KV slots that the next pass of these must find free, out of the group."""
        page = self.group.block_size
        return page * sum(request.computed % page == 0 for request in requests)

    def computed(self, request: SglangRequest) -> int:
        """Tokens that any request has computed."""
        return request.base + self.group.step if request.decoding else request.computed

    def reform(self, staying: list[SglangRequest], tokens_in_flight: dict[int, int]) -> None:
        """After `disband`: those that stay, in their new order; the others are members no more."""
        self.members = dict(enumerate(staying))
        self.full = False
        self._in_order = True
        self._front = 0
        self._back = len(staying)
        self._num_uncertain = 0
        for place, request in self.members.items():
            request.admission = place
            request.output_tokens += tokens_in_flight[request.number]
            request.decoding = True
            self.group.join(request)
            self._num_uncertain += not request.simple_reserve

    # --- what is still to come

    def reserved_tokens(self) -> float:
        """Output tokens that the members may still need."""
        if not self._num_uncertain:
            group = self.group
            left = group.finish_sum - group.step * group.size
            if self.in_flight is not None:  # a token in flight still counts as one to come
                left += len(self.members) if self.in_flight.decodes else self._just_joined
            return float(left)
        ratio = self._ratio.value()
        total = 0.0
        for request in self.ordered():  # the order of a sum of floats is behaviour
            left = min(request.max_output_tokens - self._known_output(request), OUTPUT_CLIP)
            total += left * (1.0 if request.ignore_eos else ratio)
        return total

    def demands(self) -> list[Demand]:
        """Those of the members, in order."""
        found = [self.demand_of(request) for request in self.ordered()]
        return [demand for demand in found if demand is not None]

    def demand_of(self, request: SglangRequest) -> Demand | None:
        """What any request will still generate, and the KV that its end will free; None if nothing is left."""
        output = self._known_output(request)
        left = request.max_output_tokens * (1.0 if request.ignore_eos else self._ratio.value()) - output
        return (left, request.prompt_tokens + output) if left > 0 else None

    def extend_results_in_flight(self) -> None:
        """A prompt in flight that already decodes in a mixed pass is stored with that token, when its result comes."""
        if self.in_flight is not None:
            for chunk in self.in_flight.chunks:
                request = chunk.request
                if request.merge == self._merges:
                    request.chunk_end = self.computed(request)

    def _known_output(self, request: SglangRequest) -> int:
        """Output tokens whose result is processed."""
        computed = request.output_tokens
        if request.decoding:
            computed = request.max_output_tokens - request.finish + self.group.step
        return computed - self._tokens_in_flight(request)

    def _tokens_in_flight(self, request: SglangRequest) -> int:
        """Output tokens of a request that are computed by the pass in flight."""
        in_flight = self.in_flight
        if in_flight is None or not request.max_output_tokens:
            return 0
        if self.members.get(request.admission) is not request:
            return 0
        return 1 if in_flight.decodes or request.merge == self._merges else 0
