"""What vLLM v1's scheduler decides in one pass, without speculation.

There is no prefill or decode phase, only tokens to compute: running requests come first, in the order of their
admission, then waiting ones while the token budget, the batch and the KV blocks allow. Rules of vLLM 0.33, as
recorded pass by pass in tests/golden, or of an older release (engine/behaviour.py). A pass comes in two forms that
decide the same. `_schedule_group` treats all decodes as one group, which is legal if every decode gets its token
whatever else happens; otherwise the pass goes request by request (vllm_singly.py). Who is admitted is decided in
vllm_admission.py; prices are the business of none of them.
"""

from __future__ import annotations

from windtunnel.config.schema import VllmConfig
from windtunnel.engine.observer import PassObserver
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.vllm_offload import VllmOffload
from windtunnel.engine.vllm_prompt_passes import VllmPromptPasses
from windtunnel.engine.vllm_singly import VllmSingly
from windtunnel.engine.vllm_submission import refusal, safe_lengths
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape
from windtunnel.workload.content import Content

HAS_LEFT = -1  # in the place of a number of tokens


def _by_admission(request: EngineRequest) -> int:
    return request.admission


class VllmScheduler(VllmSingly):
    """The passes of one engine, over its queue, its batch and its KV blocks.

    Attributes:
        finished: requests that ended since the owner last took the list.
        first_tokens: likewise those whose first token was emitted, if the owner has put a list here.
        request_type: what `submit` takes.
        prompt_passes: those that one prompt has for itself; None if there are none to be told apart.
        safe_prompt_tokens, safe_total_tokens: a request whose prompt, and prompt and output together, are no longer
            is neither cut short nor refused.
    """

    request_type: type[EngineRequest] = EngineRequest

    def __init__(self, config: VllmConfig, passes: PassColumns, publish_events: bool = False) -> None:
        """`passes` are the engine's pass columns, where ends of passes are read; `publish_events` keeps the KV
        events of each pass in `pool.events`, in the order in which vLLM publishes them."""
        super().__init__(config, passes, publish_events)
        self.passes = passes
        self.finished: list[EngineRequest] = []
        self.first_tokens: list[EngineRequest] | None = None
        self.goes_on = True  # after a pass without a batch, whose output is processed at once, schedule the next one
        self._released = False  # whether the output just processed has freed anything
        self._inbox: list[EngineRequest] = []  # asynchronous: arrived when the next pass had been scheduled already
        self._is_resting = True  # the last pass had no batch, so the next arrival finds a scheduler that waits
        self._untold: list[tuple[EngineRequest, int]] = []  # asynchronous: what the tiers are yet to learn of passes
        self.safe_prompt_tokens, self.safe_total_tokens = safe_lengths(config)
        self.prompt_passes: VllmPromptPasses | None = VllmPromptPasses(self)

    # --- the front end

    def limit_output(self, prompt_tokens: int, output_tokens: int) -> int:
        """Output tokens that a request may have: the model's length ends it early."""
        return min(output_tokens, max(self.max_model_len - prompt_tokens, 0))

    def refusal_at_submission(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why a request can never be served; "" if it can."""
        return refusal(self.config, prompt_tokens, output_tokens)

    def submit_ahead(self, request: EngineRequest) -> None:
        """Put a request in the queue that the pass after the next one sees; the next one, if nothing runs."""
        if self._is_resting:
            self.submit(request)
        else:
            self._inbox.append(request)

    def hold_back(self, request: EngineRequest) -> None:
        """Let a request that was put in the queue a pass too early wait for that pass, unless it has left."""
        if request in self.waiting:
            self.waiting.remove(request)
            del self.decodes.by_output[request.origin]
            self._inbox.append(request)

    def abort(self, request: EngineRequest, now_ms: float) -> None:
        """Take a request out between two passes; its time is accounted for up to then."""
        if request in self._starved:
            self._starved.remove(request)
        if self.running.get(request.admission) is request:
            if request.decoding:
                self.decodes.leave(request, now_ms)
                self.group.forget(request)
                request.decoding = False
            else:
                self.prefilling.remove(request)
                request.note_wait(now_ms)
            del self.running[request.admission]
            self.pool.release(request.table)
        elif request in self._inbox:
            self._inbox.remove(request)
            request.note_wait(now_ms)
            return
        elif self.offload is None or not self.offload.tiers.give_up(request, now_ms):
            self.waiting.remove(request)
            request.note_wait(now_ms)
        if self.offload is not None:
            self.tell_tiers(self.offload, request, HAS_LEFT)
        self._head_refused = False
        del self.decodes.by_output[request.origin]

    def is_waiting(self, request: EngineRequest) -> bool:
        """Whether a request is not in the batch."""
        return self.running.get(request.admission) is not request

    def abandon(self, request: EngineRequest) -> None:
        """Nobody waits for the output of a request that has just completed: what it still holds is given up."""
        if request in self.ending:
            self.ending.remove(request)
            self._release(request)

    @property
    def num_waiting(self) -> int:
        waiting = len(self.waiting) + len(self._inbox)
        return waiting if self.offload is None else waiting + self.offload.num_parked

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left over from the passes before, and nobody looks at every pass."""
        if self.is_async and (self.ending or self._starved or self._inbox):
            return False
        return self.observer is None and not self.decodes.ordered

    def settle(self, now_ms: float) -> list[EngineRequest]:
        """The simulation stops: bring all requests up to date and return them, running before waiting.

        now_ms is the end of the last pass that happened; one in flight never ends. Who gave up during it is
        accounted for until then.
        """
        known = [*self.running.values(), *self.waiting, *self._inbox]
        remaining = [request for request in known if request not in self.ending]
        if self.offload is not None:
            remaining += self.offload.tiers.settle(now_ms)
        for request in remaining:
            if request.decoding and not self.decodes.suspended:
                self.decodes.leave(request, now_ms)
            elif request.marker_ms < now_ms:
                request.note_wait(now_ms)
            if request.cancelled_ms > request.marker_ms:
                if request.decoding and (not self.decodes.suspended or request in self._rows):
                    request.note_decodes(request.cancelled_ms)
                elif request in self._chunks:
                    request.note_chunk(request.marker_ms, request.cancelled_ms)
                else:
                    request.note_wait(request.cancelled_ms)
        return remaining

    # --- runs of decodes

    def decode_passes(self) -> int:
        """Passes ahead that decode one token for every running request and do nothing else.

        They end at the first completion, and before a pass that the free blocks do not cover.
        """
        offload = self.offload
        if offload is not None and (offload.tiers.landed or self._untold):
            if self.is_async:  # when one more pass has been decided
                return 0
            self._return_from_tiers(offload)
        group = self.group
        decodes = group.size
        if (
            not decodes
            or self.prefilling
            or (self.waiting and self.may_admit())
            or (self.is_async and (self.ending or self._starved))
            or decodes > self.max_num_batched_tokens
        ):
            return 0
        limit = group.finish_step - group.step if self.fast_forward else 1
        if self._inbox and self._deliver_in_run():
            limit = 1
        free_blocks = self.pool.free_blocks
        if decodes * (limit // self.block_size + 1) <= free_blocks:
            return limit
        return group.passes_within(free_blocks, limit)

    def commit_decodes(self, passes: int) -> None:
        """Do what `decode_passes` announced, up to `passes` of them, whose ends are recorded."""
        group = self.group
        if self.observer is not None:
            self._walk_decodes(passes, self.observer)
        elif self.decodes.ordered:
            self.decodes.advance_in_order(passes)
        else:
            self.decodes.advance(passes)
        if group.finish_step == group.step:
            self._complete_decodes()
        if self.observer is not None:
            self.observer.on_concluded()

    def blocks_for(self, passes: int) -> int:
        """KV blocks that the next `passes` passes of a run of decodes take."""
        return self.group.blocks_for(passes)

    def quiet_passes(self, passes: int) -> int:
        """How many of the next `passes` passes of a run evict no block for certain, before the first that may."""
        return self.group.passes_within(self.pool.blank, passes)

    def publish_quoted(self, content: Content, in_flight: bool) -> None:
        """Hash the blocks of `content` that requests here have generated, in passes that have ended."""
        self.decodes.catch_up_sources(content, in_flight)

    def _walk_decodes(self, passes: int, observer: PassObserver) -> None:
        """The same pass by pass, for an observer."""
        for done in range(passes):
            rows = [(r, r.base + self.group.step, 1) for r in self.running.values()]
            self.decodes.advance_one()
            self._observe_refusal(observer)
            observer.on_scheduled(rows)
            if done + 1 < passes:
                observer.on_concluded()

    # --- one pass

    def schedule(self, now_ms: float) -> PassShape | None:
        """Choose the batch of a pass that starts now; None if nothing can run."""
        shape = self._choose_batch(now_ms)
        return self._run_ahead(shape, now_ms) if self.is_async else shape

    def _choose_batch(self, now_ms: float) -> PassShape | None:
        shape = self._schedule_group(now_ms)
        if shape is None:
            shape = self._schedule_singly(now_ms)
            if shape is None:
                self._regroup()
        elif not shape.num_sampled and not shape.chunk_tokens:
            shape = None
        return shape

    def conclude(self, start_ms: float) -> None:
        """Process the output of the pass that `schedule` chose; it began at start_ms and its end is recorded."""
        if not self.decodes.suspended:
            if self.group.finish_step == self.group.step:
                self._complete_decodes()
            for request in self._chunks:
                self._conclude_chunk(request, start_ms)
        else:
            self._conclude_singly(start_ms)
        self._chunks = []
        if self.observer is not None:
            self.observer.on_concluded()

    def physical_tokens(self) -> int:
        """Distinct tokens in the blocks that running requests hold."""
        bs = self.block_size
        unfilled = 0
        for request in self.prefilling:
            unfilled += request.table.owned * bs - request.computed
        if not self.decodes.suspended:
            unfilled += self.group.unfilled_tokens()
        else:
            for request in self._decoders:
                unfilled += request.table.owned * bs - request.computed
        if self.offload is not None:
            unfilled += self.offload.in_transit_tokens()
        return (self.pool.num_blocks - self.pool.free_blocks) * bs - unfilled

    def _schedule_group(self, now_ms: float) -> PassShape | None:
        """All decodes as a group, then prompt chunks, then admissions. None, and nothing touched, if budget, order
        or blocks could deny a decode its token."""
        group = self.group
        decodes = group.size
        budget = self.max_num_batched_tokens - decodes
        prefilling = self.prefilling
        if budget < 0 or (prefilling and prefilling[0].admission < group.last_admission):
            return None
        if self.is_async and (self._starved or (self.ending and not self.behaviour.knows_last_pass)):
            return None
        bs = self.block_size
        cap = self._chunk_cap() if self.threshold_tokens else 0
        need = group.ring[group.step % bs] if decodes else 0
        chunks: list[tuple[EngineRequest, int]] = []
        for request in prefilling:
            if budget <= 0:
                break
            tokens = self._chunk(request, cap, budget)
            if tokens:
                chunks.append((request, tokens))
            budget -= tokens
            lacks = -(-(request.computed + tokens) // bs) - request.table.owned
            if lacks > 0:
                need += lacks
        if need > self.pool.free_blocks:
            return None
        observer = self.observer
        rows = [] if observer is None else [(r, r.base + group.step, 1) for r in self.running.values() if r.decoding]
        shape = PassShape(decodes, group.context_tokens)
        if decodes:
            self.decodes.advance_one()
        for request, tokens in chunks:
            self._compute(request, tokens, shape)
        if budget > 0 and self.waiting:
            self._admit(budget, cap, now_ms, shape)
            if self._passed_over:
                self._put_back()
        if observer is not None:
            chunk_rows = zip(self._chunks, shape.chunk_starts, shape.chunk_tokens, strict=True)
            observer.on_scheduled(rows + list(chunk_rows))
        return shape

    # --- output

    def _complete_decodes(self) -> None:
        group = self.group
        now_ms = self.passes.end_ms[-1]
        while group.finish_step == group.step:
            request = group.pop_finished()
            self.decodes.leave(request, now_ms)
            request.decoding = False
            self._complete(request)

    def _conclude_chunk(self, request: EngineRequest, start_ms: float) -> None:
        """A chunk that ends the prefill samples a token in the same pass."""
        ends = self.passes.end_ms
        end_ms = ends[-1]
        request.note_chunk(start_ms, end_ms)
        if self.offload is not None:
            self.tell_tiers(self.offload, request, request.computed)
        if request.computed < request.prompt_tokens + request.output_tokens:
            return
        self.prefilling.remove(request)
        if request.max_output_tokens == 0:
            self._complete(request)
            return
        request.output_tokens += 1
        last_pass = len(ends) - 1
        request.note_tokens(last_pass, last_pass, end_ms)
        if request.output_tokens < request.max_output_tokens:
            self.decodes.join(request)
            if self.first_tokens is not None and request.output_tokens == 1:
                self.first_tokens.append(request)
        else:
            self._complete(request)

    def _conclude_singly(self, start_ms: float) -> None:
        end_ms = self.passes.end_ms[-1]
        last_pass = len(self.passes.end_ms) - 1
        for request in self._rows:  # blocks are released in batch order, before anyone joins the group
            if request.origin not in self.decodes.by_output:
                continue  # scheduled although it had ended: released meanwhile
            if request.decoding:
                request.output_tokens += 1
                request.note_decodes(end_ms)
                request.note_tokens(last_pass, last_pass, end_ms)
                if request.output_tokens >= request.max_output_tokens:
                    request.decoding = False
                    self._complete(request)
            else:
                self._conclude_chunk(request, start_ms)
        for request in self._decoders:
            if request.decoding and request.marker_ms < end_ms:  # the budget left it out
                request.note_wait(end_ms)
        self._regroup()

    def _complete(self, request: EngineRequest) -> None:
        self.finished.append(request)
        if self.offload is not None:
            self.tell_tiers(self.offload, request, HAS_LEFT)
        if self.is_async:
            self.ending.append(request)
        else:
            self._release(request)

    def _release(self, request: EngineRequest) -> None:
        self.pool.release(request.table)
        if self.running.get(request.admission) is request:
            del self.running[request.admission]
        else:
            self.waiting.remove(request)  # preempted with its last token in flight
        del self.decodes.by_output[request.origin]
        self._head_refused = False

    def _run_ahead(self, shape: PassShape | None, now_ms: float) -> PassShape | None:
        """Asynchronous: what happens when a pass has been scheduled, and its batch has `shape`.

        A pass without a batch takes no time: its turn ends with the output that it waits for.
        """
        self._process_output()
        delivered = self._deliver()
        if shape is None and self.goes_on and (self._released or delivered):
            shape = self._choose_batch(now_ms)
        self._is_resting = shape is None
        return shape

    def _deliver(self) -> bool:
        """What came during a pass is seen from the one after the next on; whether there was anything."""
        inbox = self._inbox
        offload = self.offload
        if offload is not None and offload.tiers.landed:
            self._return_from_tiers(offload)
        elif not inbox:
            return False
        self._inbox = []
        for request in inbox:
            self.submit(request)
        return True

    def _deliver_in_run(self) -> bool:
        """The first pass of a run is scheduled without those who have just arrived; whether the next one may have them.

        If there is no first pass nothing is done.
        """
        group = self.group
        if group.ring[group.step % self.block_size] > self.pool.free_blocks:
            return False
        self._deliver()
        return self.may_admit()

    def _process_output(self) -> None:
        """Asynchronous: a pass has been scheduled, and now the output of the one before it is processed, in the order
        of its batch."""
        ending = self.ending
        self._released = bool(ending)
        late = ending + self._starved if self._starved else ending
        if len(late) > 1:
            late = sorted(late, key=_by_admission)
        for request in late:
            full = (request.prompt_tokens + request.output_tokens - 1) // self.block_size
            if self.caching and full > request.table.hashed and request.admission in self.running:
                self.pool.store(request.table, full)
            if request in ending:
                self._release(request)
        if ending:
            self.ending = []
        if self.offload is not None:
            self.tell_untold(self.offload)

    def tell_tiers(self, offload: VllmOffload, request: EngineRequest, tokens: int) -> None:
        """So many tokens of a request are computed, or it has left; asynchronous, that is known when the output of the
        pass is processed."""
        if self.is_async:
            self._untold.append((request, tokens))
        else:
            self._tell(offload, request, tokens)

    def tell_untold(self, offload: VllmOffload) -> None:
        """Asynchronous: the output of a pass is processed, which the tiers learn of."""
        if self._untold:
            untold = self._untold
            self._untold = []
            for request, tokens in untold:
                self._tell(offload, request, tokens)

    def _tell(self, offload: VllmOffload, request: EngineRequest, tokens: int) -> None:
        if tokens == HAS_LEFT:
            offload.note_end(request)
        else:
            offload.note_computed(request, request.table.content, tokens)

    def _regroup(self) -> None:
        """After a pass that went request by request."""
        self.decodes.suspended = False
        for request in self._decoders:
            if request.decoding:
                self.decodes.join(request)
        self._decoders = []
        self._rows = []
