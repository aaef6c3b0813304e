"""Prompt tokens that a worker still has to compute, as a router reckons them.

A request counts with its uncached prompt tokens from the time it is placed until its first token. If a duration is
expected of each, the load decays while time passes: requests are taken to be computed one after the other, in the order
of their placement. Rules of Dynamo's prefill tracker.
"""

from __future__ import annotations

from math import ceil

UNKNOWN = -1.0  # no duration is expected


class PrefillLoad:
    """The outstanding prompts of one worker.

    Attributes:
        tokens: the sum of their tokens, without decay.
    """

    __slots__ = ("_anchor_ms", "_outstanding", "_unknown", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self._outstanding: dict[int, tuple[int, float]] = {}  # by request: tokens, expected ms; in order
        self._anchor_ms = 0.0  # since when the first of them is computed
        self._unknown = 0

    def add(self, number: int, tokens: int, expected_ms: float, now_ms: float) -> None:
        """Request `number` is placed; `expected_ms` may be `UNKNOWN`."""
        if not self._outstanding:
            self._anchor_ms = now_ms
        self._outstanding[number] = (tokens, expected_ms)
        self.tokens += tokens
        if expected_ms < 0:
            self._unknown += 1

    def remove(self, number: int, now_ms: float) -> bool:
        """Request `number` has emitted a token, or ended; whether it was outstanding."""
        outstanding = self._outstanding
        entry = outstanding.get(number)
        if entry is None:
            return False
        is_front = next(iter(outstanding)) == number
        del outstanding[number]
        tokens, expected_ms = entry
        self.tokens -= tokens
        if expected_ms < 0:
            self._unknown -= 1
        if is_front:
            self._anchor_ms = now_ms
        elif expected_ms > 0:  # the time was its own, not that of the first
            self._anchor_ms = min(self._anchor_ms + expected_ms, now_ms)
        return True

    def decayed_tokens(self, now_ms: float) -> int:
        """The sum, less what is taken to be computed by now."""
        if not self._outstanding:
            return 0
        tokens, expected_ms = next(iter(self._outstanding.values()))
        if expected_ms < 0:
            return self.tokens
        elapsed_ms = max(now_ms - self._anchor_ms, 0.0)
        if self._unknown:  # nothing is known of what comes after the first
            share = 1.0 - elapsed_ms / expected_ms if expected_ms else 0.0
            return self.tokens - tokens + ceil(tokens * min(max(share, 0.0), 1.0))
        if not expected_ms:
            return self.tokens - tokens
        return max(self.tokens - int(tokens * elapsed_ms / expected_ms), 0)
