"""Whom vLLM v1's scheduler admits, and the state on which that depends: queue, batch and KV blocks.

The queue is in the order of arrival, or of urgency if priorities count. Its head is admitted with what the budget
leaves of its prompt, less its cached prefix, if free blocks cover it; the first that does not fit stops the admission,
and while nothing is released it is not asked again. What the running requests get in a pass is decided in vllm.py.
Rules of vLLM 0.33, as recorded pass by pass in tests/golden, or of an older release (engine/behaviour.py).
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from windtunnel.config.schema import VllmConfig
from windtunnel.engine.behaviour import BEHAVIOURS
from windtunnel.engine.kv.block_pool import BlockPool
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.kv.prefix_tree import NOTHING_CACHED, Match
from windtunnel.engine.observer import PassObserver
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.vllm_decodes import VllmDecodes
from windtunnel.engine.vllm_offload import VllmOffload
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape

UNLIMITED_TOKENS = 1 << 60


def urgency(request: EngineRequest) -> tuple[int, float, int]:
    return -request.priority, request.arrival_ms, request.number


class VllmAdmission:
    """The queue, the running batch and the KV blocks of one engine, and the way from one to the other.

    Attributes:
        waiting: requests to admit, in order; a preempted one is put in front.
        running: the batch, by admission number and so in the order of admission; prefilling: those of it that do not
            decode, in that order.
        pool: the KV blocks.
        decodes: the requests of the batch that decode; group: what they have in common.
        offload: the KV tiers behind the pool, if there are any.
    """

    def __init__(self, config: VllmConfig, passes: PassColumns, publish_events: bool = False) -> None:
        """`passes` are the engine's pass columns, where ends of passes are read; `publish_events` keeps the KV
        events of each pass in `pool.events`, in the order in which vLLM publishes them."""
        self.config = config
        self.block_size = config.block_size
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.max_model_len = config.max_sequence_tokens or UNLIMITED_TOKENS
        self.chunked = config.enable_chunked_prefill
        self.caching = config.enable_prefix_caching
        self.threshold_tokens = config.long_prefill_token_threshold
        self.threshold_adaptive = config.long_prefill_token_threshold_adaptive
        self.watermark_blocks = config.watermark_blocks
        self.behaviour = BEHAVIOURS[config.behaviour]
        self.by_priority = config.scheduling_policy == "priority"
        self.reserve_full_isl = config.scheduler_reserve_full_isl and self.behaviour.reserves_full_prompt
        self.fast_forward = config.fast_forward
        self.pool = BlockPool(
            config.num_gpu_blocks,
            config.block_size,
            config.enable_prefix_caching,
            publish_events,
            unhashed_first=self.behaviour.reuses_unhashed_first,
        )
        self.observer: PassObserver | None = None
        self.offload: VllmOffload | None = None
        self.waiting: deque[EngineRequest] = deque()
        self.running: dict[int, EngineRequest] = {}
        self.is_async = config.async_scheduling
        self.decodes = VllmDecodes(self.pool, passes, ordered=self.pool.log_events, lag=int(self.is_async))
        self.group = self.decodes.group
        self.prefilling: list[EngineRequest] = []
        self._passed_over: list[EngineRequest] = []  # heads that exceed the budget, while others are admitted
        self._head_refused = False  # ... and nothing that could help has happened since
        self._admissions = 0
        self._chunks: list[EngineRequest] = []  # of the pass in flight, in batch order

    def attach_tiers(self, tiers: Offload) -> None:
        """Put KV tiers behind the pool; before the first request."""
        self.offload = VllmOffload(tiers, self.pool)

    def share_outputs(self) -> None:
        """Requests may generate the same content; before the first one."""
        self.decodes.keep_order()

    def submit(self, request: EngineRequest) -> None:
        """Put a request at its place in the queue, which is the end unless priorities count."""
        if not self.waiting or self.threshold_adaptive:  # a new head, or a smaller chunk for the old one
            self._head_refused = False
        if self.by_priority:
            self._enqueue(request)
        else:
            self.waiting.append(request)
        self.decodes.by_output[request.origin] = request

    def _enqueue(self, request: EngineRequest) -> None:
        """The most urgent first; who arrived first among equals."""
        insort(self.waiting, request, key=urgency)
        if self.waiting[0] is request:
            self._head_refused = False

    def may_admit(self) -> bool:
        """Whether the next pass could admit a request, as far as budget, batch and past refusals tell."""
        decodes = self.group.size
        return (
            bool(self.waiting)
            and not self._head_refused
            and decodes < self.max_num_batched_tokens
            and decodes < self.max_num_seqs
        )

    def describe_wait(self) -> str:
        """What the head of the queue waits for, for the error that is raised when nothing can run."""
        if not self.waiting:
            return "nothing waits"
        head = self.waiting[0]
        match, tokens = self._head_chunk(head, self._chunk_cap())
        total = head.prompt_tokens + head.output_tokens
        return (
            f"{len(self.waiting)} waiting behind request {head.number}, which has {total} tokens to compute, "
            f"{match.blocks * self.block_size} of them cached, and asks for {tokens} of a budget of "
            f"{self.max_num_batched_tokens}; {self.pool.free_blocks} of {self.pool.num_blocks} KV blocks are free"
        )

    def _put_in_front(self, victim: EngineRequest, requester: EngineRequest) -> None:
        """A running request that `requester` has preempted waits again, before those of its urgency."""
        del self.running[victim.admission]
        if self.by_priority:
            self._enqueue(victim)
        else:
            self.waiting.appendleft(victim)
        self._head_refused = False
        if self.observer is not None:
            self.observer.on_preemption(victim, requester)

    def _observe_refusal(self, observer: PassObserver) -> None:
        """Inside a run the head of the queue stays refused; what it was refused for changes with the free blocks."""
        budget = self.max_num_batched_tokens - self.group.size
        if not self.waiting or budget <= 0 or len(self.running) >= self.max_num_seqs:
            return
        head = self.waiting[0]
        match, tokens = self._head_chunk(head, self._chunk_cap())
        if (self.chunked or tokens <= budget) and not self._fits(head, match, min(tokens, budget)):
            observer.on_refusal(head, match.blocks * self.block_size, self.pool.free_blocks)

    def _admit(self, budget: int, cap: int, now_ms: float, shape: PassShape) -> None:
        """Admit waiting requests from the head of the queue; the first that does not fit stops it."""
        waiting = self.waiting
        running = self.running
        observer = self.observer
        while waiting and budget > 0 and len(running) < self.max_num_seqs:
            request = waiting[0]
            content = request.table.content
            match, tokens = self._head_chunk(request, cap)
            if tokens > budget:
                if not self.chunked:
                    if not self.behaviour.stops_over_budget:
                        self._passed_over.append(waiting.popleft())
                        continue
                    # a pass of decodes alone leaves the same budget until one of them ends
                    self._head_refused = self.fast_forward and not shape.chunk_tokens and not content.sources
                    return
                tokens = budget
            hit_tokens = match.blocks * self.block_size
            if not self._fits(request, match, tokens):
                # free space only shrinks, and idle hits with it, until something is released. Hits on the output
                # of a running request may grow.
                self._head_refused = self.fast_forward and not content.sources
                if observer is not None:
                    observer.on_refusal(request, hit_tokens, self.pool.free_blocks)
                return
            waiting.popleft()
            if self.offload is not None and self.offload.parks(request, match):
                continue
            self.pool.hold(request.table, match)
            request.computed += hit_tokens
            self._admissions += 1
            request.admission = self._admissions
            running[request.admission] = request
            self.prefilling.append(request)
            request.note_admission(now_ms, hit_tokens)
            if observer is not None:
                observer.on_admission(request, hit_tokens)
            self._compute(request, tokens, shape)
            budget -= tokens

    def _return_from_tiers(self, offload: VllmOffload) -> None:
        """Requests whose KV has been restored are the next to be admitted."""
        for request in reversed(offload.land()):
            if self.by_priority:
                self._enqueue(request)
            else:
                self.waiting.appendleft(request)
        self._head_refused = False

    def _put_back(self) -> None:
        """Those that were passed over in an admission keep their places."""
        self.waiting.extendleft(reversed(self._passed_over))
        self._passed_over.clear()
        self._head_refused = False

    def _chunk_cap(self) -> int:
        """Longest chunk of a prompt while other requests are queued or running; 0 is no limit."""
        eligible = len(self.running) + len(self.waiting)
        if not self.threshold_tokens or (eligible <= 1 and self.behaviour.exempts_lone_request):
            return 0
        if self.threshold_adaptive:
            return max(self.threshold_tokens, self.max_num_batched_tokens // eligible)
        return self.threshold_tokens

    def _head_chunk(self, request: EngineRequest, cap: int) -> tuple[Match, int]:
        """The cached prefix of a waiting request and the chunk it asks for, the budget aside."""
        total = request.prompt_tokens + request.output_tokens
        content = request.table.content
        if content.sources:
            self.decodes.catch_up_sources(content)
        match = self.pool.match(content, (total - 1) // self.block_size)  # at least one token is computed
        tokens = total - match.blocks * self.block_size
        if request.computed:  # only if the release does not restore victims: it looks for no hits then
            match = NOTHING_CACHED
            tokens = total - request.computed
        if 0 < cap < tokens:
            tokens = cap
        return match, tokens

    def _fits(self, request: EngineRequest, match: Match, tokens: int) -> bool:
        """Whether the free blocks cover the chunk, and the whole prompt if that is asked for.

        Hits on blocks in use are free of charge; idle ones are in the free queue and leave it.
        """
        spare = self.pool.free_blocks - match.idle_blocks + match.blocks
        if self.running:
            spare -= self.watermark_blocks
        # the whole prompt is no shorter than the chunk
        end = request.prompt_tokens + request.output_tokens
        if not self.reserve_full_isl:
            end = match.blocks * self.block_size + request.computed + tokens
        if end > self.max_model_len:
            end = self.max_model_len
        return -(-end // self.block_size) <= spare

    def _compute(self, request: EngineRequest, tokens: int, shape: PassShape) -> None:
        """A chunk of a prompt is computed in a pass that starts now."""
        self.cover(request, tokens)
        self._add_chunk(request, tokens, shape)

    def cover(self, request: EngineRequest, tokens: int) -> None:
        """The blocks of a chunk, which the free queue covers; full ones are hashed."""
        table = request.table
        bs = self.block_size
        request.computed = computed = request.computed + tokens
        if computed > self.max_model_len:
            computed = self.max_model_len
        need = -(-computed // bs) - table.owned
        if need > 0:
            self.pool.take(need)
            table.owned += need
        full = computed // bs
        if full > table.hashed and self.caching:
            if table.content.sources:
                self.decodes.catch_up_sources(table.content)
            self.pool.store(table, full)

    def _add_chunk(self, request: EngineRequest, tokens: int, shape: PassShape) -> None:
        """A chunk of so many tokens, which count as computed."""
        self._chunks.append(request)
        end = request.computed
        prompt_tokens = request.prompt_tokens
        is_last = end >= prompt_tokens + request.output_tokens
        shape.add_chunk(end - tokens, tokens, prompt_tokens, is_last and request.max_output_tokens > 0)
