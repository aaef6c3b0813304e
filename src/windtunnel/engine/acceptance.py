"""How many draft tokens a verification accepts.

Acceptance is an input: recorded counts, or chances per position that a seed turns into counts. What a verification
accepts depends on the seed, the request and how many it has had before, and on nothing else: neither the batch nor the
engine that a request is in changes it, and all that a request will accept is known when it begins to decode.
Sixteen bits of SHAKE-128 (FIPS 202) are the chance of a verification, the same on every machine. They are drawn for a
block of requests at a time: array operations on one request's few hundred numbers would cost more than these do.
"""

from __future__ import annotations

from hashlib import shake_128
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.config.speculation import AcceptanceConfig
from windtunnel.workload.streams import named_stream

IntArray: TypeAlias = NDArray[np.int64]
CountArray: TypeAlias = NDArray[np.uint16]

CHANCES = 1 << 16  # a rate is met to one in so many
REQUESTS = 32  # of a block
VERIFICATIONS = 192  # of each of them
KEPT_BLOCKS = 64

NOTHING_DRAWN: IntArray = np.zeros(1, dtype=np.int64)


class Acceptance(Protocol):
    """Says how many of its drafts each request accepts; all engines of a deployment may ask the same one."""

    def block(self, request: int, number: int) -> tuple[CountArray, IntArray]:
        """Verifications [VERIFICATIONS * number, VERIFICATIONS * (number + 1)) of a request, if no draft lacks.

        Returns:
            The drafts accepted in each; and the tokens that the first 0, 1, 2, ... of these yield, one more each.
        """
        ...


def tokens_of(accepted: CountArray) -> IntArray:
    """Tokens that the first 0, 1, 2, ... verifications yield, along the last axis."""
    tokens = np.empty((*accepted.shape[:-1], accepted.shape[-1] + 1), dtype=np.int64)
    tokens[..., 0] = 0
    tokens[..., 1:] = accepted
    tokens[..., 1:] += 1
    np.add.accumulate(tokens, axis=-1, out=tokens)
    return tokens


class RecordedAcceptance:
    """The same counts for each request, again and again."""

    def __init__(self, counts: list[int]) -> None:
        self._counts: CountArray = np.array(counts, dtype=np.uint16)
        self._blocks: dict[int, tuple[CountArray, IntArray]] = {}

    def block(self, request: int, number: int) -> tuple[CountArray, IntArray]:
        place = number * VERIFICATIONS % len(self._counts)
        found = self._blocks.get(place)
        if found is None:
            accepted = self._counts.take(np.arange(place, place + VERIFICATIONS), mode="wrap")
            found = self._blocks[place] = (accepted, tokens_of(accepted))
        return found


class RandomAcceptance:
    """Draft i is accepted with chance `rates[i]` if all before it were."""

    def __init__(self, rates: list[float], seed: int) -> None:
        reached = np.cumprod(np.array(rates, dtype=np.float64))  # chance that draft i and all before it are accepted
        chances = np.arange(CHANCES)
        self._accepted: CountArray = np.zeros(CHANCES, dtype=np.uint16)
        for chance in np.rint(reached * CHANCES).tolist():
            self._accepted += chances < chance
        self._name = repr(named_stream(seed, "acceptance").random())
        self._blocks: dict[tuple[int, int], tuple[CountArray, IntArray]] = {}

    def block(self, request: int, number: int) -> tuple[CountArray, IntArray]:
        place, row = divmod(request, REQUESTS)
        found = self._blocks.get((place, number))
        if found is None:
            if len(self._blocks) >= KEPT_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            drawn = shake_128(f"{self._name}/{place}/{number}".encode()).digest(2 * REQUESTS * VERIFICATIONS)
            chances = np.frombuffer(drawn, dtype="<u2").reshape(REQUESTS, VERIFICATIONS)
            accepted = self._accepted.take(chances)
            found = self._blocks[place, number] = (accepted, tokens_of(accepted))
        accepted, tokens = found
        return accepted[row], tokens[row]


def extend_lengths(lengths: IntArray, acceptance: Acceptance, request: int, tokens: int) -> IntArray:
    """What the first 0, 1, 2, ... verifications of a request yield, drawn on until that is so many tokens or more."""
    while (known := lengths.item(-1)) < tokens:
        _, more = acceptance.block(request, len(lengths) // VERIFICATIONS)
        lengths = np.concatenate((lengths, more[1:] + known)) if known else more
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
