"""What a pass of so many decodes costs, by the sum of their contexts: pieces of a polynomial.

Every table of measurements, whatever its form, is brought into this one before it is used: for a fixed number of
decodes its price is linear between the contexts it knows (or quadratic, where it was given over other axes). A run
of passes is then priced in a handful of array operations, equal to single passes bit for bit.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from windtunnel.timing.base import FloatArray


class DecodeCurve:
    """Prices decode passes of one batch size.

    Args:
        starts: sums of contexts in tokens where pieces 1, 2, ... begin, strictly increasing. Piece 0 has no start
            and the last one no end: beyond what is known the nearest piece goes on.
        constants, slopes, squares: of each piece, one more than `starts`: ms = (square * c + slope) * c + constant.
        floor_ms: the least that a pass may cost, above 0.
    """

    __slots__ = ("_constants", "_pieces", "_slopes", "_squares", "_starts", "floor_ms", "starts")

    def __init__(
        self, starts: FloatArray, constants: FloatArray, slopes: FloatArray, squares: FloatArray, floor_ms: float
    ) -> None:
        self._starts = starts
        self._constants = constants
        self._slopes = slopes
        self._squares = squares
        self.starts: list[float] = starts.tolist()
        self._pieces: list[tuple[float, float, float]] = list(
            zip(constants.tolist(), slopes.tolist(), squares.tolist(), strict=True)
        )
        self.floor_ms = floor_ms

    def price_ms(self, context_tokens: float) -> float:
        """Duration in ms of one pass whose contexts sum to `context_tokens`."""
        constant, slope, square = self._pieces[bisect_right(self.starts, context_tokens)]
        ms = (square * context_tokens + slope) * context_tokens + constant
        return ms if ms > self.floor_ms else self.floor_ms

    def price_run_ms(self, context_tokens: int, num_decodes: int, passes: int) -> FloatArray:
        """Durations in ms of passes whose contexts sum to `context_tokens`, and `num_decodes` more each time."""
        end = context_tokens + (passes - 1) * num_decodes
        return self.price_contexts_ms(np.arange(context_tokens, end + 1, num_decodes, dtype=np.float64))

    def price_contexts_ms(self, contexts: FloatArray) -> FloatArray:
        """Durations in ms of passes with these sums of contexts, which never fall and are at least one."""
        piece = bisect_right(self.starts, contexts.item(0))
        if piece == bisect_right(self.starts, contexts.item(-1)):  # most runs stay within a piece
            constant, slope, square = self._pieces[piece]
            prices = contexts * square
            prices += slope
            prices *= contexts
            prices += constant
        else:
            pieces = np.searchsorted(self._starts, contexts, side="right")
            prices = self._squares[pieces] * contexts
            prices += self._slopes[pieces]
            prices *= contexts
            prices += self._constants[pieces]
        np.maximum(prices, self.floor_ms, out=prices)
        return prices


def linear_curve(contexts: FloatArray, prices_ms: FloatArray, floor_ms: float) -> DecodeCurve:
    """The curve through points, linear between them and beyond the outer ones.

    Args:
        contexts: sums of contexts in tokens, strictly increasing, at least one.
        prices_ms: what a pass costs there.
    """
    if len(contexts) == 1:
        zero = np.zeros(1)
        return DecodeCurve(np.empty(0), prices_ms.astype(np.float64), zero, zero, floor_ms)
    slopes = np.diff(prices_ms) / np.diff(contexts)
    constants = prices_ms[:-1] - slopes * contexts[:-1]
    return DecodeCurve(contexts[1:-1].copy(), constants, slopes, np.zeros(len(slopes)), floor_ms)
