"""A timing model on a machine that is slower than it should be."""

from __future__ import annotations

from windtunnel.timing.base import FloatArray, PassShape, TimingModel


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
