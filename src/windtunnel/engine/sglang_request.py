"""SGLang's view of one request, and of the batch of one pass."""

from __future__ import annotations

from windtunnel.engine.kv.radix import RadixLease
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content


class SglangRequest(EngineRequest):
    """A request at an SGLang engine.

    What the base class says, with these differences: `output_tokens` counts computed tokens, of which the last may
    not be known yet (overlap scheduling); `computed` counts KV slots, the one of a pass in flight included;
    `admission` is its place in the running batch.

    Attributes:
        lease: its part of the radix cache.
        ignore_eos: it is known to generate all the tokens it asks for.
        entry: number of its last entry to the waiting queue.
        prefix: tokens computed before its next chunk, or found in the cache.
        chunk_end: where its last chunk ends.
        has_row: it has a place among the requests that hold KV.
        prefilled: its prompt is computed and the result known.
        is_last_token: computing its prompt has yielded its last token; the result is in flight.
        gone: it has ended, in whatever way.
        retracted: it lost its KV; a result that is still in flight is void.
        merge: number of the merge with which it joined the running batch, -1 while it has not.
        first_gap, left_out_before_ms: see `DecodePasses.note_decodes`.
        simple_reserve: what it may still ask for is its remaining output, all of it.
    """

    __slots__ = (
        "chunk_end",
        "entry",
        "first_gap",
        "gone",
        "has_row",
        "ignore_eos",
        "is_last_token",
        "lease",
        "left_out_before_ms",
        "merge",
        "prefilled",
        "prefix",
        "retracted",
        "simple_reserve",
    )

    def __init__(
        self, number: int, content: Content, prompt_tokens: int, max_output_tokens: int, arrival_ms: float
    ) -> None:
        super().__init__(number, content, prompt_tokens, max_output_tokens, arrival_ms)
        self.lease = RadixLease(content, 0)
        self.ignore_eos = True
        self.entry = 0
        self.prefix = 0
        self.chunk_end = 0
        self.has_row = False
        self.prefilled = False
        self.is_last_token = False
        self.gone = False
        self.retracted = False
        self.merge = -1
        self.first_gap = 0
        self.left_out_before_ms = 0.0
        self.simple_reserve = True


class Chunk:
    """The part of one prompt that a pass computes.

    Attributes:
        start, end: it computes tokens [start, end).
        admits: whether it is the first after the request has waited.
    """

    __slots__ = ("admits", "end", "request", "start")

    def __init__(self, request: SglangRequest, start: int, end: int) -> None:
        self.request = request
        self.start = start
        self.end = end
        self.admits = not request.has_row


NO_CHUNKS: list[Chunk] = []  # of the many batches that only decode; never changed
NO_ENDERS: list[SglangRequest] = []  # likewise


class Batch:
    """What one pass computes.

    Attributes:
        number: of the pass on its engine; start_ms: when it starts.
        chunks: prompts, in order; empty for a pass that only decodes.
        unfinished: the request whose prompt does not end with this pass.
        decodes: whether the running batch decodes in it; with chunks this is a mixed pass.
        enders: requests whose last token it computes, in batch order; of prompts, as soon as they join.
    """

    __slots__ = ("chunks", "decodes", "enders", "number", "start_ms", "unfinished")

    def __init__(
        self,
        number: int,
        start_ms: float,
        chunks: list[Chunk],
        unfinished: SglangRequest | None = None,
        decodes: bool = False,
        enders: list[SglangRequest] = NO_ENDERS,
    ) -> None:
        self.number = number
        self.start_ms = start_ms
        self.chunks = chunks
        self.unfinished = unfinished
        self.decodes = decodes
        self.enders = enders
