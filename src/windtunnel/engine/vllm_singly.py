"""A pass of vLLM v1's scheduler request by request: the textbook loop over the running requests, with preemption.

It is taken when budget, order or blocks could deny a decode its token; vllm.py says when, and what becomes of its
output. Rules of vLLM 0.33, as recorded pass by pass in tests/golden, or of an older release (engine/behaviour.py).
"""

from __future__ import annotations

from windtunnel.config.schema import VllmConfig
from windtunnel.engine.observer import BatchRow
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.vllm_admission import VllmAdmission, urgency
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape


class VllmSingly(VllmAdmission):
    """Batches that are chosen request by request.

    Attributes:
        ending: asynchronous: completed, and held until one more pass has been scheduled.
    """

    def __init__(self, config: VllmConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.ending: list[EngineRequest] = []  # completed, and held until one more pass has been scheduled
        self._starved: list[EngineRequest] = []  # decodes that the last pass left out: nothing of theirs is in flight
        self._rows: list[EngineRequest] = []  # all requests of the pass in flight, when it goes request by request
        self._decoders: list[EngineRequest] = []  # ... and the members that the group had before

    def _schedule_singly(self, now_ms: float) -> PassShape | None:
        """Request by request in the order of admission; whoever lacks a block takes those of the last one admitted.

        A pass may turn out empty: its only request preempted itself. The next one can admit it again. None if nothing
        can run; the group is dissolved in any case.
        """
        group = self.group
        pool = self.pool
        cap = self._chunk_cap()
        order = list(self.running.values())
        self._decoders = [request for request in order if request.decoding]
        for request in self._decoders:
            self.decodes.leave(request, now_ms)
        group.dissolve()
        self.decodes.suspended = True
        budget = self.max_num_batched_tokens
        rows: list[BatchRow] = []
        preempted = False
        i = 0
        while i < len(order) and budget > 0:
            request = order[i]
            i += 1
            tokens = self._chunk(request, cap, budget)
            if not tokens or (self.behaviour.knows_last_pass and request in self.ending):
                continue
            need = self._blocks_to(request, request.computed + tokens)
            while need > pool.free_blocks:
                victim = max(order, key=urgency) if self.by_priority else order[-1]
                place = order.index(victim) if self.by_priority else len(order) - 1
                del order[place]
                self._preempt(victim, request, now_ms)
                preempted = True
                if place < i:
                    i, budget = self._take_back(victim, rows, i, budget)
                if victim is request:
                    break
            if request.admission not in self.running:
                if self.by_priority and self.behaviour.continues_after_self_preemption:
                    continue
                break
            rows.append((request, request.computed, tokens))
            self._allocate(request, request.computed + tokens, need)
            budget -= tokens
        shape = PassShape()
        for request, start, tokens in rows:
            if request.decoding or request in self.ending:
                shape.add_decode(start + tokens)
            else:
                self._add_chunk(request, tokens, shape)
        if not preempted:
            before = len(self._chunks)
            self._admit(budget, cap, now_ms, shape)
            if self._passed_over:
                self._put_back()
            tail = zip(self._chunks, shape.chunk_starts, shape.chunk_tokens, strict=True)
            rows += list(tail)[before:]
        self._rows = [row[0] for row in rows]
        if self.observer is not None:
            self.observer.on_scheduled(rows)
        if self.is_async:
            left_out = [request for request in self._decoders if request.decoding and request not in self._rows]
            self._starved = left_out
        return shape if rows or preempted or shape.num_decodes else None

    def _take_back(self, victim: EngineRequest, rows: list[BatchRow], place: int, budget: int) -> tuple[int, int]:
        """The victim of a preemption stood before `place` in the order of the batch, where the walk is now.

        Returns where it goes on, and with which budget: what the victim was given in this pass is taken back.
        """
        for k, (request, _, tokens) in enumerate(rows):
            if request is victim:
                if self.behaviour.restores_victims:
                    del rows[k]
                    return place - 1, budget + tokens
                rows[k] = (victim, 0, tokens)  # it stays in the batch, with tokens that now count from its start
                victim.computed = tokens
                return place, budget
        return (place - 1 if self.behaviour.keeps_place else place), budget

    def _chunk(self, request: EngineRequest, cap: int, budget: int) -> int:
        """Tokens that a running request gets from the budget."""
        tokens = request.prompt_tokens + request.output_tokens - request.computed
        if 0 < cap < tokens:
            tokens = cap
        if tokens > budget:
            tokens = budget
        room = self.max_model_len - request.computed - 1
        if tokens > room:
            tokens = room
        return tokens if tokens > 0 else 0

    def _blocks_to(self, request: EngineRequest, computed: int) -> int:
        """Blocks that a request lacks for so many computed tokens; vLLM gives none beyond the model's length."""
        if computed > self.max_model_len:
            computed = self.max_model_len
        need = -(-computed // self.block_size) - request.table.owned
        return need if need > 0 else 0

    def _allocate(self, request: EngineRequest, computed: int, need: int) -> None:
        """The same for a request that may be decoding, which lacks `need` blocks."""
        table = request.table
        request.computed = computed
        if need:
            self.pool.take(need)
            table.owned += need
        if self.is_async and (request.decoding or request in self.ending) and request not in self._starved:
            computed -= 1  # the token that it computes is still in flight
        full = computed // self.block_size
        if self.caching and full > table.hashed:
            if table.content.sources:
                self.decodes.catch_up_sources(table.content)
            self.pool.store(table, full)

    def _preempt(self, victim: EngineRequest, requester: EngineRequest, now_ms: float) -> None:
        """Take all blocks of a running request; it is computed again when it is next admitted."""
        victim.note_preemption(now_ms)
        self.pool.release(victim.table)
        if victim.decoding:
            victim.decoding = False
        elif victim not in self.ending:
            self.prefilling.remove(victim)
        victim.computed = 0
        self._put_in_front(victim, requester)
