"""Another model's kernels, scaled, with an overhead for the pass and for each request in it.

What a calibration finds out is put in here: how far the kernels of this machine are from what the base model says, for
decodes and for prompts, and what engine and host take besides. Nothing is hidden in a table: every number is an option.
"""

from __future__ import annotations

from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.overhead import Overhead
from windtunnel.timing.verification import (
    IntArray,
    VerifyingShape,
    price_verifications_ms,
    price_verifying_pass_ms,
)


class CalibratedTiming:
    """Prices a pass as: pass + request * requests + decode * (base of its decodes) + prefill * (rest of the base), ms.

    Args:
        base: prices kernels only.
        decode_scale, prefill_scale: factors on the base.
        pass_ms, request_ms: overhead of a pass, and for each request that it computes anything for.
    """

    def __init__(
        self,
        base: TimingModel,
        *,
        decode_scale: float = 1.0,
        prefill_scale: float = 1.0,
        pass_ms: float = 0.0,
        request_ms: float = 0.0,
    ) -> None:
        self.base = base
        self.overhead = Overhead(pass_ms, request_ms)
        self.decode_scale = decode_scale
        self.prefill_scale = prefill_scale
        self.pass_ms = pass_ms
        self.request_ms = request_ms
        self.needs_physical_context = base.needs_physical_context

    def price_pass_ms(self, shape: PassShape) -> float:
        decodes = shape.num_decodes
        if not shape.chunk_tokens:
            if not decodes:
                return 0.0
            overhead = self.pass_ms + self.request_ms * decodes
            return self.base.price_pass_ms(shape) * self.decode_scale + overhead
        overhead = self.pass_ms + self.request_ms * (decodes + len(shape.chunk_tokens))
        decode_ms, prompts_ms = parts_ms(self.base, shape)
        return decode_ms * self.decode_scale + prompts_ms * self.prefill_scale + overhead

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        prices = self.base.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes)
        prices *= self.decode_scale
        prices += self.pass_ms + self.request_ms * num_decodes
        return prices

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        if not shape.draft_tokens:
            return self.price_pass_ms(shape)
        overhead = self.pass_ms + self.request_ms * (shape.num_decodes + len(shape.chunk_tokens))
        decodes = VerifyingShape()
        decodes.add_verifications(shape.num_decodes, shape.decode_context_tokens, shape.draft_tokens)
        decodes.physical_context_tokens = shape.physical_context_tokens
        decode_ms = price_verifying_pass_ms(self.base, decodes)
        if not shape.chunk_tokens:
            return decode_ms * self.decode_scale + overhead
        prompts_ms = price_verifying_pass_ms(self.base, shape) - decode_ms
        return decode_ms * self.decode_scale + prompts_ms * self.prefill_scale + overhead

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        prices = price_verifications_ms(self.base, num_decodes, draft_tokens, contexts, physical_contexts)
        prices *= self.decode_scale
        prices += self.pass_ms + self.request_ms * num_decodes
        return prices


def parts_ms(base: TimingModel, shape: PassShape) -> tuple[float, float]:
    """What the decodes of a pass would cost alone, and what its prompts add to that; both ms of the base model."""
    if not shape.chunk_tokens:
        return base.price_pass_ms(shape), 0.0
    if not shape.num_decodes:
        return 0.0, base.price_pass_ms(shape)
    decodes = PassShape(shape.num_decodes, shape.decode_context_tokens)
    decodes.physical_context_tokens = shape.physical_context_tokens
    decode_ms = base.price_pass_ms(decodes)
    return decode_ms, base.price_pass_ms(shape) - decode_ms
