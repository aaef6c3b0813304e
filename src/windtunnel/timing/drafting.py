"""What drafting tokens adds to a pass: a term of its own, beside what the verification of them costs.

A draft model runs once for each draft token, for the whole batch, after the pass that emits the tokens it goes on
from; a look-up costs the host. Verification needs no term: a decode with drafts is a chunk of 1 + K tokens.
"""

from __future__ import annotations

from windtunnel.config.speculation import SpeculationConfig
from windtunnel.timing.base import FloatArray, PassShape, TimingModel


class DraftingTiming:
    """Another model, and `draft_ms` for each draft token of passes that emit anything."""

    def __init__(self, model: TimingModel, speculation: SpeculationConfig) -> None:
        self.model = model
        self.drafting_ms = speculation.draft_ms * speculation.num_speculative_tokens
        self.needs_physical_context = model.needs_physical_context

    def price_pass_ms(self, shape: PassShape) -> float:
        price_ms = self.model.price_pass_ms(shape)
        return price_ms + self.drafting_ms if shape.num_sampled else price_ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return self.model.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes) + self.drafting_ms
