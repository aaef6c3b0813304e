"""A timing model over tables: measured profiles and tabulated predictors are priced by the same few lines.

It decides nothing about numbers. A table says what a pass of decodes costs by its contexts (one `DecodeCurve` for each
batch size, made when it is first needed) and what a pass with prompts costs.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.decode_curve import DecodeCurve
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.verification import IntArray

FLOOR_MS = 1e-3  # of a pass that computes anything: extrapolated lines may point below zero


class PassTable(Protocol):
    """What passes cost.

    Attributes:
        measured: where the numbers come from data; outside they are extrapolated.
        notes: what a reader of the results should know about this data, one line each.
    """

    measured: MeasuredRange
    notes: list[str]

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        """The price of passes that decode one token for each of `num_decodes` >= 1 requests."""
        ...

    def price_prompts_ms(self, shape: PassShape, decode_ms: float) -> float:
        """The price in ms, above 0, of a pass with chunks of prompts; its decodes alone would cost `decode_ms`."""
        ...


class TabulatedTiming:
    """Prices passes from a table. Decodes cost by the sum of their logical contexts.

    Where the table has a `skew`, decodes of unequal contexts take that share longer of what they would if all of them
    had the longest: a launch lasts until its longest request is done.
    """

    needs_physical_context = False

    def __init__(self, table: PassTable) -> None:
        self.table = table
        self.measured = table.measured
        self.notes = table.notes
        self._skew = float(getattr(table, "skew", 0.0))
        self.needs_longest_context = self._skew > 0.0
        self._curves: list[DecodeCurve | None] = [None] * 257  # by number of decodes

    def price_pass_ms(self, shape: PassShape) -> float:
        decode_ms = 0.0
        if shape.num_decodes:
            curve = self._curve(shape.num_decodes)
            decode_ms = curve.price_ms(shape.decode_context_tokens)
            if shape.longest_context_tokens and self._skew:
                longest = shape.num_decodes * shape.longest_context_tokens
                decode_ms += self._skew * max(curve.price_ms(longest) - decode_ms, 0.0)
        if not shape.chunk_tokens:
            return decode_ms
        return self.table.price_prompts_ms(shape, decode_ms)

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return self._curve(num_decodes).price_run_ms(context_tokens, num_decodes, passes)

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        """As so many more decodes with the same contexts; single passes too (timing/verification.py)."""
        return self._curve(num_decodes + draft_tokens).price_contexts_ms(contexts.astype(np.float64))

    def _curve(self, num_decodes: int) -> DecodeCurve:
        if num_decodes >= len(self._curves):
            self._curves.extend([None] * (num_decodes + 1))
        curve = self._curves[num_decodes]
        if curve is None:
            curve = self._curves[num_decodes] = self.table.decode_curve(num_decodes)
        return curve
