"""Which prompts SGLang's next pass computes, and the state on which that depends: queue, running batch and KV pages.

The next chunk of the prompt under way comes first, then waiting requests, in the order of the queue until one is
refused. Memory is admitted strictly, the output to come included; once KV or places have run out, nobody is asked again
before the running batch shrinks (`running.full`, SGLang's batch_is_full). Rules of SGLang 0.5.23, as recorded turn by
turn in tests/golden. Who decodes is decided in sglang_turn.py.
"""

from __future__ import annotations

from collections import deque

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.kv.radix import RadixCache
from windtunnel.engine.new_token_ratio import NewTokenRatio
from windtunnel.engine.prefill_budget import UNLIMITED_TOKENS, PrefillBudget
from windtunnel.engine.queue_order import QueueOrder
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.running_batch import RunningBatch
from windtunnel.engine.sglang_ledger import SglangLedger
from windtunnel.engine.sglang_offload import SglangOffload
from windtunnel.engine.sglang_request import Batch, SglangRequest
from windtunnel.engine.turn_observer import TurnObserver
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape


class SglangPrefill:
    """The queue, the running batch and the radix cache of one engine, and the prompts on their way through them.

    Attributes:
        waiting: requests to admit; a retracted one goes to the end.
        running: the batch that decodes; group: what its members have in common.
        finished: requests that ended since the owner last took the list.
        ledger: what each request holds.
        pool: the KV pages.
        offload: the KV tiers behind the pool, if there are any.
    """

    def __init__(self, config: SglangConfig, passes: PassColumns, publish_events: bool = False) -> None:
        """`passes` are the engine's pass columns, where ends of passes are read; `publish_events` keeps the KV
        events of each turn in `pool.events`."""
        self.config = config
        self.page_size = config.page_size
        self.max_running_requests = config.max_running_requests
        self.max_prefill_tokens = config.max_prefill_tokens
        self.prefill_max_requests = config.prefill_max_requests
        self.chunk_tokens = UNLIMITED_TOKENS if config.chunked_prefill_size < 0 else config.chunked_prefill_size
        self.mixed = config.enable_mixed_chunk
        self.overlap = config.overlap_schedule
        self.passes = passes
        caching = config.enable_prefix_caching
        self.pool = RadixCache(config.num_gpu_blocks, config.page_size, caching, config.eviction_policy, publish_events)
        policy = config.schedule_policy if caching or config.schedule_policy != "lpm" else "fcfs"
        self.order = QueueOrder(policy, self.pool, refreshes=caching and config.eviction_policy == "lru")
        self.ratio = NewTokenRatio(config.schedule_conservativeness)
        self.observer: TurnObserver | None = None
        self.offload: SglangOffload | None = None
        self.waiting: deque[SglangRequest] = deque()
        self.running = self._make_batch()
        self.group = self.running.group
        self.budget = PrefillBudget(self.pool, self.running, self.max_prefill_tokens, self.chunk_tokens)
        self.finished: list[EngineRequest] = []
        self.ledger = SglangLedger(self.pool, self.running, passes, config.max_running_requests)
        self._chunked: SglangRequest | None = None  # its prompt is under way
        self._shape = PassShape()  # of the batch that was formed last
        self._entries = 0

    def _make_batch(self) -> RunningBatch:
        return RunningBatch(self.page_size, self.ratio, self.overlap)

    def _enqueue(self, request: SglangRequest) -> None:
        self._entries += 1
        request.entry = self._entries
        self.waiting.append(request)

    def _fail(self, request: SglangRequest, reason: str) -> None:
        request.failure = reason
        self.finished.append(request)
        if self.offload is not None:
            self.offload.note_end(request)
        if self.observer is not None:
            self.observer.on_failure(request)

    def _next_pass(self) -> int:
        """Number of the pass that is launched next."""
        recorded = len(self.passes.end_ms)
        return recorded if self.running.in_flight is None else recorded + 1

    # --- the batch

    def _new_prefill(self, now_ms: float) -> Batch | None:
        """Form the batch of prompts of the pass that starts now, and take its pages."""
        running = self.running
        chunked = self._chunked
        waiting = self.waiting
        num_running = len(running.members)
        if not num_running:
            running.full = False
        places = self.max_running_requests - num_running
        rows = self.ledger.free_rows
        if chunked is None:
            if running.full or not waiting:
                return None
            if places <= 0 or rows <= 0:
                running.full = True
                return None
        else:
            rows += 1  # it has one
        if waiting:
            self.order.arrange(waiting)
        pool = self.pool
        budget = self.budget
        budget.open(num_running if self.mixed else 0)
        if chunked is not None:
            budget.continue_prompt(chunked)
        if waiting and (budget.goes_on() or budget.lacks_kv):
            self._scan_queue(budget, places if places < rows else rows)
        chunks = budget.chunks
        if not chunks:
            return None
        if pool.free_tokens < budget.wanted_tokens:
            pool.evict_until(budget.wanted_tokens)
            if pool.free_tokens < budget.needed_tokens:
                self._outgrow()
                return None
        pool.take(budget.needed_tokens)
        self._chunked = budget.unfinished
        self.ledger.free_rows -= budget.num_admitted
        self._shape = budget.shape
        batch = Batch(self._next_pass(), now_ms, chunks, budget.unfinished)
        if self.mixed and num_running:
            self._mix_decodes(batch, budget.shape)
        return batch

    def _scan_queue(self, budget: PrefillBudget, places: int) -> None:
        """Take requests from the head of the queue until one is refused."""
        running = self.running
        waiting = self.waiting
        offload = self.offload
        most = self.prefill_max_requests
        chunks = budget.chunks
        while waiting:
            taken = len(chunks)
            if taken >= places:
                running.full = True
            if running.full:
                return
            request = waiting[0]
            node = self.pool.match(request.lease.content, request.prompt_tokens + request.output_tokens - 1)
            request.prefix = node.end
            if most is not None and taken >= most:
                return
            if offload is not None and budget.has_kv(request, node) and offload.parks(request, node):
                waiting.popleft()
                continue
            goes_on = budget.add(request, node)
            if len(chunks) > taken:
                waiting.popleft()
                if offload is not None:
                    offload.admitted(request)
            if not goes_on:
                if budget.lacks_kv:
                    running.full = bool(chunks) or bool(running.members)
                return

    def _outgrow(self) -> None:
        """The next chunk of the prompt under way does not fit, and SGLang stops; here its request is given up.

        Only that chunk is in such a batch: others are refused in time.
        """
        chunked = self._chunked
        assert chunked is not None
        self._chunked = None
        self.running.full = False
        start = chunked.computed = chunked.prefix
        self.ledger.give_up(chunked)
        self._fail(
            chunked,
            f"out of memory: tokens {start} to {chunked.chunk_end} of the prompt do not fit beside "
            f"{len(self.running.members)} running requests, which outgrew the output reserved for them (a higher "
            f"schedule_conservativeness, fewer max_running_requests or a larger pool would help)",
        )

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
            batch.decodes = True
            batch.enders = running.launch(batch.number, 1)
            running.extend_results_in_flight()

    def _fitting_decodes(self) -> int:
        """Make room for one token of each member, a page each to be safe; the pages that it takes, -1 if too many."""
        pool = self.pool
        group = self.group
        wanted = group.size * self.page_size
        if pool.free_tokens < wanted:
            pool.evict_until(wanted)
        blocks = group.ring[group.step % self.page_size]
        return blocks if blocks * self.page_size <= pool.free_tokens else -1
