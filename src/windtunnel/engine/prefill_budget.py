"""What one SGLang prefill batch may still take: KV for prompts and outputs, prompt tokens, chunk tokens.

A budget is made for one attempt and spent request by request; the first refusal ends the attempt. Rules of SGLang
0.5.23. It finds no requests, keeps no queue and takes no KV: it only says how much of a request goes into the batch.
"""

from __future__ import annotations

from windtunnel.engine.kv.radix import RadixCache, RadixNode
from windtunnel.engine.running_batch import OUTPUT_CLIP, Demand, RunningBatch
from windtunnel.engine.sglang_request import Chunk, SglangRequest
from windtunnel.timing.base import PassShape

UNLIMITED_TOKENS = 1 << 60


class PrefillBudget:
    """The budget of one prefill batch after the other, and what is taken from it.

    Attributes:
        chunks: taken so far, in order; shape: the same for the timing model.
        wanted_tokens: free KV that they want; needed_tokens: that they need.
        unfinished: the request whose prompt does not end with this batch.
        num_admitted: requests among them that waited.
        lacks_kv: whether KV has run out, and not just the tokens of the batch.
    """

    __slots__ = (
        "_cache",
        "_charged",
        "_chunk_tokens",
        "_completions",
        "_floor",
        "_left",
        "_page",
        "_reserved",
        "_running",
        "_takes_whole",
        "chunks",
        "lacks_kv",
        "needed_tokens",
        "num_admitted",
        "shape",
        "unfinished",
        "wanted_tokens",
    )

    def __init__(self, cache: RadixCache, running: RunningBatch, input_tokens: int, chunk_tokens: int) -> None:
        """
        Args:
            input_tokens: prompt tokens of a batch.
            chunk_tokens: tokens of its chunks, UNLIMITED_TOKENS without chunked prefill.
        """
        self._cache = cache
        self._page = cache.page_size
        self._running = running
        self._chunk_tokens = chunk_tokens
        self._floor = chunk_tokens - input_tokens if chunk_tokens > input_tokens else 0
        self._takes_whole = chunk_tokens == UNLIMITED_TOKENS
        self.open(0)

    def open(self, decodes: int) -> None:
        """Start a batch, in which so many decodes will ride, each at the price of one token."""
        self.chunks: list[Chunk] = []
        self.shape = PassShape()
        self.wanted_tokens = 0
        self.needed_tokens = 0
        self.unfinished: SglangRequest | None = None
        self.num_admitted = 0
        self.lacks_kv = False
        self._left = self._chunk_tokens - decodes  # of a chunk; and of all input, how far that is above the floor
        self._reserved = self._running.reserved_tokens()
        self._charged = self._reserved + decodes  # against the KV there is: output to come, and what is taken
        self._completions: list[Demand] | None = None

    def goes_on(self) -> bool:
        """Whether another request may be tried. Who lacks both KV and tokens, lacks KV."""
        cache = self._cache
        if cache.free_tokens + cache.evictable_tokens <= self._charged:
            self.lacks_kv = True
            return False
        return self._left > self._floor

    def continue_prompt(self, request: SglangRequest) -> None:
        """The next chunk of the request whose prompt is under way. It is never refused."""
        cache = self._cache
        room = int(cache.free_tokens + cache.evictable_tokens - self._charged)
        if room > self._left or room <= 0:
            room = self._left
        want = request.prompt_tokens + request.output_tokens - request.prefix
        if want > room:
            self.unfinished = request
            self._take(request, room)
        else:
            self._take(request, want)

    def add(self, request: SglangRequest, node: RadixNode) -> bool:
        """Take a waiting request whose cached prefix ends at `node`, all of its prompt or a first chunk.

        True if it was taken and another may follow. Otherwise the attempt ends, and `chunks` tells whether it was.
        """
        cache = self._cache
        if request.ignore_eos and not cache.caching:
            return self._add_uncached(request)
        page = self._page
        want = request.prompt_tokens + request.output_tokens - request.prefix
        output = request.max_output_tokens - request.output_tokens
        if output > OUTPUT_CLIP:
            output = OUTPUT_CLIP
        # as if the prefix was held already, and no longer evictable
        free = cache.free_tokens + cache.evictable_tokens
        if not node.holders:
            free -= cache.unheld_tokens(node)
        if want + output + page >= free - self._charged:
            self.lacks_kv = True
            return False
        padded = -(-want // page) * page
        if padded > self._left:
            end = request.prefix + self._left // page * page
            want = end // page * page - request.prefix
            if want <= 0:
                return False
            self.unfinished = request
        elif self._takes_whole and self.chunks and padded >= self._left - self._floor:
            return False
        cache.hold(request.lease, node)
        return self._admit(request, want)

    def has_kv(self, request: SglangRequest, node: RadixNode) -> bool:
        """Whether `add`, with a prefix cache, would get beyond its question for KV."""
        cache = self._cache
        want = request.prompt_tokens + request.output_tokens - request.prefix
        output = min(request.max_output_tokens - request.output_tokens, OUTPUT_CLIP)
        free = cache.free_tokens + cache.evictable_tokens - cache.unheld_tokens(node)
        return want + output + self._page < free - self._charged

    def _admit(self, request: SglangRequest, tokens: int) -> bool:
        """Take the first tokens of a request that waited; whether another may follow."""
        self._take(request, tokens)
        request.has_row = True
        request.retracted = False
        self.num_admitted += 1
        return self.goes_on()

    def _take(self, request: SglangRequest, tokens: int) -> None:
        """The next `tokens` tokens of a prompt; with the last of them, the output that may follow is charged too."""
        page = self._page
        start = request.prefix
        end = request.chunk_end = start + tokens
        self.chunks.append(Chunk(request, start, end))
        request.computed = end  # the slots are its own now
        output = request.max_output_tokens  # all of it, also when some has been generated
        is_last = request is not self.unfinished
        self.shape.add_chunk(start, tokens, request.prompt_tokens, is_last and output > 0)
        if page == 1:
            self.wanted_tokens += tokens
            self.needed_tokens += tokens
        else:
            self.wanted_tokens += tokens + page  # a page more than it may need
            self.needed_tokens += (-start // page - -end // page) * page
            tokens = -(-tokens // page) * page
        self._left -= tokens
        self._charged += tokens + page
        if is_last:
            self._charged += output if output < OUTPUT_CLIP else OUTPUT_CLIP

    # --- without prefix cache, for requests that are known to generate all they ask for

    def _add_uncached(self, request: SglangRequest) -> bool:
        """Admit if all requests can complete, the shortest remaining output first, each giving its KV to the rest."""
        cache = self._cache
        want = request.prompt_tokens + request.output_tokens - request.prefix
        needed = cache.pages(want) + self._page
        free = cache.free_tokens + cache.evictable_tokens
        taken = (chunk.request for chunk in self.chunks if chunk.request is not self.unfinished)
        outputs = self._reserved + sum(min(other.max_output_tokens, OUTPUT_CLIP) for other in taken)
        lacks_kv = needed > free - self._charged
        if lacks_kv or not self._all_complete(request, round(free - self._charged + outputs) - needed):
            self.lacks_kv = True
            return False
        if want > self._left:
            if self._left <= 0:
                return False
            want = self._left
            self.unfinished = request
        return self._admit(request, want)

    def _all_complete(self, request: SglangRequest, free_tokens: int) -> bool:
        completions = self._completions
        demand_of = self._running.demand_of
        own = demand_of(request)
        if completions is None:
            found = [own, *self._running.demands(), *(demand_of(chunk.request) for chunk in self.chunks)]
            completions = sorted((demand for demand in found if demand is not None), key=lambda demand: demand[0])
            self._completions = completions
        elif own is not None:
            places = (i for i, demand in enumerate(completions) if own[0] <= demand[0])
            last = max(len(completions) - 1, 0)  # before it, not behind: so SGLang's scan ends
            completions.insert(next(places, last), own)
        going = len(completions)
        for left, held in completions:
            if free_tokens - left * going <= going:
                return False
            free_tokens += held
            going -= 1
        return True
