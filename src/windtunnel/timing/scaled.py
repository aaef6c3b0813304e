"""A timing model on a machine that is faster or slower by a factor."""

from __future__ import annotations

from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.verification import (
    IntArray,
    VerifyingShape,
    price_verifications_ms,
    price_verifying_pass_ms,
)


class ScaledTiming:
    """Another model, `speedup` times as fast."""

    def __init__(self, model: TimingModel, speedup: float) -> None:
        self.model = model
        self.speedup = speedup
        self.needs_physical_context = model.needs_physical_context

    def price_pass_ms(self, shape: PassShape) -> float:
        return self.model.price_pass_ms(shape) / self.speedup

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return self.model.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes) / self.speedup

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        return price_verifying_pass_ms(self.model, shape) / self.speedup

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        return price_verifications_ms(self.model, num_decodes, draft_tokens, contexts, physical_contexts) / self.speedup
