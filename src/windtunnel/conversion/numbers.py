"""Times as numbers of a file, so that reading them gives back the same floating-point number where one exists.

Decides only which number to write: a format that scales times, or takes differences of them, rounds when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nextafter

_NEIGHBOURS = 4


def number_for(wanted: float, guess: float, read: Callable[[float], float]) -> float:
    """The number near `guess` from which `read` makes `wanted`, or comes closest to it."""
    best = guess
    error = abs(read(guess) - wanted)
    up = down = guess
    for _ in range(_NEIGHBOURS):
        if error == 0.0:
            break
        up, down = nextafter(up, inf), nextafter(down, -inf)
        for candidate in (up, down):
            if abs(read(candidate) - wanted) < error:
                best, error = candidate, abs(read(candidate) - wanted)
    return best


def plain_number(value: float) -> int | float:
    """A number as people write it: without a fraction if it has none."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def time_after(base_ms: float, ms_per_unit: float) -> Callable[[float], float]:
    """What a reader makes of a time behind one at `base_ms`: the difference in ms, never a negative one."""

    def read(number: float) -> float:
        time_ms = number * ms_per_unit - base_ms
        return time_ms if time_ms >= 0.0 else inf

    return read
