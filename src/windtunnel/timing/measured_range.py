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


def measured_range(model: object) -> MeasuredRange | None:
    """Where a timing model was measured, also inside the wrappers of this package; None if it does not say."""
    found = attribute_inside(model, "measured")
    return found if isinstance(found, MeasuredRange) else None


def timing_notes(model: object) -> list[str]:
    """What a reader of results should know about a timing model, one line each."""
    found = attribute_inside(model, "notes")
    return [str(note) for note in found] if isinstance(found, list | tuple) else []


def attribute_inside(model: object, name: str) -> object:
    """An attribute of a model, or of the one that it wraps (as `model`, `kernels` or `base`); None if none has it."""
    for _ in range(4):  # wrappers within each other
        if model is None or hasattr(model, name):
            found: object = getattr(model, name, None)
            return found
        model = next((getattr(model, inner) for inner in ("model", "kernels", "base") if hasattr(model, inner)), None)
    return None
