"""Passes in which decodes verify drafts, and how models price them that know nothing of drafts.

A request that verifies K drafts computes 1 + K tokens against one context: layers and head take it for as many tokens,
attention reads its context once. A model that has no prices for that prices it as 1 + K decodes whose contexts sum to
the one: right in what tokens and contexts cost, and too much by what it takes for each request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.timing.base import FloatArray, PassShape, TimingModel

IntArray: TypeAlias = NDArray[np.int64]


class VerifyingShape(PassShape):
    """A forward pass some of whose decodes verify drafts.

    Attributes:
        num_decodes: requests that decode, with drafts or without; each of them is sampled once.
        decode_context_tokens: sum of the positions that they reach, drafts included.
        draft_tokens: drafts verified in all; they are sampled too.
    """

    __slots__ = ("draft_tokens",)

    def __init__(self) -> None:
        super().__init__()
        self.draft_tokens = 0

    def add_verification(self, context_tokens: int, drafts: int) -> None:
        """Add a request that decodes one token and verifies drafts, up to position `context_tokens`."""
        self.add_decode(context_tokens)
        self.draft_tokens += drafts

    def add_verifications(self, requests: int, context_tokens: int, drafts: int) -> None:
        """Add so many of them, with so many context tokens and drafts in all."""
        self.add_decodes(requests, context_tokens)
        self.draft_tokens += drafts

    def as_decodes(self) -> PassShape:
        """The same with a decode for each draft."""
        shape = PassShape(self.num_decodes + self.draft_tokens, self.decode_context_tokens)
        shape.chunk_starts = self.chunk_starts
        shape.chunk_tokens = self.chunk_tokens
        shape.num_prompts = self.num_prompts
        shape.prompt_reached_tokens = self.prompt_reached_tokens
        shape.prompt_started_tokens = self.prompt_started_tokens
        shape.physical_context_tokens = self.physical_context_tokens
        shape.group_tokens = self.group_tokens
        shape.num_sampled = self.num_sampled + self.draft_tokens
        shape.sampled_context_tokens = self.sampled_context_tokens
        return shape


def verifying_price(model: TimingModel) -> Callable[[VerifyingShape], float]:
    """What says how long a pass takes, in ms: the model's `price_verifying_pass_ms(shape)` if it has one."""
    own: Callable[[VerifyingShape], float] | None = getattr(model, "price_verifying_pass_ms", None)
    if own is not None:
        return own
    return lambda shape: model.price_pass_ms(shape.as_decodes() if shape.draft_tokens else shape)


def price_verifying_pass_ms(model: TimingModel, shape: VerifyingShape) -> float:
    """Duration in ms of a pass, by what `verifying_price` finds."""
    return verifying_price(model)(shape)


def price_verifications_ms(
    model: TimingModel, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
) -> FloatArray:
    """Durations in ms of consecutive passes in which `num_decodes` requests verify `draft_tokens` drafts in all.

    Equal to the prices of single passes, bit for bit: by the model's `price_verifications_ms` of the same arguments if
    it has one, else one by one.

    Args:
        contexts: of each pass, the sum of the positions that the requests reach, drafts included.
        physical_contexts: of each pass, distinct tokens in the KV cache; None unless the model asks for them.
    """
    own: Callable[[int, int, IntArray, IntArray | None], FloatArray] | None
    own = getattr(model, "price_verifications_ms", None)
    prices: FloatArray
    if own is not None:
        prices = own(num_decodes, draft_tokens, contexts, physical_contexts)
        return prices
    prices = np.empty(len(contexts))
    for i, context in enumerate(contexts.tolist()):
        shape = VerifyingShape()
        shape.add_verifications(num_decodes, context, draft_tokens)
        if physical_contexts is not None:
            shape.physical_context_tokens = physical_contexts.item(i)
        prices[i] = price_verifying_pass_ms(model, shape)
    return prices
