"""A slow link in exact fractions: every transfer's bytes are counted down from event to event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass
class FluidTransfer:
    size_bytes: int
    start_ms: Fraction
    cancel_ms: Fraction | None = None


def ends_of(
    transfers: Sequence[FluidTransfer], bytes_per_ms: Fraction | None, latency_ms: Fraction, shared: bool
) -> dict[int, Fraction]:
    """When each transfer ends, by its place, in the order of ends and then starts; cancelled ones are missing.

    `bytes_per_ms` of None is an infinite bandwidth.
    """
    left = {i: Fraction(transfer.size_bytes) for i, transfer in enumerate(transfers)}
    begins = {i: transfer.start_ms + latency_ms for i, transfer in enumerate(transfers)}
    ends: dict[int, Fraction] = {}
    now_ms = Fraction(0)
    while left:
        flowing = [i for i in left if begins[i] <= now_ms]
        over = [i for i in flowing if left[i] == 0 or bytes_per_ms is None]
        for i in over:
            ends[i] = now_ms
            del left[i]
        gone = [i for i in left if transfers[i].cancel_ms is not None and transfers[i].cancel_ms <= now_ms]  # type: ignore[operator]
        for i in gone:
            del left[i]
        if over or gone:
            continue
        events = [begins[i] for i in left if begins[i] > now_ms]
        events += [c for i in left if (c := transfers[i].cancel_ms) is not None]
        rate = Fraction(0)
        if flowing and bytes_per_ms is not None:
            rate = bytes_per_ms / len(flowing) if shared else bytes_per_ms
            events += [now_ms + left[i] / rate for i in flowing]
        then_ms = min(events)
        for i in flowing:
            left[i] -= rate * (then_ms - now_ms)
        now_ms = then_ms
    return ends
