"""The polynomial that the Dynamo mocker prices passes with when it has no profile.

One fit of one profile (Llama-3.1-8B-FP8 on an H200). It is here to be compared with that simulator formula
for formula, not to predict a GPU: it adds a prefill part and a decode part, floors batch means, and charges
prompt tokens only, so recomputing generated tokens after a preemption is free.
Source: the Dynamo mocker's default performance model, as measured on release 1.5.
"""

from __future__ import annotations

import numpy as np

from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.verification import IntArray, VerifyingShape

TABLE_TOKENS = 1 << 17  # contexts up to here are looked up: a run of few requests is then one slice


class PolynomialTiming:
    """Prices a pass by the prompt tokens it computes and the share of the KV cache its requests fill.

    prefill part, ms: 4.209989e-7 T^2 + 1.518344e-2 T + 16.50142, with T = n (floor(I/n) - floor(C/n)) over the
        n prompts of the pass, I and C the sums of the positions they reach and start from.
    decode part, ms: -25.74 u^2 + 54.01 u + 5.74, u = min(1, L/K), with L the sum of the logical contexts of all
        requests that emit a token and K the capacity of the KV cache in tokens. (Its original has a floor of
        1 ms, which a u in [0, 1] never reaches.)

    Args:
        kv_capacity_tokens: K.
        speedup: divides both parts. decode_speedup: divides the decode part further.
        first_tokens_decode: whether a prompt that ends in a pass is one of its decodes. So the original prices
            vLLM's mixed passes; where prompts have passes of their own, their first token comes with the prefill.
    """

    needs_physical_context = False
    measured = MeasuredRange(decodes=(1, 1049), context_tokens=(350.0, 13_585.0), pass_tokens=(100, 15_700))
    notes = ("one fit of one profile (Llama-3.1-8B-FP8, H200), for comparisons with the Dynamo mocker: no prediction",)

    def __init__(
        self,
        kv_capacity_tokens: int,
        speedup: float = 1.0,
        decode_speedup: float = 1.0,
        first_tokens_decode: bool = True,
    ) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.first_tokens_decode = first_tokens_decode
        self.speedup = speedup
        divisor = speedup * decode_speedup
        self._square = -25.74 / kv_capacity_tokens / kv_capacity_tokens / divisor  # of the decode part, by context
        self._linear = 54.01 / kv_capacity_tokens / divisor
        self._constant = 5.74 / divisor
        # the same for numpy, which takes longer over a Python float than over a short run
        self._coefficients = np.array(self._square), np.array(self._linear), np.array(self._constant)
        self._decode_ms: FloatArray = np.empty(0)  # the decode part by context, as far as it was asked for

    def price_pass_ms(self, shape: PassShape) -> float:
        ms = 0.0
        n = shape.num_prompts
        if n:
            tokens = float(n * (shape.prompt_reached_tokens // n - shape.prompt_started_tokens // n))
            if tokens > 0.0:
                ms = (4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142) / self.speedup
        context = shape.sampled_context_tokens if self.first_tokens_decode else shape.decode_context_tokens
        if context or (shape.num_sampled if self.first_tokens_decode else shape.num_decodes):
            if context > self.kv_capacity_tokens:
                context = self.kv_capacity_tokens
            ms += (self._square * context + self._linear) * context + self._constant
        return ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        end = context_tokens + (passes - 1) * num_decodes + 1
        if end > TABLE_TOKENS:
            return self._price_decodes_ms(np.arange(context_tokens, end, num_decodes, dtype=np.float64))
        if end > len(self._decode_ms):
            self._tabulate(end)
        return self._decode_ms[context_tokens:end:num_decodes].copy()

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        """By its contexts alone: drafts are free."""
        return self.price_pass_ms(shape)

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        end = contexts.item(-1) + 1
        if end <= TABLE_TOKENS:
            if end > len(self._decode_ms):
                self._tabulate(end)
            return self._decode_ms.take(contexts)
        return self._price_decodes_ms(contexts.astype(np.float64))

    def _tabulate(self, end: int) -> None:
        """Have the decode part of contexts below `end` at hand."""
        size = min(max(2 * end, 4096), TABLE_TOKENS)
        self._decode_ms = self._price_decodes_ms(np.arange(size, dtype=np.float64))

    def _price_decodes_ms(self, context: FloatArray) -> FloatArray:
        """The decode part for each of these ascending sums of contexts, with the operations of price_pass_ms."""
        if context[-1] > self.kv_capacity_tokens:
            np.minimum(context, self.kv_capacity_tokens, out=context)  # integers below 2**53 all: exact
        square, linear, constant = self._coefficients
        part: FloatArray = context * square
        part += linear
        part *= context
        part += constant
        return part
