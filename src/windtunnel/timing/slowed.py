"""A timing model on a machine that is slower than it should be."""

from __future__ import annotations

from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.verification import (
    IntArray,
    VerifyingShape,
    price_verifications_ms,
    price_verifying_pass_ms,
)


class SlowedTiming:
    """Another model, every price times `factor`."""

    def __init__(self, model: TimingModel, factor: float) -> None:
        self.model = model
        self.factor = factor
        self.needs_physical_context = model.needs_physical_context

    def price_pass_ms(self, shape: PassShape) -> float:
        return self.model.price_pass_ms(shape) * self.factor

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return self.model.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes) * self.factor

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        return price_verifying_pass_ms(self.model, shape) * self.factor

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        return price_verifications_ms(self.model, num_decodes, draft_tokens, contexts, physical_contexts) * self.factor
