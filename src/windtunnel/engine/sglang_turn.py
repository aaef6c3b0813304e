"""One turn of SGLang's loop: choose a batch, prompts before decodes, and process a result.

With overlap scheduling the result of a pass is processed one turn after its launch, so a batch is formed without the
result of the one before it. Rules of SGLang 0.5.23, as recorded turn by turn in tests/golden. It prices nothing, and
does not look further than this turn; what many turns at once amount to is in sglang.py.

Beside SGLang's own loop: `open_turn` and `schedule` are get_next_batch_to_run, `_new_prefill` is get_new_batch_prefill
with `PrefillBudget` for its PrefillAdder, `_decode` is update_running_batch, `retract` is retract_decode, `conclude`
and `_process` are process_batch_result, `running.full` is batch_is_full.
"""

from __future__ import annotations

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.retraction import retract
from windtunnel.engine.sglang_prefill import SglangPrefill
from windtunnel.engine.sglang_request import NO_CHUNKS, Batch, Chunk, SglangRequest
from windtunnel.engine.turn_observer import TurnObserver
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape


class SglangTurn(SglangPrefill):
    """The turns of one engine, over its queue, its running batch and its KV pages.

    Attributes:
        first_tokens: requests whose first token was emitted since the owner last took the list, if it has put one here.
    """

    def __init__(self, config: SglangConfig, passes: PassColumns, publish_events: bool = False) -> None:
        super().__init__(config, passes, publish_events)
        self.first_tokens: list[EngineRequest] | None = None
        self._beside = ""  # what a decode needs besides the tokens of its request, for the error that says so
        self._last: Batch | None = None  # of the turn before; with overlap it is in flight
        self._batch: Batch | None = None  # of the turn in progress

    # --- a batch

    def open_turn(self) -> None:
        """What is settled before a batch is formed: the last chunk, who joins the running batch, who leaves it."""
        chunked = self._chunked
        if chunked is not None and chunked.chunk_end > chunked.prefix:
            self.pool.store(chunked.lease, chunked.chunk_end)
            chunked.prefix = chunked.chunk_end
        last = self._last
        if last is not None and last.chunks:
            if self.overlap:
                self.ledger.note_admissions(last)  # it starts to run now
            self.running.merge(last)
        if self.ledger.departed:
            for request in self.ledger.departed:
                self.running.drop(request)
            self.ledger.departed = []

    def schedule(self, now_ms: float) -> PassShape | None:
        """Choose the batch of the pass that starts at now_ms, in a turn that is open.

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
            if not self.overlap and batch.chunks:
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
        self._shape = self._decode_shape()
        self.pool.take(blocks * self.page_size)
        number = self._next_pass()
        return Batch(number, now_ms, NO_CHUNKS, None, True, running.launch(number, 1))

    def _decode_shape(self) -> PassShape:
        return PassShape(self.group.size, self.group.context_tokens)

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
                f"{self.pool.num_blocks} KV blocks of {self.page_size} tokens{self._beside}, and nobody else runs",
            )

    # --- a result

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

    def _observe_result(self, observer: TurnObserver, result: Batch | None) -> None:
        if result is not None:
            observer.on_result(result)
            self._process(result)
        observer.on_concluded()

    def _process(self, batch: Batch) -> None:
        """The result of a pass is known: tokens, completions, and prompts go to the tree."""
        end_ms = self.passes.end_ms[batch.number]
        if not batch.decodes:
            self.running.log.left_out_ms += end_ms - batch.start_ms
        for chunk in batch.chunks:
            if not (chunk.request.gone or chunk.request.retracted):
                self._conclude_chunk(chunk, batch, end_ms)
        if batch.enders:
            self._conclude_decodes(batch.enders, batch.number)

    def _conclude_decodes(self, enders: list[SglangRequest], number: int) -> None:
        """Pass `number` was the last one of these."""
        end_ms = self.passes.end_ms[number]
        log = self.running.log
        for request in enders:
            if not request.gone:
                log.note_decodes(request, request.first_gap, request.left_out_before_ms, number, end_ms)
                self._complete(request)

    def _conclude_chunk(self, chunk: Chunk, batch: Batch, end_ms: float) -> None:
        """A chunk is computed; one that ends its prompt yields a token."""
        request = chunk.request
        if self.offload is not None:
            self.offload.note_computed(request, request.lease.content, chunk.end)
        if request.recovering:
            request.note_chunk(batch.start_ms, end_ms)
            request.recovering = chunk.end < request.lost  # `computed` may be a chunk ahead
        else:
            request.note_chunk(batch.start_ms, end_ms)
        if request is batch.unfinished:
            return
        is_first = request.first_pass < 0
        if request.max_output_tokens:
            request.note_tokens(batch.number, batch.number, end_ms)
            if not self.overlap:
                request.output_tokens += 1
        if request.is_last_token or (not self.overlap and request.output_tokens >= request.max_output_tokens):
            self._complete(request)
            return
        if is_first and self.first_tokens is not None:
            self.first_tokens.append(request)
        request.prefilled = True
        request.left_out_before_ms = self.running.log.left_out_ms
        self.pool.store(request.lease, request.chunk_end)
        request.prefix = request.chunk_end

    def _complete(self, request: SglangRequest) -> None:
        self.ledger.remove(request, keep=True)
        self.finished.append(request)
        if self.offload is not None:
            self.offload.note_end(request)
