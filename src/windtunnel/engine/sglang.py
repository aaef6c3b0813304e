"""What SGLang's scheduler decides in one turn of its loop.

A pass computes prompts or decodes; prompts win whenever a batch of them can be formed, and with mixed chunks the
decodes ride along. Memory is admitted strictly, the output to come included. Rules of SGLang 0.5.23, as recorded turn
by turn in tests/golden; docs/fidelity.md lists them. With overlap scheduling the result of a pass is processed one
turn after its launch: the next batch is formed without it. Prices are not this file's business.

Beside SGLang's own loop: `_open_turn` and `schedule` are get_next_batch_to_run, `_new_prefill` is get_new_batch_prefill
with `PrefillBudget` for its PrefillAdder, `_decode` is update_running_batch, `retract` is retract_decode, `conclude`
and `_process` are process_batch_result, `running.full` is batch_is_full.
"""

from __future__ import annotations

from collections import deque

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.kv.radix import RadixCache
from windtunnel.engine.new_token_ratio import NewTokenRatio
from windtunnel.engine.prefill_budget import PrefillBudget, Verdict
from windtunnel.engine.queue_order import QueueOrder
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.retraction import retract
from windtunnel.engine.running_batch import RunningBatch
from windtunnel.engine.sglang_ledger import SglangLedger
from windtunnel.engine.sglang_offload import SglangOffload
from windtunnel.engine.sglang_request import NO_CHUNKS, Batch, SglangRequest
from windtunnel.engine.sglang_submission import limit_output, refusal, safe_length
from windtunnel.engine.turn_observer import TurnObserver
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape
from windtunnel.workload.content import Content


