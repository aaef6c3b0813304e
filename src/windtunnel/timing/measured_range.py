"""Where a timing model has data: outside of it, prices are extrapolated and reports say so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredRange:
    """The passes that a model's data covers, both ends included.

    Attributes:
        decodes: least and most requests that decode together.
        context_tokens: least and greatest mean context of those.
        pass_tokens: least and most prompt tokens that one pass computes.
    """

    decodes: tuple[int, int]
    context_tokens: tuple[float, float]
    pass_tokens: tuple[int, int]

    def holds_decodes(self, num_decodes: int, context_tokens: int) -> bool:
        """Whether a pass of `num_decodes` decodes, contexts summing to `context_tokens`, is covered."""
        low, high = self.context_tokens
        return self.decodes[0] <= num_decodes <= self.decodes[1] and (
            low * num_decodes <= context_tokens <= high * num_decodes
        )

    def holds_prompts(self, tokens: int) -> bool:
        """Whether a pass that computes so many prompt tokens is covered."""
        return self.pass_tokens[0] <= tokens <= self.pass_tokens[1]
