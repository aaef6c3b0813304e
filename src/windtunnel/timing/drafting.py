"""What drafting tokens adds to a pass: a term of its own, beside what the verification of them costs.

A draft model runs once for each draft token, for the whole batch, after the pass that emits the tokens it goes on
from; a look-up costs the host. What verification costs is in timing/verification.py.
"""

from __future__ import annotations

from windtunnel.config.speculation import AcceptanceConfig
from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.verification import (
    IntArray,
    VerifyingShape,
    price_verifications_ms,
    verifying_price,
)


class DraftingTiming:
    """Another model, and `draft_ms` for each draft token of passes that emit anything."""

    def __init__(self, model: TimingModel, speculation: AcceptanceConfig) -> None:
        self.model = model
        self.drafting_ms = speculation.draft_ms * speculation.most_accepted
        self.needs_physical_context = model.needs_physical_context
        self._price_verifying_ms = verifying_price(model)

    def price_pass_ms(self, shape: PassShape) -> float:
        if isinstance(shape, VerifyingShape):
            price_ms = self._price_verifying_ms(shape)
        else:
            price_ms = self.model.price_pass_ms(shape)
        return price_ms + self.drafting_ms if shape.num_sampled else price_ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return self.model.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes) + self.drafting_ms

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        prices = price_verifications_ms(self.model, num_decodes, draft_tokens, contexts, physical_contexts)
        return prices + self.drafting_ms if self.drafting_ms else prices
