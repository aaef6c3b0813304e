"""SGLang's scheduler as an engine drives it: the front end, its turns, and runs of turns that only decode.

In a run nothing happens but that every running request gets its next token, so its turns are one step: pages are
counted, and nobody is touched who goes on. With overlap scheduling the result that is in flight when a run begins is
processed in it, and a run that ends with a completion goes on for the turn in which that is in flight. What a turn
decides is in sglang_turn.py, whose prompts it computes in sglang_prefill.py; docs/fidelity.md lists the rules.
"""

from __future__ import annotations

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.engine import PromptPasses
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.sglang_offload import SglangOffload
from windtunnel.engine.sglang_request import NO_CHUNKS, Batch, SglangRequest
from windtunnel.engine.sglang_submission import limit_output, refusal, safe_length
from windtunnel.engine.sglang_turn import SglangTurn
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape
from windtunnel.workload.content import Content


class SglangScheduler(SglangTurn):
    """One SGLang scheduler.

    Attributes:
        request_type: what `submit` takes.
        safe_prompt_tokens, safe_total_tokens: a request whose prompt, and prompt and output together, are no longer
            is neither cut short nor refused.
    """

    request_type: type[EngineRequest] = SglangRequest

    def __init__(self, config: SglangConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.fast_forward = config.fast_forward
        self.prompt_passes: PromptPasses | None = None
        self.safe_prompt_tokens = self.safe_total_tokens = safe_length(config)

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

    def hold_back(self, request: EngineRequest) -> None:
        """Nothing: nobody is put in the queue too early."""

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
        launched = [batch for batch in (self._last, self._batch) if batch is not None]
        ending = [request for batch in launched for request in batch.enders if request.prefilled]
        for request in remaining:
            if request.marker_ms < now_ms:
                self.ledger.account(request, now_ms)
            if request.cancelled_ms > request.marker_ms:  # it was given up during the pass that never ends
                if request.decoding or request in ending:
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
            self.open_turn()
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
        if self.observer is not None:
            self._walk_decodes(passes)
            return
        running = self.running
        ends = self.passes.end_ms
        number = len(ends) if self.overlap else len(ends) - 1  # of the last pass
        result = running.in_flight
        if result is not None and result.enders:
            running.drop_enders()  # of the first part of this run, which was committed before
        steps = self.group.finish_step - self.group.step
        goes_on = steps < passes
        enders = self._launch_decodes(number - 1, steps) if goes_on else self._launch_decodes(number, passes)
        # the result of a prompt has no effect on the pages of these passes, see `_has_effect`: it may as well come last
        if result is not None and (result.chunks or result.enders):
            self._process(result)
        if goes_on:
            for request in enders:
                running.drop(request)
            ended = enders
            enders = self._launch_decodes(number, 1)
            self._conclude_decodes(ended, number - 1)
        self._last = batch = Batch(number, ends[-1], NO_CHUNKS, None, True, enders)
        if self.overlap:
            running.in_flight = batch
        elif enders:
            self._conclude_decodes(enders, number)

    def _walk_decodes(self, passes: int) -> None:
        """The same turn by turn, for an observer."""
        assert self.observer is not None
        ends = self.passes.end_ms
        end = len(ends) + (1 if self.overlap else 0)
        for number in range(end - passes, end):
            self.running.drop_enders()
            enders = self._launch_decodes(number, 1)
            self._batch = Batch(number, ends[-1], NO_CHUNKS, None, True, enders)
            self.observer.on_scheduled(self._batch)
            self.conclude(ends[-1])

    def _launch_decodes(self, number: int, passes: int) -> list[SglangRequest]:
        """The running batch decodes in `passes` passes, the last of which is `number`; nobody has to be retracted.

        Returns those whose last token that is.
        """
        group = self.group
        pool = self.pool
        page = self.page_size
        if passes == 1:
            taken = group.ring[group.step % page] * page
            wanted = group.size * page
        else:
            taken = group.blocks_for(passes) * page
            # each pass wants a page a member to be free, and takes those it needs; so the last one wants most
            wanted = taken + (group.size - group.ring[(group.step + passes - 1) % page]) * page
        if pool.free_tokens < wanted:
            pool.evict_until(wanted)
        pool.free_tokens -= taken
        assert pool.free_tokens >= 0
        self.ratio.note_decodes(passes)
        return self.running.launch(number, passes)

    def _has_effect(self, batch: Batch) -> bool:
        """Whether the result of a batch of prompts, which is in flight, may free pages that are in the tree already.

        With KV tiers it is written to them when it is known, a router looks at first tokens, and events have an order.
        """
        if self.offload is not None or self.first_tokens is not None or self.pool.log_events:
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

    def physical_tokens(self) -> int:
        """Distinct tokens in the pages that requests hold."""
        pool = self.pool
        held = pool.num_blocks * self.page_size - pool.free_tokens - pool.evictable_tokens
        if self.offload is not None:
            held -= self.offload.in_transit_tokens()
        return held - self.group.unfilled_tokens() - self.ledger.unfilled_tokens()
