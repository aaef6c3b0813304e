"""What computing prompts costs, from measurements of single prompts without a cached prefix.

Such a measurement knows the length only. Its attention grows with the square of the length, so the square's share is
found by a fit and the rest read off the points: later chunks and cached prefixes, which nobody measured, then cost
what causal attention makes of that square.
"""

from __future__ import annotations

import numpy as np

from windtunnel.timing.base import FloatArray


class PrefillLine:
    """Prices the prompt tokens of a pass.

    ms(tokens) = rest(tokens) + square * (sum over chunks of s^2 + 2 s p), s the tokens of a chunk and p the position it
    starts at; `rest` is linear between the measured lengths, so that a single prompt costs what was measured.

    Args:
        tokens: lengths in tokens, strictly increasing, at least two.
        ms: what prompts of these lengths took.
    """

    def __init__(self, tokens: FloatArray, ms: FloatArray) -> None:
        self.square = _square_share(tokens, ms)
        self.tokens: list[float] = tokens.tolist()
        self._tokens = tokens
        self._rest = ms - self.square * tokens * tokens
        slopes = np.diff(self._rest) / np.diff(tokens)
        self._first_slope = float(slopes[0])
        self._last_slope = float(slopes[-1])
        self.fixed_ms = max(float(self._rest[0]) - self._first_slope * float(tokens[0]), 0.0)

    def price_ms(self, chunk_starts: list[int], chunk_tokens: list[int]) -> float:
        """Duration in ms of the chunks of one pass; may be 0 or below where the line is extrapolated."""
        total = 0
        area = 0
        for start, tokens in zip(chunk_starts, chunk_tokens, strict=True):
            total += tokens
            area += tokens * (tokens + 2 * start)
        return self._rest_ms(total) + self.square * area

    def _rest_ms(self, tokens: int) -> float:
        if tokens < self.tokens[0]:
            return float(self._rest[0]) - self._first_slope * (self.tokens[0] - tokens)
        if tokens > self.tokens[-1]:
            return float(self._rest[-1]) + self._last_slope * (tokens - self.tokens[-1])
        return float(np.interp(tokens, self._tokens, self._rest))


def _square_share(tokens: FloatArray, ms: FloatArray) -> float:
    """The coefficient of tokens^2 in the quadratic that fits best in relative terms, 0 at least."""
    if len(tokens) < 3:
        return 0.0
    scale = float(tokens[-1])  # keeps the columns of one size
    columns = np.stack([np.ones_like(tokens), tokens / scale, (tokens / scale) ** 2], axis=1)
    weights = 1.0 / ms
    fit, *_ = np.linalg.lstsq(columns * weights[:, None], np.ones_like(ms), rcond=None)
    return max(float(fit[2]), 0.0) / scale / scale
