"""Random numbers: every stream is a named child of the one seed of a simulation.

Decides how a stream is seeded, nothing else. A stream depends on its seed and name only, so a new consumer never
shifts the draws of another. Only `.random()` may be drawn: that sequence is the one that Python promises to keep
between its versions.
"""

from __future__ import annotations

from random import Random


def named_stream(seed: int, name: str) -> Random:
    """The stream called `name` of the simulation seeded with `seed`, at its beginning."""
    return Random(f"{seed}/{name}")  # a text seed is hashed by SHA-512, whatever PYTHONHASHSEED is
