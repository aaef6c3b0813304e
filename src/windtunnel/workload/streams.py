"""Random numbers: every stream is a named child of the one seed of a simulation.

Decides how a stream is seeded, nothing else. A stream depends on its seed and name only, so a new consumer never
shifts the draws of another. Of a `named_stream` only `.random()` may be drawn: that sequence is the one that Python
promises to keep between its versions. A `named_generator` yields the same sequence as arrays, and distributions made
from it, with the methods that numpy has frozen for good (NEP 19, RandomState).
"""

from __future__ import annotations

from random import Random

import numpy as np


def named_stream(seed: int, name: str) -> Random:
    """The stream called `name` of the simulation seeded with `seed`, at its beginning."""
    return Random(f"{seed}/{name}")  # a text seed is hashed by SHA-512, whatever PYTHONHASHSEED is


def named_generator(seed: int, name: str) -> np.random.RandomState:
    """The same stream, for arrays: `random_sample(n)` are the next n numbers of `named_stream(seed, name)`."""
    state = named_stream(seed, name).getstate()[1]
    generator = np.random.RandomState(0)
    generator.set_state(
        ("MT19937", np.array(state[:-1], dtype=np.uint32), int(state[-1]), 0, 0.0)
    )  # Mersenne Twister, as Python's
    return generator


class Streams:
    """The streams of one part of a simulation: those of all parts have different names.

    Args:
        seed: of the simulation.
        part: what the part is called; "" for a load that has no parts.
    """

    __slots__ = ("_prefix", "seed")

    def __init__(self, seed: int, part: str = "") -> None:
        self.seed = seed
        self._prefix = f"{part}/" if part else ""

    def stream(self, name: str) -> Random:
        """See `named_stream`."""
        return named_stream(self.seed, self._prefix + name)

    def generator(self, name: str) -> np.random.RandomState:
        """See `named_generator`."""
        return named_generator(self.seed, self._prefix + name)
