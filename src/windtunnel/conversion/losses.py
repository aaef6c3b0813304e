"""What a conversion loses: counts, each with what they are about, in the order in which they were found.

It decides nothing; who transforms or writes a workload says here what does not survive it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """One kind of loss.

    Attributes:
        count, of: how many of how many.
        things: what is counted, in the plural ("requests").
        message: what became of them.
    """

    count: int
    of: int
    things: str
    message: str

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,} {self.things} {self.message}"


class Losses:
    """The losses of one conversion."""

    def __init__(self) -> None:
        self.found: list[Loss] = []

    def note(self, count: int, of: int, things: str, message: str) -> None:
        """Something is lost for `count` of `of` things; nothing is noted for a count of 0."""
        if count:
            self.found.append(Loss(count, of, things, message))


class Rounding:
    """Times that a format cannot hold as they are: how many, and by how much they differ at most."""

    def __init__(self) -> None:
        self.changed = 0
        self.largest_ms = 0.0

    def written(self, wanted_ms: float, read_ms: float) -> None:
        """A time was to be `wanted_ms`, and `read_ms` is what a reader will find."""
        if wanted_ms != read_ms:
            self.changed += 1
            self.largest_ms = max(self.largest_ms, abs(wanted_ms - read_ms))

    def note(self, losses: Losses, num_requests: int) -> None:
        """Say how many times were rounded."""
        losses.note(self.changed, num_requests, "times", f"are rounded, by at most {self.largest_ms:.3g} ms")
