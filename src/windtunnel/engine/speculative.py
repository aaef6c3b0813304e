"""Speculating requests as a group: the passes of `SpeculativePasses` that nobody has to be looked at for.

A pass goes as a group, and passes that only verify as a run, if every decode gets its 1 + K tokens and their blocks
whatever else happens. Who is decoded is then what it is in engine/speculative_passes.py, and so is everything else
that is decided: a pass that is not so plain goes request by request there, and so does every one if runs are off, the
order of hashed blocks shows (in KV events, or because outputs may be equal), or somebody reaches the end of the
model's length or of the pool. What a member knows, owns and has hashed follows from its verifications and is written
down when it leaves.
"""

from __future__ import annotations

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
                self._note_tokens(request, len(self.passes.end_ms) - request.emitting_from)
        return super().settle(now_ms)

    def accept_length(self, passes: int) -> float:
        """Tokens per request and pass that emitted any, in the first so many passes of the engine; 1 before any."""
        tokens, emissions = self.emitted_tokens, self.emissions
        for request in self.running.values():
            if request.decoding and passes > request.emitting_from:
                assert isinstance(request, SpeculativeRequest)
                emitting = passes - request.emitting_from
                first = request.verifications
                gained = request.lengths.item(first + emitting) - request.lengths.item(first)
                tokens += min(gained, request.max_output_tokens - request.output_tokens)
                emissions += emitting
        return tokens / emissions if emissions else 1.0

    def may_admit(self) -> bool:
        """Likewise, and whether a cap on chunks, which those who wait count for, now cuts verifications short."""
        if not self.waiting:
            return False
        if self.threshold_tokens and not self._all_fit():
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
        if not group.size or self.apart or self._goes_singly:
            return 0
        limit = group.finish_step if group.finish_step < group.limit_step else group.limit_step
        limit -= group.step
        if limit <= 0 or (self.waiting and self.may_admit()) or not self._all_fit():
            return 0
        for row in self._plan:
            if not row.request.decoding and row.request.origin in self.decodes.by_output:
                return 0  # it was preempted, and has output to be processed
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
        if group.finish_step == group.step:
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
        self.verified = self._members_drafts()
        for done in range(passes):
            batch = self._members_batch()
            self.pool.take(self.verifying.advance(1))
            self._observe_refusal(observer)
            observer.on_scheduled(batch)
            if done + 1 < passes:
                observer.on_concluded()

    def _observe_refusal(self, observer: PassObserver) -> None:
        budget = self.max_num_batched_tokens - self.verifying.size * self._width
        if not self.waiting or budget <= 0 or len(self.running) >= self.max_num_seqs:
            return
        head = self.waiting[0]
        assert isinstance(head, SpeculativeRequest)
        cap = self._chunk_cap() if self.threshold_tokens else 0
        match, tokens, drafts = self._asked_by(head, cap, with_prompts=False, with_others=True)
        if (drafts and 1 + drafts > budget) or not (self.chunked or tokens <= budget):
            return
        hit_tokens = match.blocks * self.block_size
        if self._need_at_admission(head, match, head.computed + hit_tokens + min(tokens, budget)) < 0:
            observer.on_refusal(head, hit_tokens, self.pool.free_blocks)

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
        size = group.size
        if self._goes_singly or group.step >= group.limit_step or (size and not self._all_fit()):
            return False
        cap = self._chunk_cap() if self.threshold_tokens else 0
        budget = self.max_num_batched_tokens - size * self._width
        need = group.blocks_for(1)
        with_prompts = False
        chosen: list[tuple[SpeculativeRequest, int, int]] = []
        for request in self._ordered_apart() if self.apart else ():
            is_ending = bool(self.ending) and request in self.ending
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
        if self.observer is not None:
            self.verified = self._members_drafts()
        if size:
            self._reached_tokens = group.context_tokens()
            shape.add_verifications(size, self._reached_tokens, size * self.num_drafts)
            taken = group.advance(1)
            if taken:
                self.pool.take(taken)
        for request, tokens, blocks in chosen:
            self._take(request, blocks, request.computed + tokens)
            rows.append(self._row(request, tokens))
        if self.waiting and budget > 0:
            self._admit_speculating(rows, cap, budget, with_prompts, now_ms, size)
            if self._passed_over:
                self._put_back()
        return True

    def _all_fit(self) -> bool:
        """Whether budget and cap leave every member its tokens."""
        if self.verifying.size * self._width > self.max_num_batched_tokens:
            return False
        return not self.threshold_tokens or not 0 < self._chunk_cap() < self._width

    def _ordered_apart(self) -> list[SpeculativeRequest]:
        """Running requests that are no members, in batch order."""
        apart = list(self.apart.values())
        if len(apart) > 1:
            apart.sort(key=_by_admission)
        return apart

    def _members_drafts(self) -> dict[int, int]:
        """Drafts of each member in a pass, by request number."""
        return {request.number: self.num_drafts for request in self.running.values() if request.decoding}

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
        if self.verifying.finish_step == self.verifying.step:
            self._finish_members()
        if self._plan:
            self._conclude_rows(start_ms)
        self._goes_singly = False
        if self.apart:
            self._regroup()
        if self.observer is not None:
            self.observer.on_concluded()

    # --- members

    def _regroup(self) -> None:
        """Whoever decodes becomes a member, if all of them may."""
        ending = self.ending
        joining = [r for r in self._ordered_apart() if not (r.is_prefill or (ending and r in ending))]
        if not joining:
            return
        if not self.fast_forward or self.decodes.ordered or self.pool.log_events:
            self._goes_singly = True
            return
        for request in joining:
            if not self._may_join(request):
                self._goes_singly = True
                return
        number = len(self.passes.end_ms)
        now_ms = self.passes.end_ms[-1]
        limit = self._limit_tokens()
        for request in joining:
            request.draw(self.acceptance)
            if not self.verifying.join(request, request.computed, limit):
                self._goes_singly = True  # and the others with it
                return
            if request.marker_ms != now_ms:
                self._note_gap(request, now_ms)
            request.emitting_from = number
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
        done = group.step - request.base
        self.apart[request.admission] = request
        if not done:
            group.leave(request)
            request.decoding = False
            return None
        self._hash_member(request, is_scheduled=False)
        reached = request.verifications + done
        emitted = self._note_tokens(request, done)
        last_emitted = emitted - request.lengths.item(reached - 1) + request.lengths.item(request.verifications)
        if self.is_async:
            start = group.start(request, done - 1)
            request.computed = group.start(request, done)
        request.table.owned = group.leave(request)
        request.decoding = False
        request.verifications = reached
        request.output_tokens += emitted
        request.drafts = self.num_drafts
        known = request.prompt_tokens + request.output_tokens
        if not self.is_async:
            request.known_tokens = known
            request.computed = known - 1
            return None
        request.known_tokens = known - last_emitted
        request.pending = request.in_flight = self._width
        row = Row(request, self._width, self.num_drafts, is_admission=False)
        row.start = start
        row.samples = True
        row.accepted = request.accepted.item(reached - 1)
        row.emitted = last_emitted
        row.is_last = request.output_tokens >= request.max_output_tokens
        return row

    def _note_tokens(self, request: SpeculativeRequest, passes: int) -> int:
        """Write down the tokens that a member got in its first passes in here, which have ended; returns how many."""
        if not passes:
            return 0
        ends = self.passes.end_ms
        first_pass = request.emitting_from
        first = request.verifications
        emitted = request.lengths.item(first + passes) - request.lengths.item(first)
        beyond = emitted - request.max_output_tokens + request.output_tokens
        last_pass = first_pass + passes - 1
        request.decoded_ms = ends[last_pass]
        while last_pass > first_pass and ends[last_pass - 1] > request.cancelled_ms:
            last_pass -= 1
        request.note_tokens(first_pass, last_pass, ends[last_pass])
        if request.last_pass >= first_pass:
            received = request.last_pass + 1 - first_pass
            request.burst_extra.frombytes(request.accepted[first : first + received].tobytes())
            self.emissions += received
            self.emitted_tokens += request.lengths.item(first + received) - request.lengths.item(first)
        if beyond > 0:
            emitted -= beyond
            if request.last_pass == first_pass + passes - 1:
                request.burst_extra[-1] -= beyond
                self.emitted_tokens -= beyond
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
        at = request.verifications + done
        lengths = request.lengths
        base = request.prompt_tokens + request.output_tokens - 1 - lengths.item(request.verifications)
        if self.is_async:
            if not is_scheduled:
                tokens = base + lengths.item(at - 1)
            elif done > 1:
                tokens = base + lengths.item(at - 2) + 1 - self.hash_ahead
            else:
                tokens = request.known_tokens - self.hash_ahead
        elif is_scheduled or not self.behaviour.hashes_drafts:
            tokens = base + lengths.item(at - 1) + 1 - self.hash_ahead
        else:
            tokens = min(base + lengths.item(at), request.prompt_tokens + request.max_output_tokens - 1)
        full = tokens // self.block_size
        if self.caching and full > request.table.hashed:
            request.table.owned = self.verifying.owned(request)
            self.pool.store(request.table, full)
