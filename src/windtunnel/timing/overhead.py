"""Time of a pass that no kernel accounts for: the scheduler, preparing inputs, launching, sampling, detokenising.

It is apart from kernels on purpose: predictions of kernels are low by a median of 11 % against a real engine, and this
is what is missing. The defaults were fitted on one profile (38 decode points of Llama-3.1-8B-FP8 on an H200 under vLLM,
published with NVIDIA Dynamo): 0.65 ms a pass and 16 microseconds for each request in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.measured_range import attribute_inside
from windtunnel.timing.verification import (
    IntArray,
    VerifyingShape,
    price_verifications_ms,
    price_verifying_pass_ms,
)

DEFAULT_PASS_MS = 0.65
DEFAULT_REQUEST_MS = 0.016


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a pass takes besides its kernels, ms.

    Attributes:
        pass_ms: for the pass; request_ms: for each request that it computes anything for.
    """

    pass_ms: float = DEFAULT_PASS_MS
    request_ms: float = DEFAULT_REQUEST_MS

    def of_pass_ms(self, num_requests: int) -> float:
        """Overhead in ms of a pass with so many requests."""
        return self.pass_ms + self.request_ms * num_requests


NO_OVERHEAD = Overhead(0.0, 0.0)


class WithOverhead:
    """A model of kernels, and the overhead of the passes that they are run in."""

    def __init__(self, kernels: TimingModel, overhead: Overhead) -> None:
        self.kernels = kernels
        self.overhead = overhead
        self.needs_physical_context = kernels.needs_physical_context

    def price_pass_ms(self, shape: PassShape) -> float:
        requests = shape.num_decodes + len(shape.chunk_tokens)
        if not requests:
            return self.kernels.price_pass_ms(shape)
        return self.kernels.price_pass_ms(shape) + self.overhead.of_pass_ms(requests)

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        prices = self.kernels.price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes)
        prices += self.overhead.of_pass_ms(num_decodes)
        return prices

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        requests = shape.num_decodes + len(shape.chunk_tokens)
        price_ms = price_verifying_pass_ms(self.kernels, shape)
        return price_ms + self.overhead.of_pass_ms(requests) if requests else price_ms

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        prices = price_verifications_ms(self.kernels, num_decodes, draft_tokens, contexts, physical_contexts)
        return prices + self.overhead.of_pass_ms(num_decodes)


def overhead_of(model: TimingModel) -> Overhead | None:
    """The overhead in the prices of a model, also inside wrappers; None if it has none or does not tell."""
    found = attribute_inside(model, "overhead")
    return found if isinstance(found, Overhead) and found != NO_OVERHEAD else None
