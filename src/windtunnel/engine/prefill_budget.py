"""What one SGLang prefill batch may still take: KV for prompts and outputs, prompt tokens, chunk tokens.

A budget is made for one attempt and spent request by request; the first refusal ends the attempt. Rules of SGLang
0.5.23. It finds no requests, keeps no queue and takes no KV: it only says how much of a request goes into the batch.
"""

from __future__ import annotations

from enum import Enum

from windtunnel.engine.kv.radix import RadixCache, RadixNode
from windtunnel.engine.running_batch import OUTPUT_CLIP, Demand, RunningBatch
from windtunnel.engine.sglang_request import Chunk, SglangRequest


class Verdict(Enum):
    """What an attempt to form a batch does after a request."""

    GO_ON = 0
    NO_KV = 1
    NO_TOKENS = 2


class PrefillBudget:
    """The budget of one prefill batch.

    Attributes:
        chunks: taken so far, in order; wanted_tokens: free KV that they want, needed_tokens: that they need.
        unfinished: the request whose prompt does not end with this batch.
    """

    __slots__ = (
        "_cache",
        "_charged",
        "_charged_total",
        "_chunk_left",
        "_completions",
        "_input_left",
        "_page",
        "_running",
        "chunks",
        "needed_tokens",
        "unfinished",
        "wanted_tokens",
    )

    def __init__(
        self,
        cache: RadixCache,
        running: RunningBatch,
        max_prefill_tokens: int,
        chunk_tokens: int | None,
        mixed_decodes: int,
    ) -> None:
        """
        Args:
            chunk_tokens: `chunked_prefill_size`, None without chunked prefill.
            mixed_decodes: decodes that will ride in the batch, each at the price of one token.
        """
        self.chunks: list[Chunk] = []
        self.wanted_tokens = 0
        self.needed_tokens = 0
        self.unfinished: SglangRequest | None = None
        self._cache = cache
        self._page = cache.page_size
        self._input_left = max_prefill_tokens - mixed_decodes
        self._chunk_left = None if chunk_tokens is None else chunk_tokens - mixed_decodes
        self._charged = mixed_decodes  # against the KV there is now
        self._charged_total = mixed_decodes + running.reserved_tokens()  # ... and with the output to come
        self._running = running
        self._completions: list[Demand] | None = None

    def state(self) -> Verdict:
        """Whether another request may be tried at all."""
        cache = self._cache
        free = cache.free_tokens + cache.evictable_tokens
        if free <= self._charged_total or free <= self._charged:
            return Verdict.NO_KV
        if self._input_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0):
            return Verdict.NO_TOKENS
        return Verdict.GO_ON

    def go_on(self, request: SglangRequest) -> None:
        """The next chunk of the request whose prompt is under way. It is never refused."""
        chunk_left = self._chunk_left
        assert chunk_left is not None
        cache = self._cache
        room = min(chunk_left, int(cache.free_tokens + cache.evictable_tokens - self._charged_total))
        if room <= 0:
            room = chunk_left
        want = request.prompt_tokens + request.output_tokens - request.prefix
        if want > room:
            self.unfinished = request
            self._spend(request, room, 0)
        else:
            self._spend(request, want, min(request.max_output_tokens, OUTPUT_CLIP))

    def add(self, request: SglangRequest, node: RadixNode) -> Verdict:
        """Take a waiting request whose cached prefix ends at `node`, all of its prompt or a first chunk.

        GO_ON if it was taken and another may follow. Otherwise the attempt ends, and `chunks` tells whether it was.
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
        free = cache.free_tokens + cache.evictable_tokens - cache.unheld_tokens(node)
        if want + output + page >= free - self._charged_total:
            return Verdict.NO_KV
        padded = cache.pages(want)
        chunk_left = self._chunk_left
        if chunk_left is None:
            if self.chunks and padded >= self._input_left:
                return Verdict.NO_TOKENS
        elif padded > chunk_left:
            end = request.prefix + chunk_left // page * page
            tokens = end // page * page - request.prefix
            if tokens <= 0:
                return Verdict.NO_TOKENS
            cache.hold(request.lease, node)
            self.unfinished = request
            self._spend(request, tokens, 0)
            return self.state()
        cache.hold(request.lease, node)
        # all of max_output_tokens is charged, also when some of it has been generated
        self._spend(request, want, min(request.max_output_tokens, OUTPUT_CLIP))
        return self.state()

    def has_kv(self, request: SglangRequest, node: RadixNode) -> bool:
        """Whether `add`, with a prefix cache, would get beyond its question for KV."""
        cache = self._cache
        want = request.prompt_tokens + request.output_tokens - request.prefix
        output = min(request.max_output_tokens - request.output_tokens, OUTPUT_CLIP)
        free = cache.free_tokens + cache.evictable_tokens - cache.unheld_tokens(node)
        return want + output + self._page < free - self._charged_total

    def _spend(self, request: SglangRequest, tokens: int, output_tokens: int) -> None:
        page = self._page
        start = request.prefix
        end = request.chunk_end = start + tokens
        self.chunks.append(Chunk(request, start, end))
        if page == 1:
            padded = tokens
            self.wanted_tokens += tokens
            self.needed_tokens += tokens
        else:
            padded = -(-tokens // page) * page
            self.wanted_tokens += tokens + page  # a page more than it may need
            self.needed_tokens += (-(-end // page) - -(-start // page)) * page
        self._charged += padded + page
        self._charged_total += padded + page + output_tokens
        self._input_left -= padded
        if self._chunk_left is not None:
            self._chunk_left -= padded

    # --- without prefix cache, for requests that are known to generate all they ask for

    def _add_uncached(self, request: SglangRequest) -> Verdict:
        """Admit if all requests can complete, the shortest remaining output first, each giving its KV to the rest."""
        cache = self._cache
        want = request.prompt_tokens + request.output_tokens - request.prefix
        needed = cache.pages(want) + self._page
        free = cache.free_tokens + cache.evictable_tokens
        if needed > min(free - self._charged, free - self._charged_total):
            return Verdict.NO_KV
        if not self._all_complete(request, free - self._charged - needed):
            return Verdict.NO_KV
        chunk_left = self._chunk_left
        if chunk_left is None or want <= chunk_left:
            self._spend(request, want, min(request.max_output_tokens, OUTPUT_CLIP))
            return self.state()
        if chunk_left <= 0:
            return Verdict.NO_TOKENS
        self.unfinished = request
        self._spend(request, chunk_left, 0)
        return self.state()

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
