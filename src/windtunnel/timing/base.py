"""What an engine tells a timing model, and what it gets back.

A timing model prices forward passes. It never sees queues or blocks, and an engine never sees hardware.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class PassShape:
    """One forward pass: the prompt chunks and the decodes that are computed together.

    It may be empty: a preemption can leave a pass with nothing to compute.

    Attributes:
        chunk_starts, chunk_tokens: position where each chunk starts and the tokens it computes; generated
            tokens that a preempted request recomputes are tokens of a chunk too.
        num_prompts: chunks that compute at least one prompt token.
        prompt_reached_tokens, prompt_started_tokens: sums over those prompts of the prompt position at the end
            and at the start of the pass; their difference is the number of prompt tokens computed.
        num_decodes: requests that decode one token after their last one.
        decode_context_tokens: sum of their logical context lengths, the token being computed included. A
            prefix shared by several requests counts once for each.
        physical_context_tokens: distinct tokens in the KV cache that running requests hold; -1 unless the
            model says `needs_physical_context`.
        group_tokens: tokens that all ranks of a data-parallel group compute in this pass, if any of them has prompts in
            it: experts that the ranks share see those. 0 otherwise: the others are then taken to be like this one.
        longest_context_tokens: the longest logical context among the decodes; 0 unless the model has an attribute
            `needs_longest_context` that is true.
        num_sampled: requests that emit a token: the decodes and the chunks that end their prefill.
        sampled_context_tokens: sum of the logical context lengths of those.
    """

    __slots__ = (
        "chunk_starts",
        "chunk_tokens",
        "decode_context_tokens",
        "group_tokens",
        "longest_context_tokens",
        "num_decodes",
        "num_prompts",
        "num_sampled",
        "physical_context_tokens",
        "prompt_reached_tokens",
        "prompt_started_tokens",
        "sampled_context_tokens",
    )

    def __init__(self, num_decodes: int = 0, decode_context_tokens: int = 0) -> None:
        self.chunk_starts: list[int] = []
        self.chunk_tokens: list[int] = []
        self.num_prompts = 0
        self.prompt_reached_tokens = 0
        self.prompt_started_tokens = 0
        self.num_decodes = num_decodes
        self.decode_context_tokens = decode_context_tokens
        self.physical_context_tokens = -1
        self.group_tokens = 0
        self.longest_context_tokens = 0
        self.num_sampled = num_decodes
        self.sampled_context_tokens = decode_context_tokens

    def add_decode(self, context_tokens: int) -> None:
        """Add a request that decodes one token, the last one of a context of `context_tokens`."""
        self.num_decodes += 1
        self.num_sampled += 1
        self.decode_context_tokens += context_tokens
        self.sampled_context_tokens += context_tokens

    def add_decodes(self, num_decodes: int, context_tokens: int) -> None:
        """Add requests that decode one token each, with so many context tokens in all."""
        self.num_decodes += num_decodes
        self.num_sampled += num_decodes
        self.decode_context_tokens += context_tokens
        self.sampled_context_tokens += context_tokens

    def add_chunk(self, start: int, tokens: int, prompt_tokens: int, sampled: bool) -> None:
        """Add a chunk of `tokens` tokens from position `start` of a request whose prompt has `prompt_tokens`."""
        self.chunk_starts.append(start)
        self.chunk_tokens.append(tokens)
        end = start + tokens
        if start < prompt_tokens:
            self.num_prompts += 1
            self.prompt_reached_tokens += end if end < prompt_tokens else prompt_tokens
            self.prompt_started_tokens += start
        if sampled:
            self.num_sampled += 1
            self.sampled_context_tokens += end


class TimingModel(Protocol):
    """Prices passes. Both calls must agree bit for bit, and be pure: the same shape has the same price.

    A pass that computes anything takes time: its price is above zero. Otherwise much could happen at one instant
    in an order that means nothing. An empty pass may be free.

    A model whose decodes cost by the longest of their contexts too may have an attribute `needs_longest_context`, true:
    shapes carry `longest_context_tokens` then, and runs are priced pass by pass.

    Attributes:
        needs_physical_context: whether shapes must carry `physical_context_tokens`.
    """

    needs_physical_context: bool

    def price_pass_ms(self, shape: PassShape) -> float:
        """Duration of one pass in ms, finite and above 0; 0 is allowed for an empty pass."""
        ...

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        """Durations in ms of `passes` consecutive passes that only decode, as float64 of shape (passes,).

        Pass i (from 0) decodes one token for each of `num_decodes` requests, whose logical contexts sum to
        `context_tokens + i * num_decodes`, their distinct ones to `physical_context_tokens + i * num_decodes`
        (-1 when not asked for). The array is the caller's to change.
        """
        ...
