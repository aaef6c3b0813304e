"""What vLLM v1's scheduler decides when requests speculate: each verifies its drafts in the pass that decodes.

A decode is scheduled as 1 + K tokens; those of rejected drafts are not computed after all, and the blocks taken for
them stay with the request. With a draft model (eagle, mtp) every allocation takes blocks for K tokens more. Rules of
vLLM 0.33, or of an older release (engine/behaviour.py), as recorded in tests/golden. Passes here go request by
request; those that need not are in engine/speculative.py. Acceptance is an input (engine/acceptance.py). How requests
are queued, refused and aborted is as in engine/vllm.py; asynchronous, the output of a pass is processed when one more
has been scheduled.
"""

from __future__ import annotations

from windtunnel.config.schema import VllmConfig
from windtunnel.engine.acceptance import Acceptance
from windtunnel.engine.kv.block_pool import BlockPool
from windtunnel.engine.kv.lookahead_tree import LookaheadTree
from windtunnel.engine.kv.prefix_tree import NOTHING_CACHED, Match
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.speculative_request import Row, SpeculativeRequest
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.engine.vllm_admission import urgency
from windtunnel.record.columns import PassColumns
from windtunnel.timing.verification import VerifyingShape
from windtunnel.workload.content import Content


class SpeculativePasses(VllmScheduler):
    """A `VllmScheduler` whose requests speculate, pass by pass and request by request.

    Attributes:
        num_drafts: drafts that a request verifies in a pass, K; lookahead_tokens: slots reserved behind them.
        waives_lookahead: drafts and their blocks are left out where they would need more than all blocks there are,
            or more than the whole budget, which vLLM would wait for for ever.
        verified: drafts of the pass just scheduled, by request number, if somebody observes.
        emitted_tokens, emissions: tokens that clients have received, and how often a pass gave any to a request; the
            members of a group are still to be added.
    """

    request_type: type[EngineRequest] = SpeculativeRequest

    def __init__(
        self, config: VllmConfig, passes: PassColumns, acceptance: Acceptance, publish_events: bool = False
    ) -> None:
        super().__init__(config, passes, publish_events)
        speculation = config.speculation
        assert speculation is not None
        self.acceptance = acceptance
        self.num_drafts = speculation.num_speculative_tokens
        has_model = speculation.method != "ngram"
        self.lookahead_tokens = self.num_drafts if has_model else 0
        looks_ahead = has_model and self.behaviour.lookahead_hashes and speculation.lookahead_block_hashes
        self.hash_ahead = int(looks_ahead and self.caching)
        self.drops_last_hit = has_model and not self.hash_ahead
        if self.hash_ahead:
            self.pool = BlockPool(
                config.num_gpu_blocks,
                config.block_size,
                self.caching,
                publish_events,
                unhashed_first=self.behaviour.reuses_unhashed_first,
                tree=LookaheadTree(config.block_size),
            )
        self.prompt_passes = None
        self.prompt_passes = None
        self.waives_lookahead = True
        self._pool_tokens = config.num_gpu_blocks * config.block_size
        self.verified: dict[int, int] = {}
        self.emitted_tokens = 0
        self.emissions = 0
        self.apart: dict[int, SpeculativeRequest] = {}  # of `running`, those that no group takes care of
        self._plan: list[Row] = []  # of the pass in flight, without those of a group
        self._unprocessed: list[Row] = []  # of the pass before it, asynchronous

    # --- the front end

    def abort(self, request: EngineRequest, now_ms: float) -> None:
        assert isinstance(request, SpeculativeRequest)
        request.note_decoded()
        request.note_wait(now_ms)
        if request in self._inbox:
            self._inbox.remove(request)
            return
        self._release(request)

    def settle(self, now_ms: float) -> list[EngineRequest]:
        known = [*self.running.values(), *self.waiting, *self._inbox]
        remaining = [request for request in known if request not in self.ending]
        for request in remaining:
            assert isinstance(request, SpeculativeRequest)
            request.note_decoded()
            if request.marker_ms < now_ms:
                request.note_wait(now_ms)
            if request.cancelled_ms > request.marker_ms:
                if request.first_pass >= 0 and self.running.get(request.admission) is request:
                    request.note_decodes(request.cancelled_ms)
                else:
                    request.note_wait(request.cancelled_ms)
        return remaining

    def physical_tokens(self) -> int:
        """Distinct tokens in the blocks of running requests, the drafts of the pass in flight included."""
        bs = self.block_size
        reached = {row.request.admission: row.start + row.tokens for row in self._plan}
        unfilled = 0
        for request in self.apart.values():
            unfilled += max(request.table.owned * bs - reached.get(request.admission, request.computed), 0)
        return (self.pool.num_blocks - self.pool.free_blocks) * bs - unfilled

    # --- one pass

    def _walk_batch(self, rows: list[Row], now_ms: float) -> bool:
        """The batch of a pass, request by request; returns whether anyone was preempted."""
        cap = self._chunk_cap()
        budget, preempted, with_prompts = self._schedule_running(rows, cap, now_ms)
        if not preempted:
            self._admit_speculating(rows, cap, budget, with_prompts, now_ms)
            if self._passed_over:
                self._put_back()
        return preempted

    def _schedule_running(self, rows: list[Row], cap: int, now_ms: float) -> tuple[int, bool, bool]:
        """Tokens and drafts for the batch, with preemption; returns what is left of the budget, whether anyone was
        preempted, and whether a prompt is computed."""
        order = list(self.running.values())
        budget = self.max_num_batched_tokens
        preempted = with_prompts = False
        i = 0
        while i < len(order) and budget > 0:
            request = order[i]
            assert isinstance(request, SpeculativeRequest)
            tokens = self._wanted(request, cap, budget)
            if tokens <= 0 or self._ends_in_flight(request):
                i += 1
                continue
            need = self._need(request, request.computed + tokens, 0, self.lookahead_tokens)
            while need > self.pool.free_blocks:
                victim = max(order, key=urgency) if self.by_priority else order[-1]
                place = order.index(victim) if self.by_priority else len(order) - 1
                del order[place]
                self._preempt(victim, request, now_ms)
                preempted = True
                got = next((row for row in rows if row.request is victim), None)
                if self.behaviour.restores_victims:
                    if got is not None or (self.behaviour.keeps_place and place < i):
                        i -= 1
                    if got is not None:
                        rows.remove(got)
                        budget += got.tokens
                if victim is request:
                    break
            if request.admission not in self.running:
                if self.by_priority and self.behaviour.continues_after_self_preemption:
                    continue
                break
            self._take(request, need, request.computed + tokens)
            with_prompts = with_prompts or request.is_prefill
            rows.append(self._row(request, tokens))
            budget -= tokens
            i += 1
        return budget, preempted, with_prompts

    def _row(self, request: SpeculativeRequest, tokens: int) -> Row:
        """So many tokens of a running request; those beyond what it knows are drafts."""
        drafts = 0
        if request.drafts:
            drafts = tokens + request.computed - request.known_tokens - request.pending
            drafts = min(max(drafts, 0), request.drafts)
            request.drafts = 0
        return Row(request, tokens, drafts, is_admission=False)

    def _wanted(self, request: SpeculativeRequest, cap: int, budget: int) -> int:
        """Tokens that a running request gets from the budget."""
        computed = request.computed
        tokens = request.known_tokens + request.drafts + request.pending - computed
        if 0 < cap < tokens:
            tokens = cap
        if tokens > budget:
            tokens = budget
        if tokens > self.max_model_len - computed - 1:
            tokens = self.max_model_len - computed - 1
        if self.waives_lookahead and tokens > self._pool_tokens - computed:
            tokens = max(self._pool_tokens - computed, min(tokens, 1))
        return tokens

    def _ends_in_flight(self, request: SpeculativeRequest) -> bool:
        """Whether what is in flight is known to hold its last token, so that it is not scheduled again."""
        if not request.pending or not self.behaviour.knows_last_pass:
            return False
        return request.computed + 2 - request.pending >= request.prompt_tokens + request.max_output_tokens

    def _need(self, request: SpeculativeRequest, computed: int, hits: int, ahead: int) -> int:
        """Blocks that a request lacks for so many computed tokens and `ahead` more, beside `hits` that it will hold."""
        end = computed + ahead
        if self.waives_lookahead and end > self._pool_tokens:
            end = max(self._pool_tokens, computed)
        if end > self.max_model_len:
            end = self.max_model_len
        need = -(-end // self.block_size) - request.table.owned - hits
        return need if need > 0 else 0

    def _take(self, request: SpeculativeRequest, need: int, computed: int) -> None:
        if need:
            self.pool.take(need)
            request.table.owned += need
        self._hash(request, computed)

    def _hash(self, request: SpeculativeRequest, computed: int) -> None:
        """Hash the blocks that so many computed tokens fill, as far as what they are known by is known."""
        if not self.caching:
            return
        known = request.known_tokens - self.hash_ahead
        full = (computed if computed < known else known) // self.block_size
        table = request.table
        if full > table.owned:
            full = table.owned
        if full > table.hashed:
            if table.content.sources:
                self._hash_sources(table.content)
            self.pool.store(table, full)

    def _hash_sources(self, content: Content) -> None:
        """Hash what is still to be hashed of the outputs that this content quotes: here, nothing."""

    def _launch(self, row: Row, shape: VerifyingShape) -> None:
        """A row of a batch that is complete now."""
        request = row.request
        start = row.start = request.computed
        request.computed = end = start + row.tokens
        request.in_flight += row.tokens
        request.is_prefill = end < request.known_tokens + request.pending
        row.samples = end >= request.known_tokens and request.max_output_tokens > 0
        if row.drafts and self.observer is not None:
            self.verified[request.number] = row.drafts
        if self.is_async and not request.is_prefill:
            request.pending += 1 + row.drafts
            request.drafts = self.num_drafts if self.behaviour.knows_last_pass else 0  # 0.11 does not do both
        if start >= request.prompt_tokens and row.samples and row.tokens == 1 + row.drafts and not row.is_admission:
            shape.add_verification(end, row.drafts)
        else:
            shape.add_chunk(start, row.tokens, request.prompt_tokens, row.samples)

    def _preempt(self, victim: EngineRequest, requester: EngineRequest, now_ms: float) -> None:
        assert isinstance(victim, SpeculativeRequest)
        victim.note_decoded()
        victim.note_preemption(now_ms)
        self.pool.release(victim.table)
        victim.computed = victim.drafts = victim.pending = 0
        victim.stale = victim.in_flight
        del self.apart[victim.admission]
        self._put_in_front(victim, requester)

    # --- admission

    def _admit_speculating(
        self, rows: list[Row], cap: int, budget: int, with_prompts: bool, now_ms: float, group_size: int = 0
    ) -> None:
        """Admit waiting requests from the head of the queue; the first that does not fit stops it.

        `with_prompts`: a running request computes a prompt in this pass; `group_size` others are in it besides `rows`.
        """
        waiting = self.waiting
        bs = self.block_size
        while waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = waiting[0]
            assert isinstance(request, SpeculativeRequest)
            if request.stale:  # what it had in flight when it was preempted comes first
                self._passed_over.append(waiting.popleft())
                continue
            match, tokens, drafts = self._asked_by(request, cap, with_prompts, bool(rows or group_size))
            hit_tokens = match.blocks * bs
            if drafts and 1 + drafts > budget:
                break
            if not self.chunked and tokens > budget:
                if self.behaviour.stops_over_budget:
                    break
                self._passed_over.append(waiting.popleft())
                continue
            tokens = min(tokens, budget)
            need = self._need_at_admission(request, match, request.computed + hit_tokens + tokens)
            if need < 0:
                # as in VllmAdmission; without padding it may need less
                self._head_refused = self.fast_forward and not request.table.content.sources and not drafts
                if self.observer is not None:
                    self.observer.on_refusal(request, hit_tokens, self.pool.free_blocks)
                break
            waiting.popleft()
            self.pool.hold(request.table, match)
            self._take(request, need, request.computed + hit_tokens + tokens)
            request.computed += hit_tokens
            self._admissions += 1
            request.admission = self._admissions
            self.running[request.admission] = request
            self.apart[request.admission] = request
            request.note_admission(now_ms, hit_tokens)
            if self.observer is not None:
                self.observer.on_admission(request, hit_tokens)
            rows.append(Row(request, tokens, drafts, is_admission=True))
            budget -= tokens

    def _asked_by(
        self, request: SpeculativeRequest, cap: int, with_prompts: bool, with_others: bool
    ) -> tuple[Match, int, int]:
        """What a request of the queue hits, the tokens it asks for if admitted now, and how many of them are drafts."""
        match = self._hits(request)
        hit_tokens = match.blocks * self.block_size
        tokens = request.known_tokens - hit_tokens - request.computed
        pads = self.behaviour.pads_admission and tokens == 1 and not with_prompts
        pads = pads and (with_others or hit_tokens > 0)
        if self.waives_lookahead and 1 + self.num_drafts > self.max_num_batched_tokens:
            pads = False
        drafts = self.num_drafts if pads and hit_tokens + self.num_drafts + 2 <= self.max_model_len else 0
        tokens += drafts
        return match, cap if 0 < cap < tokens else tokens, drafts

    def _hits(self, request: SpeculativeRequest) -> Match:
        if request.computed:  # only if the release does not restore victims
            return NOTHING_CACHED
        content = request.table.content
        if content.sources:
            self._hash_sources(content)
        match = self.pool.match(content, (request.known_tokens - 1) // self.block_size)
        if self.drops_last_hit and match.blocks:
            match = self.pool.match(content, match.blocks - 1)
        return match

    def _need_at_admission(self, request: SpeculativeRequest, match: Match, computed: int) -> int:
        """Blocks that an admission takes from the free queue; -1 if they, or the whole prompt, do not fit."""
        spare = self.pool.free_blocks - match.idle_blocks
        if self.running:
            spare -= self.watermark_blocks
        if self.reserve_full_isl and self._need(request, request.known_tokens, match.blocks, 0) > spare:
            return -1
        ahead = self.lookahead_tokens if self.behaviour.lookahead_at_admission else 0
        need = self._need(request, computed, match.blocks, ahead)
        return need if need <= spare else -1

    # --- output

    def _conclude_rows(self, start_ms: float) -> None:
        """The rows of the pass in flight, which began at start_ms and has ended."""
        number = len(self.passes.end_ms) - 1
        end_ms = self.passes.end_ms[number]
        for row in self._plan:
            request = row.request
            if request.origin not in self.decodes.by_output or request in self.ending:
                continue
            if row.start >= request.prompt_tokens and not request.recovering:
                self._note_gap(request, start_ms)
                request.decoded_ms = end_ms
            else:
                request.note_chunk(start_ms, end_ms)
            if row.samples:
                self._emit(row, number, end_ms)
            elif request.max_output_tokens == 0 and not request.is_prefill:
                row.is_last = True
            if row.is_last:
                request.note_decoded()
                self.finished.append(request)
                self.ending.append(request)
        if not self.is_async:
            self._process(self._plan)
            self._plan = []

    def _note_gap(self, request: SpeculativeRequest, start_ms: float) -> None:
        """A request decodes in a pass from start_ms on, and has perhaps been left out of passes before."""
        if request.decoded_ms > request.marker_ms:
            if request.decoded_ms >= start_ms:
                return
            request.note_decoded()
        if request.marker_ms < start_ms:
            request.note_wait(start_ms)

    def _emit(self, row: Row, number: int, end_ms: float) -> None:
        """The tokens of a row: the drafts that are accepted, and one that the model adds."""
        request = row.request
        if row.drafts and not row.is_admission:
            row.accepted = min(request.length(self.acceptance) - 1, row.drafts)
            request.verifications += 1
        row.emitted = min(row.accepted + 1, request.max_output_tokens - request.output_tokens)
        request.output_tokens += row.emitted
        row.is_last = request.output_tokens >= request.max_output_tokens
        request.note_tokens(number, number, end_ms)
        if not end_ms > request.cancelled_ms:
            request.burst_extra.append(row.emitted - 1)
            self.emitted_tokens += row.emitted
            self.emissions += 1
        if self.first_tokens is not None and request.output_tokens == row.emitted and not row.is_last:
            self.first_tokens.append(request)

    def _process_output(self) -> None:
        # rejected drafts give room too, below the model's length
        self._released = bool(self._unprocessed)
        if self._unprocessed:
            self._process(self._unprocessed)
            self._unprocessed = []

    def _process(self, rows: list[Row]) -> None:
        """The output of a pass, in the order of its batch: drafts that were rejected are not computed after all."""
        for row in rows:
            request = row.request
            if request.origin not in self.decodes.by_output or request.decoding:
                continue
            is_stale = request.stale > 0
            request.in_flight -= row.tokens
            if is_stale:
                request.stale -= row.tokens
            if row.samples:
                self._settle_tokens(row, is_stale)
            if row.is_last:
                self.ending.remove(request)
                self._release(request)
        if not self.is_async:
            for row in rows:
                row.request.drafts = 0 if row.request.is_prefill else self.num_drafts

    def _settle_tokens(self, row: Row, is_stale: bool) -> None:
        request = row.request
        rejected = row.drafts - row.accepted
        if not is_stale:
            if request.computed:
                request.computed -= rejected
            if request.pending:
                request.pending -= rejected
        was_pending = request.pending > 0
        request.known_tokens += row.emitted
        if is_stale:
            return
        request.computed -= row.accepted + 1 - row.emitted
        if request.pending:
            request.pending -= row.accepted + 1
        if self.running.get(request.admission) is request and (was_pending or self.behaviour.hashes_drafts):
            self._hash(request, request.computed - request.in_flight)

    def _release(self, request: EngineRequest) -> None:
        super()._release(request)
        self.apart.pop(request.admission, None)
