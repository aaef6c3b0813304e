"""Speculating requests as a group: the passes of `SpeculativePasses` that nobody has to be looked at for.

A pass goes as a group, and passes that only verify as a run, if every decode gets its 1 + K tokens and their blocks
whatever else happens. Who is decoded is then what it is in engine/speculative_passes.py, and so is everything else
that is decided: a pass that is not so plain goes request by request there, and so does every one if runs are off, the
order of hashed blocks shows (in KV events, or because outputs may be equal), or somebody reaches the end of the
model's length or of the pool. What a member knows, owns and has hashed follows from its verifications and is written
down when it leaves.
"""

from __future__ import annotations

import numpy as np

from windtunnel.config.schema import VllmConfig
from windtunnel.engine.acceptance import Acceptance, IntArray
from windtunnel.engine.observer import BatchRow, PassObserver
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.speculative_passes import SpeculativePasses
from windtunnel.engine.speculative_request import Row, SpeculativeRequest
from windtunnel.engine.verification_group import VerificationGroup
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape
from windtunnel.timing.verification import VerifyingShape
from windtunnel.workload.content import Content


def _by_admission(request: EngineRequest) -> int:
    return request.admission


def _by_place(row: BatchRow) -> int:
    return row[0].admission


class SpeculativeScheduler(SpeculativePasses):
    """The scheduler of an engine whose requests speculate.

    Attributes:
        verifying: the requests that advance as a group.
    """

    def __init__(
        self, config: VllmConfig, passes: PassColumns, acceptance: Acceptance, publish_events: bool = False
    ) -> None:
        super().__init__(config, passes, acceptance, publish_events)
        self.verifying = VerificationGroup(
            config.block_size, self.num_drafts, self.lookahead_tokens, int(config.async_scheduling)
        )
        self._width = 1 + self.num_drafts
        self._goes_singly = False  # the next pass: somebody who decodes has no place in the group
        self._reached_tokens = 0  # by the members, in the pass in flight

    # --- the front end

    def abort(self, request: EngineRequest, now_ms: float) -> None:
        if request.decoding:
            assert isinstance(request, SpeculativeRequest)
            self._leave(request)
            self.verifying.forget(request)
        super().abort(request, now_ms)

    def settle(self, now_ms: float) -> list[EngineRequest]:
        for request in self.running.values():
            if request.decoding:
                assert isinstance(request, SpeculativeRequest)
                self._note_tokens(request)
        return super().settle(now_ms)

    def may_admit(self) -> bool:
        """Likewise, and whether a cap on chunks, which those who wait count for, now cuts verifications short."""
        if not self.waiting:
            return False
        if self.threshold_tokens and not self._all_fit(self._chunk_cap()):
            return True
        size = self.verifying.size
        has_budget = size * self._width < self.max_num_batched_tokens
        return not self._head_refused and has_budget and size < self.max_num_seqs

    def physical_tokens(self) -> int:
        group = self.verifying
        return super().physical_tokens() - group.owned_blocks * self.block_size + self._reached_tokens

    # --- runs of passes that only verify

    def decode_passes(self) -> int:
        """Passes ahead that verify drafts of every running request and do nothing else.

        They end when the first member has its last token, or would go beyond its limit, and before a pass that the
        free blocks do not cover.
        """
        group = self.verifying
        limit = min(group.finish_step, group.limit_step) - group.step
        if not group.size or self.apart or self._goes_singly or limit <= 0 or not self._all_fit(self._chunk_cap()):
            return 0
        if self.waiting and self.may_admit():
            return 0
        if any(not row.request.decoding and row.request.origin in self.decodes.by_output for row in self._plan):
            return 0  # somebody who was preempted has output to be processed
        free_blocks = self.pool.free_blocks
        if self._inbox:
            if group.blocks_for(1) > free_blocks:
                return 0
            self._deliver()
            if self.may_admit():
                limit = 1
        return group.passes_within(free_blocks, limit)

    def commit_decodes(self, passes: int) -> None:
        group = self.verifying
        if self.observer is not None:
            self._walk(passes, self.observer)
        else:
            self.pool.take(group.advance(passes))
        self._plan = []
        self._finish_members()
        if self.observer is not None:
            self.observer.on_concluded()

    def blocks_for(self, passes: int) -> int:
        return self.verifying.blocks_for(passes)

    def quiet_passes(self, passes: int) -> int:
        return self.verifying.passes_within(self.pool.blank, passes)

    def contexts(self, passes: int) -> IntArray:
        """Positions that each of the next passes of a run reaches, summed over the members."""
        return self.verifying.contexts(passes)

    def physical_contexts(self, contexts: IntArray) -> IntArray:
        """Distinct tokens that the members hold in passes that reach so far: what they own grows as they do."""
        group = self.verifying
        held = self.pool.num_blocks - self.pool.free_blocks - group.owned_blocks
        return contexts + held * self.block_size

    def publish_quoted(self, content: Content, in_flight: bool) -> None:
        """With KV events every block is hashed when it is known."""

    def _walk(self, passes: int, observer: PassObserver) -> None:
        """Passes of a run one by one, for an observer."""
        for done in range(passes):
            batch = self._members_batch()
            self.pool.take(self.verifying.advance(1))
            observer.on_scheduled(batch)
            if done + 1 < passes:
                observer.on_concluded()

    # --- one pass

    def _choose_batch(self, now_ms: float) -> PassShape | None:
        batch = [] if self.observer is None else self._members_batch()
        shape = VerifyingShape()
        rows: list[Row] = []
        preempted = False
        if not self._walk_apart(rows, shape, now_ms):
            self._dissolve()
            batch = []
            self.verified = {}
            preempted = self._walk_batch(rows, now_ms)
        is_empty = not rows and not shape.num_decodes and not preempted
        for row in rows:
            self._launch(row, shape)
        if self.observer is not None:
            batch += [(row.request, row.start, row.tokens) for row in rows]
            self.observer.on_scheduled(sorted(batch, key=_by_place))
        if self.is_async:
            self._unprocessed = self._plan
        self._plan = rows
        return None if is_empty else shape

    def _walk_apart(self, rows: list[Row], shape: VerifyingShape, now_ms: float) -> bool:
        """The batch of a pass, where the members need no look; False, and nothing touched, if they might."""
        group = self.verifying
        cap = self._chunk_cap()
        if self._goes_singly or group.step >= group.limit_step or not self._all_fit(cap):
            return False
        size = group.size
        budget = self.max_num_batched_tokens - size * self._width
        need = group.blocks_for(1)
        with_prompts = False
        chosen: list[tuple[SpeculativeRequest, int, int]] = []
        for request in self._ordered_apart():
            is_ending = request in self.ending
            if request.admission < group.last_admission and not is_ending:
                return False  # it may take what a member needs
            tokens = self._wanted(request, cap, self.max_num_batched_tokens if is_ending else budget)
            if tokens <= 0 or self._ends_in_flight(request):
                continue
            if tokens > budget:
                return False
            blocks = self._need(request, request.computed + tokens, 0, self.lookahead_tokens)
            need += blocks
            budget -= tokens
            with_prompts = with_prompts or request.is_prefill
            chosen.append((request, tokens, blocks))
        if need > self.pool.free_blocks:
            return False
        self.verified = {}
        if size:
            self._reached_tokens = group.context_tokens()
            shape.add_verifications(size, self._reached_tokens, size * self.num_drafts)
            if self.observer is not None:
                self.verified = {r.number: self.num_drafts for r in self.running.values() if r.decoding}
            self.pool.take(group.advance(1))
        for request, tokens, blocks in chosen:
            self._take(request, blocks, request.computed + tokens)
            rows.append(self._row(request, tokens))
        self._admit_speculating(rows, cap, budget, with_prompts, now_ms, size)
        if self._passed_over:
            self._put_back()
        return True

    def _all_fit(self, cap: int) -> bool:
        """Whether budget and cap leave every member its tokens."""
        size = self.verifying.size
        return size * self._width <= self.max_num_batched_tokens and not (size and 0 < cap < self._width)

    def _ordered_apart(self) -> list[SpeculativeRequest]:
        """Running requests that are no members, in batch order."""
        apart = list(self.apart.values())
        if len(apart) > 1:
            apart.sort(key=_by_admission)
        return apart

    def _members_batch(self) -> list[BatchRow]:
        """What the next pass computes of the members."""
        group = self.verifying
        return [
            (request, group.start(request, group.done(request)), self._width)
            for request in self.running.values()
            if isinstance(request, SpeculativeRequest) and request.decoding
        ]

    def conclude(self, start_ms: float) -> None:
        self._reached_tokens = 0
        self._finish_members()
        self._conclude_rows(start_ms)
        self._regroup()
        if self.observer is not None:
            self.observer.on_concluded()

    # --- members

    def _regroup(self) -> None:
        """Whoever decodes becomes a member, if all of them may."""
        self._goes_singly = False
        joining = [r for r in self._ordered_apart() if not r.is_prefill and r not in self.ending]
        if not joining:
            return
        is_ordered = self.decodes.ordered or self.pool.log_events
        if not self.fast_forward or is_ordered or not all(map(self._may_join, joining)):
            self._goes_singly = True
            return
        now_ms = self.passes.end_ms[-1]
        limit = self._limit_tokens()
        for request in joining:
            request.draw(self.acceptance)
            start = request.computed
            if not self.verifying.join(request, start, limit):
                self._goes_singly = True  # and the others with it
                return
            self._note_gap(request, now_ms)
            request.emitting_from = len(self.passes.end_ms)
            del self.apart[request.admission]

    def _may_join(self, request: SpeculativeRequest) -> bool:
        """Whether its next pass verifies all of its drafts, right behind what is known or in flight."""
        tokens = request.known_tokens + request.drafts + request.pending - request.computed
        if request.drafts != self.num_drafts or tokens != self._width:
            return False
        return not request.stale and bool(request.pending) == self.is_async

    def _limit_tokens(self) -> int:
        """Position that the drafts of a member may reach: no length of model or pool cuts anything off before."""
        limit = min(self.max_model_len - 1, self.max_model_len - self.lookahead_tokens)
        if self.waives_lookahead:
            limit = min(limit, self.pool.num_blocks * self.block_size - self.lookahead_tokens)
        return limit

    def _dissolve(self) -> None:
        """Everybody leaves the group, between two passes."""
        if not self.verifying.size:
            return
        rows: list[Row] = []
        for request in self.running.values():
            if request.decoding:
                assert isinstance(request, SpeculativeRequest)
                row = self._leave(request)
                if row is not None:
                    rows.append(row)
        self.verifying.clear()
        self._plan[:0] = rows

    def _finish_members(self) -> None:
        """Those who have their last token with the pass that has just ended."""
        group = self.verifying
        rows: list[Row] = []
        while group.finish_step == group.step:
            request = group.pop_finished()
            row = self._leave(request)
            request.note_decoded()
            self.finished.append(request)
            if row is None:
                self._release(request)
            else:
                self.ending.append(request)
                rows.append(row)
        if rows:
            self._plan[:0] = rows

    def _leave(self, request: SpeculativeRequest) -> Row | None:
        """Take a member out between two passes, and write down what it is and has.

        Asynchronous, the output of its last pass is still to be processed: that is the row.
        """
        group = self.verifying
        done = group.done(request)
        if not done:
            group.leave(request)
            request.decoding = False
            self.apart[request.admission] = request
            return None
        self._hash_member(request, is_scheduled=False)
        owned = group.owned(request)
        start = group.start(request, done - 1)
        computed = group.start(request, done)
        emitted = self._note_tokens(request)
        lengths = request.lengths
        reached = request.verifications + done
        length = lengths.item(reached) - lengths.item(reached - 1)
        last_emitted = emitted - lengths.item(reached - 1) + lengths.item(request.verifications)
        group.leave(request)
        request.decoding = False
        self.apart[request.admission] = request
        request.verifications = reached
        request.output_tokens += emitted
        request.table.owned = owned
        request.drafts = self.num_drafts
        known = request.prompt_tokens + request.output_tokens
        if not self.is_async:
            request.known_tokens = known
            request.computed = known - 1
            return None
        request.known_tokens = known - last_emitted
        request.computed = computed
        request.pending = request.in_flight = self._width
        row = Row(request, self._width, self.num_drafts, is_admission=False)
        row.start = start
        row.samples = True
        row.accepted = length - 1
        row.emitted = last_emitted
        row.is_last = request.output_tokens >= request.max_output_tokens
        return row

    def _note_tokens(self, request: SpeculativeRequest) -> int:
        """Write down the tokens that a member got in passes that have ended; returns how many."""
        ends = self.passes.end_ms
        first_pass = request.emitting_from
        passes = len(ends) - first_pass
        if not passes:
            return 0
        first = request.verifications
        bursts = request.lengths[first : first + passes + 1]
        left = request.max_output_tokens - request.output_tokens
        emitted = min(bursts.item(-1) - bursts.item(0), left)
        request.decoded_ms = ends[-1]
        extra = np.diff(bursts) - 1
        extra[-1] -= bursts.item(-1) - bursts.item(0) - emitted
        last_pass = first_pass + passes - 1
        while last_pass > first_pass and ends[last_pass - 1] > request.cancelled_ms:
            last_pass -= 1
        request.note_tokens(first_pass, last_pass, ends[last_pass])
        if request.last_pass >= first_pass:
            extra = extra[: request.last_pass + 1 - first_pass]
            request.burst_extra.frombytes(extra.astype(np.uint16).tobytes())
        return emitted

    # --- hashing, which nobody sees before somebody looks

    def _hash_sources(self, content: Content) -> None:
        for origin in content.sources:
            other = self.decodes.by_output.get(origin)
            if other is not None and other.decoding:
                assert isinstance(other, SpeculativeRequest)
                self._hash_member(other, is_scheduled=True)

    def _hash_member(self, request: SpeculativeRequest, is_scheduled: bool) -> None:
        """Hash what a member has filled; `is_scheduled`: inside the scheduling of a pass that it is in already."""
        done = self.verifying.done(request)
        if not done:
            return
        lengths = request.lengths
        first = request.verifications
        left = request.max_output_tokens - request.output_tokens
        before = request.prompt_tokens + request.output_tokens - 1  # position of its first verification in the group
        if self.is_async:
            if not is_scheduled:
                tokens = before + lengths.item(first + done - 1) - lengths.item(first)
            elif done > 1:
                tokens = before + lengths.item(first + done - 2) - lengths.item(first) + 1 - self.hash_ahead
            else:
                tokens = request.known_tokens - self.hash_ahead
        elif is_scheduled or not self.behaviour.hashes_drafts:
            tokens = before + lengths.item(first + done - 1) - lengths.item(first) + 1 - self.hash_ahead
        else:
            tokens = before + min(lengths.item(first + done) - lengths.item(first), left)
        full = tokens // self.block_size
        if self.caching and full > request.table.hashed:
            request.table.owned = self.verifying.owned(request)
            self.pool.store(request.table, full)
