"""The polynomial that the Dynamo mocker prices passes with when it has no profile.

One fit of one profile (Llama-3.1-8B-FP8 on an H200). It is here to be compared with that simulator formula
for formula, not to predict a GPU: it adds a prefill part and a decode part, floors batch means, and charges
prompt tokens only, so recomputing generated tokens after a preemption is free.
Source: the Dynamo mocker's default performance model, as measured on release 1.5.
"""

from __future__ import annotations

import numpy as np

from windtunnel.timing.base import FloatArray, PassShape


SCALAR_PASSES = 12  # fewer are cheaper one by one than as arrays


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
    """

    needs_physical_context = False

    def __init__(self, kv_capacity_tokens: int, speedup: float = 1.0, decode_speedup: float = 1.0) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.speedup = speedup
        self.decode_divisor = speedup * decode_speedup
        self._square = -25.74 / kv_capacity_tokens / kv_capacity_tokens  # of the decode part, per context token
        self._linear = 54.01 / kv_capacity_tokens

    def price_pass_ms(self, shape: PassShape) -> float:
        ms = 0.0
        n = shape.num_prompts
        if n:
            tokens = float(n * (shape.prompt_reached_tokens // n - shape.prompt_started_tokens // n))
            if tokens > 0.0:
                ms = (4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142) / self.speedup
        if shape.num_sampled:
            context = shape.sampled_context_tokens
            if context > self.kv_capacity_tokens:
                context = self.kv_capacity_tokens
            ms += ((self._square * context + self._linear) * context + 5.74) / self.decode_divisor
        return ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        last = context_tokens + (passes - 1) * num_decodes
        if passes <= SCALAR_PASSES and last <= self.kv_capacity_tokens:
            square = self._square
            linear = self._linear
            divisor = self.decode_divisor
            contexts = range(context_tokens, last + 1, num_decodes)
            return np.array([((square * context + linear) * context + 5.74) / divisor for context in contexts])
        context = np.arange(context_tokens, last + 1, num_decodes, dtype=np.float64)  # integers below 2**53: exact
        if last > self.kv_capacity_tokens:
            np.minimum(context, self.kv_capacity_tokens, out=context)
        part = context * self._square  # the operations of price_pass_ms, in its order
        part += self._linear
        part *= context
        part += 5.74
        if self.decode_divisor != 1.0:
            part /= self.decode_divisor
        return part
