"""A user's timing model behind checks: what it returns must be a usable duration."""

from __future__ import annotations

import numpy as np

from windtunnel.errors import PluginError
from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.verification import (
    IntArray,
    VerifyingShape,
    price_verifications_ms,
    price_verifying_pass_ms,
)


class CheckedTiming:
    """A user's timing model behind checks: what it returns must be a usable duration.

    Raises:
        PluginError: the model raised, priced a pass as zero, negative, infinite or not a number, or its two calls
            disagree on the first pass of a run.
    """

    def __init__(self, model: TimingModel, name: str) -> None:
        self.model = model
        self.name = name
        self.needs_physical_context = bool(getattr(model, "needs_physical_context", False))

    def price_pass_ms(self, shape: PassShape) -> float:
        try:
            price = float(self.model.price_pass_ms(shape))
        except (Exception, SystemExit) as error:
            raise PluginError(f"timing model {self.name}: price_pass_ms raised {error!r}", error) from error
        self._check(price, shape, "price_pass_ms")
        return price

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        try:
            price = float(price_verifying_pass_ms(self.model, shape))
        except (Exception, SystemExit) as error:
            raise PluginError(f"timing model {self.name}: pricing drafts raised {error!r}", error) from error
        self._check(price, shape, "price_verifying_pass_ms")
        return price

    def _check(self, price: float, shape: PassShape, method: str) -> None:
        is_empty = not shape.chunk_tokens and not shape.num_decodes
        if not (0.0 < price < float("inf") or (is_empty and price == 0.0)):
            raise PluginError(f"timing model {self.name}: {method} returned {price}, expected finite ms above 0")

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        try:
            prices = np.array(
                self.model.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes),
                dtype=np.float64,
            )
        except (Exception, SystemExit) as error:
            raise PluginError(f"timing model {self.name}: price_run_ms raised {error!r}", error) from error
        if prices.shape != (passes,):
            raise PluginError(
                f"timing model {self.name}: price_run_ms returned shape {prices.shape}, expected ({passes},)"
            )
        if not (np.isfinite(prices).all() and (prices > 0.0).all()):
            raise PluginError(f"timing model {self.name}: price_run_ms returned a price that is not finite ms above 0")
        first = PassShape(num_decodes, context_tokens)
        first.physical_context_tokens = physical_context_tokens
        single = self.price_pass_ms(first)
        if prices[0] != single:
            raise PluginError(
                f"timing model {self.name}: price_run_ms prices a pass of {num_decodes} decodes with {context_tokens} "
                f"context tokens at {prices[0]} ms, price_pass_ms at {single} ms: they must be the same number"
            )
        return prices

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        try:
            prices = np.array(
                price_verifications_ms(self.model, num_decodes, draft_tokens, contexts, physical_contexts),
                dtype=np.float64,
            )
        except (Exception, SystemExit) as error:
            raise PluginError(f"timing model {self.name}: price_verifications_ms raised {error!r}", error) from error
        if prices.shape != (len(contexts),) or not (np.isfinite(prices).all() and (prices > 0.0).all()):
            raise PluginError(
                f"timing model {self.name}: price_verifications_ms returned {prices}, expected {len(contexts)} prices "
                "of finite ms above 0"
            )
        first = VerifyingShape()
        first.add_verifications(num_decodes, contexts.item(0), draft_tokens)
        if physical_contexts is not None:
            first.physical_context_tokens = physical_contexts.item(0)
        single = self.price_verifying_pass_ms(first)
        if prices[0] != single:
            raise PluginError(
                f"timing model {self.name}: price_verifications_ms prices a pass of {num_decodes} decodes with "
                f"{draft_tokens} drafts and {contexts.item(0)} context tokens at {prices[0]} ms, by itself it costs "
                f"{single} ms: they must be the same number"
            )
        return prices
