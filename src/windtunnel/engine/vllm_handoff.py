"""vLLM's two halves of a hand-off: an engine that only prefills, and one that decodes prompts computed elsewhere.

The rules for everything else are those of `VllmScheduler`. A source holds the blocks of a prompt that it has computed.
A destination holds what its cache has of the prompt and takes blocks for the rest, without room for the output. Once
they are filled, the full ones can be hit, and the request computes the last token of its prompt again, as a decode, to
get its first one. It needs no more room for that and is admitted before all that waits. A request that was preempted
has lost what it was sent and computes it here; nothing is reserved while one waits, so that nobody overtakes it for
ever. Asynchronous, whatever is asked of an engine during a pass is done when the next one has been decided: released
blocks, room for a prompt and prompts that have arrived count from the one after it on.
Sources: the Dynamo mocker's hand-off (order, hits, what is reserved); vLLM's KV connectors, whose scheduler allocates
in the order of its queue and computes the last token of a prompt that was loaded in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from windtunnel.config.schema import VllmConfig
from windtunnel.engine.handoff import NO_ROOM, DestinationRequest
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape
from windtunnel.workload.content import Content


class VllmHalf(VllmScheduler):
    """What both halves have in common: see `HalfScheduler`."""

    def __init__(self, config: VllmConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self._visit: Callable[[], None] | None = None  # what is to be done when the next pass has been decided

    @property
    def is_ahead(self) -> bool:
        return self.is_async and not self._is_resting

    @property
    def is_freeing(self) -> bool:
        return bool(self.ending)

    def await_decision(self, visit: Callable[[], None]) -> None:
        self._visit = visit

    def decode_passes(self) -> int:
        return 0 if self._visit is not None else super().decode_passes()

    def _deliver(self) -> bool:
        delivered = super()._deliver()
        visit = self._visit
        if visit is None:
            return delivered
        self._visit = None
        visit()
        return True


class VllmSource(VllmHalf):
    """A vLLM engine that computes prompts for others; see `SourceScheduler`.

    Attributes:
        held: requests that have finished and whose blocks are still needed, by number.
    """

    def __init__(self, config: VllmConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.held: dict[int, EngineRequest] = {}

    def release(self, request: EngineRequest) -> None:
        del self.held[request.number]
        self.pool.release(request.table)
        self._head_refused = False

    def physical_tokens(self) -> int:
        unfilled = sum(held.table.owned * self.block_size - held.computed for held in self.held.values())
        return super().physical_tokens() - unfilled

    def _complete(self, request: EngineRequest) -> None:
        self.held[request.number] = request
        self.finished.append(request)
        if self.is_async:
            self.ending.append(request)
        else:
            self._release(request)

    def _release(self, request: EngineRequest) -> None:
        """Only its place in the batch: its blocks are held."""
        del self.running[request.admission]
        del self.decodes.by_output[request.origin]
        self._head_refused = False

    def _preempt(self, victim: EngineRequest, requester: EngineRequest, now_ms: float) -> None:
        if victim.number not in self.held:  # it is done, and its blocks are being sent
            super()._preempt(victim, requester, now_ms)


class VllmDestination(VllmHalf):
    """A vLLM engine that decodes prompts computed elsewhere; see `DestinationScheduler`.

    Attributes:
        built: requests whose prompts have arrived and that wait for a place in the batch.
    """

    request_type: type[EngineRequest] = DestinationRequest

    def __init__(self, config: VllmConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.bars_fresh = False
        self.built: deque[DestinationRequest] = deque()
        self._first: list[DestinationRequest] = []  # of the pass in flight: those that get their first token

    # --- the prompt

    def cached_tokens(self, content: Content, prompt_tokens: int) -> int:
        if content.sources:
            self.decodes.catch_up_sources(content)
        return self.pool.match(content, prompt_tokens // self.block_size).blocks * self.block_size

    def reserve(self, request: EngineRequest) -> int:
        if len(self.running) >= self.max_num_seqs or (self.waiting and self.waiting[0].preemptions):
            return NO_ROOM
        bs = self.block_size
        content = request.table.content
        if content.sources:
            self.decodes.catch_up_sources(content)
        match = self.pool.match(content, request.prompt_tokens // bs)
        blocks = -(-request.prompt_tokens // bs)
        missing = blocks - match.blocks
        if missing > self.pool.free_blocks - match.idle_blocks:
            return NO_ROOM
        self.pool.hold(request.table, match)
        self.pool.take(missing)
        request.table.owned = blocks
        return missing * bs

    def cancel_reservation(self, request: EngineRequest) -> None:
        self.pool.release(request.table)
        self._head_refused = False

    def activate(self, request: EngineRequest) -> None:
        assert isinstance(request, DestinationRequest)
        full = request.prompt_tokens // self.block_size
        if self.caching and full > request.table.hashed:
            if request.table.content.sources:
                self.decodes.catch_up_sources(request.table.content)
            self.pool.store(request.table, full)
        self.decodes.by_output[request.origin] = request
        self.built.append(request)

    # --- the batch

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self.built)

    def may_admit(self) -> bool:
        if self.built:
            return self.group.size < min(self.max_num_batched_tokens, self.max_num_seqs)
        return not self._is_barred() and super().may_admit()

    def decode_passes(self) -> int:
        return 0 if self.built and self.may_admit() else super().decode_passes()

    def abort(self, request: EngineRequest, now_ms: float) -> None:
        if request not in self.built:
            super().abort(request, now_ms)
            return
        assert isinstance(request, DestinationRequest)
        self.built.remove(request)
        request.note_wait(now_ms)
        self.cancel_reservation(request)
        del self.decodes.by_output[request.origin]

    def settle(self, now_ms: float) -> list[EngineRequest]:
        built = list(self.built)
        for request in built:
            request.note_wait(max(now_ms, request.marker_ms))
        return [*super().settle(now_ms), *built]

    def conclude(self, start_ms: float) -> None:
        super().conclude(start_ms)
        first = self._first
        self._first = []
        end_ms = self.passes.end_ms[-1]
        last_pass = len(self.passes.end_ms) - 1
        for request in first:
            request.note_decodes(end_ms)
            request.output_tokens = 1
            request.note_tokens(last_pass, last_pass, end_ms)
            if request.max_output_tokens == 1:
                self._complete(request)
            else:
                self.decodes.join(request)

    def physical_tokens(self) -> int:
        unfilled = 0
        for request in (*self._first, *self.built):
            unfilled += request.table.owned * self.block_size - request.prompt_tokens
        return super().physical_tokens() - unfilled

    def describe_wait(self) -> str:
        return f"{len(self.built)} handed over and without a place in the batch; {super().describe_wait()}"

    def _schedule_group(self, now_ms: float) -> PassShape | None:
        shape = super()._schedule_group(now_ms)
        if shape is not None and self.built:  # nobody waited, so it has not asked for admissions
            budget = self.max_num_batched_tokens - shape.num_decodes - sum(shape.chunk_tokens)
            self._admit_built(budget, now_ms, shape)
        return shape

    def _admit(self, budget: int, cap: int, now_ms: float, shape: PassShape) -> None:
        budget = self._admit_built(budget, now_ms, shape)
        if not self._is_barred():
            super()._admit(budget, cap, now_ms, shape)

    def _admit_built(self, budget: int, now_ms: float, shape: PassShape) -> int:
        """Those whose prompts have arrived come first; returns what they leave of the budget."""
        while self.built and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.built.popleft()
            self._admissions += 1
            request.admission = self._admissions
            self.running[request.admission] = request
            request.note_wait(now_ms)
            request.decode_admit_ms = now_ms
            request.computed = request.prompt_tokens
            shape.add_decode(request.computed)
            self._first.append(request)
            budget -= 1
        return budget

    def _is_barred(self) -> bool:
        return self.bars_fresh and bool(self.waiting) and not self.waiting[0].preemptions