class SglangScheduler:
    """The queue, the running batch and the radix cache of one engine.

    Attributes:
        waiting: requests to admit; a retracted one goes to the end.
        running: the batch that decodes; group: what its members have in common.
        finished: requests that ended since the owner last took the list.
        first_tokens: likewise those whose first token was emitted, if the owner has put a list here.
        ledger: what each request holds.
        pool: the KV pages.
        offload: the KV tiers behind the pool, if there are any.
        request_type: what `submit` takes.
    """

    request_type: type[EngineRequest] = SglangRequest

    def __init__(self, config: SglangConfig, passes: PassColumns, publish_events: bool = False) -> None:
        """`passes` are the engine's pass columns, where ends of passes are read; `publish_events` keeps the KV
        events of each turn in `pool.events`."""
        self.config = config
        self.page_size = config.page_size
        self.max_running_requests = config.max_running_requests
        self.chunk_tokens = None if config.chunked_prefill_size < 0 else config.chunked_prefill_size
        self.mixed = config.enable_mixed_chunk
        self.overlap = config.overlap_schedule
        self.fast_forward = config.fast_forward
        self.passes = passes
        caching = config.enable_prefix_caching
        self.pool = RadixCache(config.num_gpu_blocks, config.page_size, caching, config.eviction_policy, publish_events)
        policy = config.schedule_policy if caching or config.schedule_policy != "lpm" else "fcfs"
        self.order = QueueOrder(policy, self.pool, refreshes=caching and config.eviction_policy == "lru")
        self.ratio = NewTokenRatio(config.schedule_conservativeness)
        self.observer: TurnObserver | None = None
        self.offload: SglangOffload | None = None
        self.waiting: deque[SglangRequest] = deque()
        self.running = RunningBatch(config.page_size, self.ratio, config.overlap_schedule)
        self.group = self.running.group
        self.finished: list[EngineRequest] = []
        self.first_tokens: list[EngineRequest] | None = None
        self.ledger = SglangLedger(self.pool, self.running, passes, config.max_running_requests)
        self._chunked: SglangRequest | None = None  # its prompt is under way
        self._last: Batch | None = None  # of the turn before; with overlap it is in flight
        self._batch: Batch | None = None  # of the turn in progress
        self._shape = PassShape()
        self.safe_prompt_tokens = self.safe_total_tokens = safe_length(config)
        self._entries = 0

    def attach_tiers(self, tiers: Offload) -> None:
        """Put KV tiers behind the pool; before the first request."""
        self.offload = SglangOffload(tiers, self.pool)

    # --- the front end

    def limit_output(self, prompt_tokens: int, output_tokens: int) -> int:
        """Output tokens a request may have: the context length and the size of the pool end it early."""
        return limit_output(self.config, prompt_tokens, output_tokens)

    def refusal_at_submission(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why a request can never be served, with the smallest setting that would serve it; "" if it can."""
        return refusal(self.config, prompt_tokens, output_tokens)

    def share_outputs(self) -> None:
        """Requests may generate the same content: the tree takes it when they end, by its tokens anyway."""

    def submit(self, request: EngineRequest) -> None:
        """Put a request, of `request_type`, at the end of the queue."""
        assert isinstance(request, SglangRequest)
        request.lease.border = request.prompt_tokens - request.prompt_tokens % self.page_size
        request.ignore_eos = self.config.ignore_eos
        self.ledger.live[request.number] = request
        self._enqueue(request)

    def abort(self, request: EngineRequest, now_ms: float) -> None:
        """Take a request out between two turns; its time is accounted for up to then.

        What it has computed goes to the cache, as that of a request that ends by itself.
        """
        assert isinstance(request, SglangRequest)
        parked = self.offload is not None and self.offload.tiers.give_up(request, now_ms)
        self.ledger.account(request, now_ms)
        if not request.has_row and not parked:
            self.waiting.remove(request)
        if request.decoding:
            self.running.leave_group(request)
            self.group.forget(request)
        if request is self._chunked:
            self._chunked = None
        self.ledger.remove(request, keep=True)
        if self.offload is not None:
            self.offload.note_end(request)

    def submit_ahead(self, request: EngineRequest) -> None:
        self.submit(request)

    def is_waiting(self, request: EngineRequest) -> bool:
        """Whether a request has no KV yet."""
        assert isinstance(request, SglangRequest)
        return not request.has_row

    def abandon(self, request: EngineRequest) -> None:
        """Nobody waits for the output of a request that has just completed. It holds nothing any more."""

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) if self.offload is None else len(self.waiting) + self.offload.num_parked

    @property
    def num_running(self) -> int:
        return self.max_running_requests - self.ledger.free_rows

    @property
    def ran_last_turn(self) -> bool:
        """Whether the turn before launched a batch."""
        return self._last is not None

    def settle(self, now_ms: float) -> list[EngineRequest]:
        """The simulation stops: bring all requests up to date and return them, in the order of their submission."""
        if self.offload is not None:
            self.offload.tiers.settle(now_ms)
        remaining = list(self.ledger.live.values())
        for request in remaining:
            if request.marker_ms < now_ms:
                self.ledger.account(request, now_ms)
            if request.cancelled_ms > request.marker_ms:  # it was given up during the pass that never ends
                if request.decoding:
                    request.note_decodes(request.cancelled_ms)
                elif request.has_row and not request.prefilled:
                    request.note_chunk(request.marker_ms, request.cancelled_ms)
                else:
                    request.note_wait(request.cancelled_ms)
        return [*remaining]

    def describe_wait(self) -> str:
        """What the head of the queue waits for, for the error that is raised when nothing can run."""
        if not self.waiting:
            return "nothing waits"
        head = self.waiting[0]
        pool = self.pool
        return (
            f"{len(self.waiting)} waiting behind request {head.number}, which has "
            f"{head.prompt_tokens + head.output_tokens} tokens to compute and may generate "
            f"{head.max_output_tokens - head.output_tokens} more; {pool.free_tokens} tokens are free and "
            f"{pool.evictable_tokens} evictable of {pool.num_blocks * self.page_size}"
        )

    # --- runs of decodes

    def may_admit(self) -> bool:
        """Whether the next turn looks at the queue."""
        return bool(self.waiting) and not self.running.full

    def decode_passes(self) -> int:
        """Open a turn. Turns ahead, this one included, that decode the same requests and do nothing else.

        They end at the first completion, and before a pass that free and evictable pages do not cover.
        """
        if self.offload is not None and self.offload.tiers.landed:
            self.waiting.extendleft(reversed(self.offload.land()))
        last = self._last
        if self._chunked is not None or self.ledger.departed or (last is not None and last.chunks):
            self._open_turn(last)
        group = self.group
        if not group.size or self._chunked is not None or not self.fast_forward:
            return 0
        if self.waiting and not self.running.full:
            return 0
        if self.overlap and (last is None or last.enders or (last.chunks and self._has_effect(last))):
            return 0  # its result, or the lack of one, makes this turn different from the next
        return group.passes_within(self.pool.free_blocks, group.finish_step - group.step)

    def after_completion(self, passes: int) -> PassShape | None:
        """The pass that is sure to follow a run of `passes`, while the completions that end it are in flight.

        Those that go on decode. None if there is no such pass, or if anything else could happen in its turn.
        """
        group = self.group
        if passes < group.finish_step - group.step or self.waiting or self.running.full or self.observer is not None:
            return None
        ending = group.finishing()
        going_on = group.size - len(ending)
        if not going_on or group.passes_within(self.pool.free_blocks, passes + 1) <= passes:
            return None
        context_tokens = group.context_tokens + passes * going_on
        for request in ending:
            context_tokens -= request.base + group.step + 1
        return PassShape(going_on, context_tokens)

    def commit_decodes(self, passes: int) -> None:
        """Do what `decode_passes` and `after_completion` announced, up to `passes` of it.

        The ends of these passes are recorded; with overlap, all but that of the last one, which is in flight.
        """
        ends = self.passes.end_ms
        last = len(ends) if self.overlap else len(ends) - 1
        group = self.group
        goes_on = group.step + passes > group.finish_step
        if self.overlap and self._last is not None and self._last.enders:
            self.running.drop_enders()  # of the first part of this run, which was committed before
        if goes_on:
            passes -= 1
            last -= 1
        singly = 0
        if self.observer is not None:
            singly = passes - 1  # it sees pass by pass
        elif self.overlap and passes > 1 and self._last is not None and self._last.chunks:
            singly = 1  # a prompt goes to the tree before the second pass makes room for itself
        for number in range(last - passes + 1, last - passes + 1 + singly):
            self._launch_decodes(number, 1, self._fitting_decodes())
            self.conclude(ends[-1])
        passes -= singly
        page = self.page_size
        blocks = group.blocks_for(passes)
        # each pass wants a page a member to be free, and takes those it needs; so the last one wants most
        wanted = blocks - group.ring[(group.step + passes - 1) % page] + group.size
        self.pool.evict_until(wanted * page)
        self._launch_decodes(last, passes, blocks)
        self.conclude(ends[-1])
        if goes_on:
            self.running.drop_enders()
            self._launch_decodes(last + 1, 1, self._fitting_decodes())
            self.conclude(ends[-1])

    def _launch_decodes(self, last: int, passes: int, blocks: int) -> None:
        """The running batch decodes in `passes` passes, up to number `last`, and none of them retracts anybody."""
        self._batch = batch = Batch(last, self.passes.end_ms[-1], NO_CHUNKS, None)
        self.pool.take(blocks * self.page_size)
        self.running.launch(batch, passes)
        self.ratio.note_decodes(passes)
        if self.observer is not None:
            self.observer.on_scheduled(batch)

    def _has_effect(self, batch: Batch) -> bool:
        """Whether the result of a batch of prompts, which is in flight, may free pages that are in the tree already.

        With KV tiers it is written to them, when it is known; and a router looks at first tokens and at what is stored.
        """
        if self.offload is not None or self.first_tokens is not None:
            return True
        chunk = batch.chunks[0]
        return len(batch.chunks) > 1 or self.pool.knows_more(chunk.request.lease, chunk.end)

    def blocks_for(self, passes: int) -> int:
        """KV pages that the first `passes` passes of a run of decodes take."""
        group = self.group
        blocks = group.blocks_for(passes)
        if group.step + passes > group.finish_step:  # the last one goes on without those that are done
            slot = (group.step + passes - 1) % self.page_size
            blocks -= sum(-request.base % self.page_size == slot for request in group.finishing())
        return blocks

    def quiet_passes(self, passes: int) -> int:
        """How many of the next `passes` passes of a run evict no page for certain, before the first that may."""
        wanted = self.blocks_for(passes) + self.group.size
        return passes if wanted * self.page_size <= self.pool.free_tokens else 0

    def publish_quoted(self, content: Content, in_flight: bool) -> None:
        """Nothing: what a request generates is in the tree once it has ended."""

    # --- one turn

    def schedule(self, now_ms: float) -> PassShape | None:
        """Choose the batch of the pass that starts at now_ms, in the turn that `decode_passes` has opened.

        None if there is none. Without overlap, an empty one if the turn did nothing but give up a request.
        """
        batch = None
        if self.waiting or self._chunked is not None:
            batch = self._new_prefill(now_ms)
        if batch is None and self.running.members:
            batch = self._decode(now_ms)
        self._batch = batch
        if self.observer is not None:
            self.observer.on_scheduled(batch)
        if batch is not None:
            if batch.chunks and not self.overlap:
                self.ledger.note_admissions(batch)
            return self._shape
        self.ratio.reset()
        if self._last is None or not self.overlap:
            self._last = None
            self.running.log.forget_gaps()
            if self.finished:  # somebody was given up: the turn ends all the same, with this news
                return None if self.overlap else PassShape()
            if self.observer is not None:
                self.observer.on_concluded()
        return None

    def conclude(self, start_ms: float) -> None:
        """Process a result whose end is recorded: of the batch of this turn, with overlap of the one before."""
        result = batch = self._batch
        self._batch = None
        if self.overlap:
            result = self._last
            self.running.in_flight = batch
        self._last = batch
        if self.observer is not None:
            self._observe_result(self.observer, result)
        elif result is not None and (result.chunks or result.enders):
            self._process(result)

    def physical_tokens(self) -> int:
        """Distinct tokens in the pages that requests hold."""
        pool = self.pool
        held = pool.num_blocks * self.page_size - pool.free_tokens - pool.evictable_tokens
        if self.offload is not None:
            held -= self.offload.in_transit_tokens()
        return held - self.group.unfilled_tokens() - self.ledger.unfilled_tokens()

    def _open_turn(self, last: Batch | None) -> None:
        """What is settled before a batch is formed: the last chunk, who joins the running batch, who leaves it."""
        chunked = self._chunked
        if chunked is not None and chunked.chunk_end > chunked.prefix:
            self.pool.store(chunked.lease, chunked.chunk_end)
            chunked.prefix = chunked.chunk_end
        if last is not None and last.chunks:
            if self.overlap:
                self.ledger.note_admissions(last)  # it starts to run now
            self.running.merge(last)
        if self.ledger.departed:
            for request in self.ledger.departed:
                self.running.drop(request)
            self.ledger.departed = []

    # --- prompts

    def _new_prefill(self, now_ms: float) -> Batch | None:
        """Form a batch of prompts: the next chunk of the one under way, then waiting ones while the budget lasts."""
        running = self.running
        chunked = self._chunked
        if not running.members:
            running.full = False
        if (running.full or not self.waiting) and chunked is None:
            return None
        places = self.max_running_requests - len(running.members)
        if chunked is None and (places <= 0 or self.ledger.free_rows <= 0):
            running.full = True
            return None
        pool = self.pool
        if self.waiting:
            self.order.arrange(self.waiting)
        mixed_decodes = len(running.members) if self.mixed else 0
        budget = PrefillBudget(pool, running, self.config.max_prefill_tokens, self.chunk_tokens, mixed_decodes)
        rows = self.ledger.free_rows
        if chunked is not None:
            budget.go_on(chunked)
            rows += 1  # it has one
        if self.waiting:
            self._scan_queue(budget, min(places, rows))
        if not budget.chunks:
            return None
        pool.evict_until(budget.wanted_tokens)
        if budget.needed_tokens > pool.free_tokens:
            # SGLang stops here. Only the chunk of the prompt under way is in such a batch: others are refused in time.
            assert chunked is not None
            self._chunked = None
            running.full = False
            self.ledger.give_up(chunked)
            chunk = budget.chunks[0]
            self._fail(
                chunked,
                f"out of memory: tokens {chunk.start} to {chunk.end} of the prompt do not fit beside "
                f"{len(running.members)} running requests, which outgrew the output reserved for them (a higher "
                f"schedule_conservativeness, fewer max_running_requests or a larger pool would help)",
            )
            return None
        self._chunked = budget.unfinished
        return self._launch_prefill(budget, now_ms)

    def _scan_queue(self, budget: PrefillBudget, places: int) -> None:
        """Take requests from the head of the queue until one is refused."""
        running = self.running
        waiting = self.waiting
        chunks = budget.chunks
        most = self.config.prefill_max_requests
        if budget.state() is Verdict.NO_TOKENS:
            return
        while waiting:
            if len(chunks) >= places:
                running.full = True
            if running.full:
                return
            request = waiting[0]
            node = self.pool.match(request.lease.content, request.prompt_tokens + request.output_tokens - 1)
            request.prefix = node.end
            taken = len(chunks)
            if most is not None and taken >= most:
                return
            if self.offload is not None and budget.has_kv(request, node) and self.offload.parks(request, node):
                waiting.popleft()
                continue
            verdict = budget.add(request, node)
            if len(chunks) > taken:
                waiting.popleft()
                if self.offload is not None:
                    self.offload.admitted(request)
            if verdict is not Verdict.GO_ON:
                if verdict is Verdict.NO_KV:
                    running.full = bool(chunks) or bool(running.members)
                return

    def _launch_prefill(self, budget: PrefillBudget, now_ms: float) -> Batch:
        """Take the pages of a batch; with mixed chunks, let the running batch decode in it if that fits too."""
        chunks = budget.chunks
        unfinished = budget.unfinished
        batch = Batch(self._next_pass(), now_ms, chunks, unfinished)
        self._shape = shape = PassShape()
        for chunk in chunks:
            request = chunk.request
            sampled = request is not unfinished and request.max_output_tokens > 0
            shape.add_chunk(chunk.start, chunk.end - chunk.start, request.prompt_tokens, sampled)
        self.ledger.seat(chunks)
        self.pool.take(budget.needed_tokens)
        if self.mixed and self.running.members:
            self._mix_decodes(batch, shape)
        return batch

    def _mix_decodes(self, batch: Batch, shape: PassShape) -> None:
        """Let the running batch decode in a batch of prompts, if it fits as a whole."""
        running = self.running
        running.drop_enders()
        if not running.members:
            return
        blocks = self._fitting_decodes()
        if blocks >= 0:
            shape.add_decodes(self.group.size, self.group.context_tokens)
            self.pool.take(blocks * self.page_size)
            running.launch(batch, 1)
            running.extend_results_in_flight()

    # --- decodes

    def _decode(self, now_ms: float) -> Batch | None:
        """One token for each request of the running batch; if that does not fit, for those that a retraction leaves."""
        running = self.running
        ending = running.drop_enders()
        if not running.members:
            running.full = False
            return None
        blocks = self._fitting_decodes()
        if blocks >= 0:
            self.ratio.note_decodes(1)
        elif ending:  # their KV comes free with the result in flight
            running.full = False
            return None
        else:
            self._retract(now_ms)
            if not running.members:
                return None
            blocks = self._fitting_decodes()
        batch = Batch(self._next_pass(), now_ms, NO_CHUNKS, None)
        self._shape = PassShape(self.group.size, self.group.context_tokens)
        self.pool.take(blocks * self.page_size)
        running.launch(batch, 1)
        return batch

    def _retract(self, now_ms: float) -> None:
        """Some of the running batch wait again, behind all others, until a token of each of the rest fits."""
        running = self.running
        if running.in_flight is not None:
            now_ms = running.in_flight.start_ms  # which begins with this turn
        victims, outgrown = retract(running, self.pool, self.ratio, self.ledger, now_ms)
        for victim in victims:
            self._enqueue(victim)
            if self.observer is not None:
                self.observer.on_retraction(victim)
        if outgrown is not None:
            self._fail(
                outgrown,
                f"out of memory: {outgrown.prompt_tokens} prompt and {outgrown.output_tokens} output tokens fill all "
                f"{self.pool.num_blocks} KV blocks of {self.page_size} tokens, and nobody else runs",
            )

    def _fitting_decodes(self) -> int:
        """Make room for one token of each member, a page each to be safe; the pages that it takes, -1 if too many."""
        pool = self.pool
        group = self.group
        wanted = group.size * self.page_size
        if pool.free_tokens < wanted:
            pool.evict_until(wanted)
        blocks = group.ring[group.step % self.page_size]
        return blocks if blocks * self.page_size <= pool.free_tokens else -1

    # --- results

    def _process(self, batch: Batch) -> None:
        """The result of a pass is known: tokens, completions, and prompts go to the tree."""
        end_ms = self.passes.end_ms[batch.number]
        log = self.running.log
        if not batch.decodes:
            log.left_out_ms += end_ms - batch.start_ms
        for chunk in batch.chunks:
            request = chunk.request
            if request.gone or request.retracted:
                continue
            if self.offload is not None:
                self.offload.note_chunk(request, chunk.end)
            recovering = request.recovering
            is_first = request.first_pass < 0
            request.note_chunk(batch.start_ms, end_ms)
            if recovering:
                request.recovering = chunk.end < request.lost  # `computed` may be a chunk ahead
            if request is batch.unfinished:
                continue
            if request.max_output_tokens:
                request.note_tokens(batch.number, batch.number, end_ms)
                if not self.overlap:
                    request.output_tokens += 1
            if request.is_last_token or (not self.overlap and request.output_tokens >= request.max_output_tokens):
                self._complete(request)
                continue
            if is_first and self.first_tokens is not None:
                self.first_tokens.append(request)
            request.prefilled = True
            request.left_out_before_ms = log.left_out_ms
            self.pool.store(request.lease, request.chunk_end)
            request.prefix = request.chunk_end
        for request in batch.enders:
            if not request.gone:
                log.note_decodes(request, request.first_gap, request.left_out_before_ms, batch.number, end_ms)
                self._complete(request)

    def _observe_result(self, observer: TurnObserver, result: Batch | None) -> None:
        if result is not None:
            observer.on_result(result)
            self._process(result)
        observer.on_concluded()

    def _complete(self, request: SglangRequest) -> None:
        self.ledger.remove(request, keep=True)
        self.finished.append(request)
        if self.offload is not None:
            self.offload.note_end(request)

    # --- what several of these do

    def _next_pass(self) -> int:
        """Number of the pass that is launched next."""
        recorded = len(self.passes.end_ms)
        return recorded + 1 if self.running.in_flight is not None else recorded

    def _fail(self, request: SglangRequest, reason: str) -> None:
        request.failure = reason
        self.finished.append(request)
        if self.offload is not None:
            self.offload.note_end(request)
        if self.observer is not None:
            self.observer.on_failure(request)

    def _enqueue(self, request: SglangRequest) -> None:
        self._entries += 1
        request.entry = self._entries
        self.waiting.append(request)
