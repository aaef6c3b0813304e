"""Single points of measurements: so many equal requests, priced by any timing model. For comparisons and fits."""

from __future__ import annotations

from windtunnel.timing.base import PassShape, TimingModel


def price_decode_ms(model: TimingModel, batch: int, context_tokens: float) -> float:
    """A pass in which `batch` requests decode one token each, `context_tokens` on average with that token."""
    shape = PassShape(batch, round(batch * context_tokens))
    shape.physical_context_tokens = shape.decode_context_tokens if model.needs_physical_context else -1
    return model.price_pass_ms(shape)


def price_prompts_ms(
    model: TimingModel, batch: int, new_tokens: int, cached_tokens: int = 0, sampled: int | None = None
) -> float:
    """A pass that computes the last `new_tokens` tokens of `batch` prompts, whose first `cached_tokens` are cached.

    Args:
        sampled: how many of them emit a token; all unless given.
    """
    shape = PassShape()
    for number in range(batch):
        is_sampled = sampled is None or number < sampled
        shape.add_chunk(cached_tokens, new_tokens, cached_tokens + new_tokens, is_sampled)
    shape.physical_context_tokens = batch * (cached_tokens + new_tokens) if model.needs_physical_context else -1
    return model.price_pass_ms(shape)
