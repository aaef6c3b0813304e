"""How many draft tokens a verification accepts.

Acceptance is an input: recorded counts, or chances per position that a seed turns into counts. What a verification
accepts depends on the seed, the request and how many it has had before, and on nothing else: neither the batch nor the
engine that a request is in changes it, and all that a request will accept is known when it begins to decode.
Source of the numbers behind the chances: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), which gives the n-th number of a stream without those before it.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.config.speculation import AcceptanceConfig
from windtunnel.workload.streams import named_stream

IntArray: TypeAlias = NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
FRACTION_BITS = 53
TABLE_SIZE = 4096

NOTHING_DRAWN: IntArray = np.zeros(1, dtype=np.int64)
DRAWN_AT_LEAST = 8  # verifications at a time


class Acceptance(Protocol):
    """Says how many of its drafts each request accepts.

    Attributes:
        mean_length: tokens that a verification yields on average, the one that the model adds included.
    """

    mean_length: float

    def draw(self, request: int, first: int, count: int) -> IntArray:
        """Drafts accepted in verifications [first, first + count) of a request, numbered from 0, if all are there."""
        ...


class RecordedAcceptance:
    """The same counts for each request, again and again."""

    def __init__(self, counts: list[int]) -> None:
        self.mean_length = 1.0 + sum(counts) / len(counts)
        self._counts = np.array(counts, dtype=np.int64)

    def draw(self, request: int, first: int, count: int) -> IntArray:
        return self._counts.take(np.arange(first, first + count), mode="wrap")


class RandomAcceptance:
    """Draft i is accepted with chance `rates[i]` if all before it were."""

    def __init__(self, rates: list[float], seed: int) -> None:
        reached = np.cumprod(np.array(rates, dtype=np.float64))  # chance that draft i and all before it are accepted
        self.mean_length = 1.0 + float(reached.sum())
        self._num_drafts = len(rates)
        self._thresholds: IntArray = np.ceil(reached[::-1] * 2.0**FRACTION_BITS).astype(np.int64)
        stream = named_stream(seed, "acceptance")
        self._key = int(stream.random() * 2.0**32) << 32 | int(stream.random() * 2.0**32)
        self._steps = np.arange(1, TABLE_SIZE + 1, dtype=np.uint64) * np.uint64(GAMMA)

    def draw(self, request: int, first: int, count: int) -> IntArray:
        if first + count > len(self._steps):
            self._steps = np.arange(1, 2 * (first + count) + 1, dtype=np.uint64) * np.uint64(GAMMA)
        state = _mix(self._key + request * GAMMA & MASK)
        numbers = self._steps[first : first + count] + np.uint64(state)
        numbers ^= numbers >> np.uint64(30)
        numbers *= np.uint64(0xBF58476D1CE4E5B9)
        numbers ^= numbers >> np.uint64(27)
        numbers *= np.uint64(0x94D049BB133111EB)
        numbers ^= numbers >> np.uint64(31)
        numbers >>= np.uint64(64 - FRACTION_BITS)
        return self._num_drafts - self._thresholds.searchsorted(numbers.view(np.int64), side="right")


def _mix(z: int) -> int:
    """The output function of SplitMix64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def extend_lengths(lengths: IntArray, acceptance: Acceptance, request: int, tokens: int) -> IntArray:
    """What the first 0, 1, 2, ... verifications of a request yield, drawn on until that is so many tokens or more."""
    while lengths.item(-1) < tokens:
        drawn = len(lengths)
        count = int((tokens - lengths.item(-1)) / acceptance.mean_length * 1.125) + DRAWN_AT_LEAST
        more = np.empty(drawn + count, dtype=np.int64)
        more[:drawn] = lengths
        more[drawn:] = acceptance.draw(request, drawn - 1, count)
        more[drawn:] += 1
        np.add.accumulate(more[drawn - 1 :], out=more[drawn - 1 :])
        lengths = more
    return lengths


def build_acceptance(config: AcceptanceConfig, seed: int) -> Acceptance:
    """What `engine.speculation` describes."""
    if config.accepted_tokens is not None:
        return RecordedAcceptance(config.accepted_tokens)
    if config.acceptance_rates is not None:
        return RandomAcceptance(config.acceptance_rates, seed)
    assert config.mean_accept_length is not None
    rate = equal_rate(config.mean_accept_length, config.most_accepted)
    return RandomAcceptance([rate] * config.most_accepted, seed)


def equal_rate(mean_length: float, drafts: int) -> float:
    """The chance p per draft at which 1 + p + p^2 + ... + p^drafts tokens are `mean_length`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(drafts + 1)) < mean_length:
            low = middle
        else:
            high = middle
    return high
