"""SGLang's new-token ratio: which share of their remaining output it expects running requests to need.

It falls with every decode pass, is raised by an estimate when that was too little, and starts again when idle.
Rules of SGLang 0.5.23. The file prices nothing and admits nobody.
"""

from __future__ import annotations

INITIAL = 0.7  # at schedule_conservativeness 1.0
LOWEST_SHARE = 0.14  # of the initial ratio
DECAY_PASSES = 600  # from the initial ratio to the lowest
RETRACT_STEPS = 20  # tokens that a retraction foresees for each request that stays


class NewTokenRatio:
    """The ratio. Passes are counted and applied when somebody asks, by the same float steps as one by one."""

    __slots__ = ("_decay", "_initial", "_lowest", "_passes", "_ratio")

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(INITIAL * conservativeness, 1.0)
        self._lowest = min(self._initial * LOWEST_SHARE, 1.0)
        self._decay = (self._initial - self._lowest) / DECAY_PASSES
        self._ratio = self._initial
        self._passes = 0

    def value(self) -> float:
        """The ratio now."""
        ratio = self._ratio
        passes = self._passes
        while passes and ratio != self._lowest:
            ratio = max(ratio - self._decay, self._lowest)
            passes -= 1
        self._ratio = ratio
        self._passes = 0
        return ratio

    def note_decodes(self, passes: int) -> None:
        """So many passes decoded, and none of them retracted anybody."""
        self._passes += passes

    def note_retraction(self, generated_tokens: int, asked_tokens: int, survivors: int) -> None:
        """A retraction left `survivors` requests, which have generated so many of the tokens they asked for."""
        self._ratio = min(1.0, (generated_tokens + RETRACT_STEPS * survivors) / (asked_tokens + 1))
        self._passes = 0

    def reset(self) -> None:
        """The engine had nothing to run."""
        self._ratio = self._initial
        self._passes = 0
