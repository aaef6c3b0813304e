"""SGLang's two halves of a hand-off: an engine that only prefills, and one that decodes prompts computed elsewhere.

The rules for everything else are those of `SglangScheduler`. A source keeps the KV of a prompt that it computed; its
place among the running requests is free again. A destination holds what its cache has of the prompt and takes pages for
the rest, as long as every request that it holds keeps room for some output. Once they are filled, the request joins the
running batch at the next turn that has a place and a page for it, and computes the last token of its prompt again, as a
decode, to get its first one. Retracted requests are computed here; nothing is reserved while one heads the queue.
Sources: the Dynamo mocker's hand-off (order, hits, when it joins); SGLang's decode preallocation (room for output).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.handoff import NO_ROOM
from windtunnel.engine.request import NAN, EngineRequest
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_request import Batch, SglangRequest
from windtunnel.record.columns import PassColumns
from windtunnel.workload.content import Content

RESERVED_DECODE_TOKENS = 512  # SGLang's num_reserved_decode_tokens


class SglangHalf(SglangScheduler):
    """What both halves have in common: a turn sees all that has come before it, see `HalfScheduler`."""

    @property
    def is_ahead(self) -> bool:
        return False

    @property
    def is_freeing(self) -> bool:
        return False

    def await_decision(self, visit: Callable[[], None]) -> None:
        visit()  # nothing is decided ahead


class SglangSource(SglangHalf):
    """An SGLang engine that computes prompts for others; see `SourceScheduler`.

    Attributes:
        held: requests that have finished and whose KV is still needed, by number.
    """

    def __init__(self, config: SglangConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.held: dict[int, SglangRequest] = {}

    def release(self, request: EngineRequest) -> None:
        held = self.held.pop(request.number)
        self.pool.release(held.lease, held.computed, keep=True)

    def _complete(self, request: SglangRequest) -> None:
        self.pool.store(request.lease, request.computed)
        self.held[request.number] = request
        request.has_row = False  # the ledger would give up its KV with it
        self.ledger.free_rows += 1
        self.ledger.remove(request, keep=True)
        self.finished.append(request)


class SglangDestinationRequest(SglangRequest):
    """A request that decodes where it did not prefill: see `HandedOver`."""

    __slots__ = ("decode_admit_ms",)

    def __init__(
        self, number: int, content: Content, prompt_tokens: int, max_output_tokens: int, arrival_ms: float
    ) -> None:
        super().__init__(number, content, prompt_tokens, max_output_tokens, arrival_ms)
        self.decode_admit_ms = NAN


class SglangDestination(SglangHalf):
    """An SGLang engine that decodes prompts computed elsewhere; see `DestinationScheduler`.

    Attributes:
        built: requests whose prompts have arrived and that wait for a place in the batch.
    """

    request_type: type[EngineRequest] = SglangDestinationRequest

    def __init__(self, config: SglangConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.bars_fresh = False
        self.built: deque[SglangDestinationRequest] = deque()
        self._reserved: dict[int, int] = {}  # by number, room for the output of those that hold no place yet

    # --- the prompt

    def cached_tokens(self, content: Content, prompt_tokens: int) -> int:
        return self.pool.match(content, prompt_tokens).end

    def reserve(self, request: EngineRequest) -> int:
        assert isinstance(request, SglangRequest)
        if self.ledger.free_rows <= 0 or (self.waiting and self.waiting[0].preemptions):
            return NO_ROOM
        pool = self.pool
        node = pool.match(request.lease.content, request.prompt_tokens)
        missing = pool.pages(request.prompt_tokens) - node.end
        room = pool.free_tokens + pool.evictable_tokens - pool.unheld_tokens(node)
        output = min(request.max_output_tokens, RESERVED_DECODE_TOKENS)
        headroom = output + sum(self._reserved.values()) + RESERVED_DECODE_TOKENS * self.num_running
        is_alone = not self._reserved and not self.num_running
        if missing > room - (0 if is_alone else headroom):
            return NO_ROOM
        lease = request.lease
        lease.border = request.prompt_tokens - request.prompt_tokens % self.page_size
        pool.hold(lease, node)
        pool.evict_until(missing)
        pool.take(missing)
        self._reserved[request.number] = output
        return missing

    def cancel_reservation(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        del self._reserved[request.number]
        self.pool.release(request.lease, request.prompt_tokens, keep=False)

    def activate(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangDestinationRequest)
        request.ignore_eos = self.config.ignore_eos
        self.pool.store(request.lease, request.prompt_tokens - 1)  # the last token is computed here
        self.ledger.live[request.number] = request
        self.built.append(request)

    # --- the batch

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.built)

    def abort(self, request: EngineRequest, now_ms: float) -> None:
        if request not in self.built:
            super().abort(request, now_ms)
            return
        assert isinstance(request, SglangDestinationRequest)
        self.built.remove(request)
        self.ledger.account(request, now_ms)
        self.cancel_reservation(request)
        self.ledger.remove(request, keep=True)

    def decode_passes(self) -> int:
        if self.built and not self._settles_a_turn():
            self._promote()
        return super().decode_passes()

    def describe_wait(self) -> str:
        return f"{len(self.built)} handed over and without a place in the batch; {super().describe_wait()}"

    def _settles_a_turn(self) -> bool:
        """Whether the turn that begins has something to settle, after which requests are promoted."""
        last = self._last
        return self._chunked is not None or bool(self.ledger.departed) or (last is not None and bool(last.chunks))

    def open_turn(self) -> None:
        super().open_turn()
        self._promote()

    def _promote(self) -> None:
        """Requests whose prompts have arrived join the running batch, as long as all of it can decode."""
        pool = self.pool
        page = self.page_size
        running = self.running
        while self.built and self.ledger.free_rows > 0 and len(running.members) < self.max_running_requests:
            request = self.built[0]
            # the page of its last prompt token is taken again, by its first decode
            spare = page if (request.prompt_tokens - 1) % page == 0 else 0
            wanted = (len(running.members) + 1) * page
            if running.members and pool.free_tokens + pool.evictable_tokens + spare < wanted:
                return
            self.built.popleft()
            pool.free_tokens += spare
            del self._reserved[request.number]
            ends = self.passes.end_ms
            now_ms = max(request.marker_ms, ends[-1]) if ends else request.marker_ms
            request.note_wait(now_ms)
            request.decode_admit_ms = now_ms
            request.has_row = True
            request.prefilled = True
            request.computed = request.prompt_tokens - 1
            self.ledger.free_rows -= 1
            running.join_built(request)

    # --- prompts

    def _new_prefill(self, now_ms: float) -> Batch | None:
        is_barred = self.built or (self.bars_fresh and self.waiting and not self.waiting[0].preemptions)
        return None if is_barred and self._chunked is None else super()._new_prefill(now_ms)
