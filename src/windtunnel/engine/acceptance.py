"""How many draft tokens a verification accepts.

Acceptance is an input: recorded counts, or chances per position that a seed turns into counts. It is drawn for each
request by itself, so neither the batch nor the engine that a request is in changes it.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from windtunnel.config.speculation import SpeculationConfig
from windtunnel.workload.streams import named_stream


class Acceptance(Protocol):
    """Says how many of its drafts each request accepts."""

    def accepted(self, request: int, verification: int, drafts: int) -> int:
        """Of `drafts` drafts, in the verification number `verification` (from 0) of a request; asked in order."""
        ...

    def forget(self, request: int) -> None:
        """It will not be asked about this request again."""
        ...


class RecordedAcceptance:
    """The same counts for each request, again and again."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def accepted(self, request: int, verification: int, drafts: int) -> int:
        return min(self.counts[verification % len(self.counts)], drafts)

    def forget(self, request: int) -> None:
        """It remembers nothing of requests."""


class RandomAcceptance:
    """Draft i is accepted with chance `rates[i]` if all before it were."""

    def __init__(self, rates: list[float], seed: int) -> None:
        self.rates = rates
        self._seed = seed
        self._streams: dict[int, Random] = {}

    def accepted(self, request: int, verification: int, drafts: int) -> int:
        stream = self._streams.get(request)
        if stream is None:
            stream = self._streams[request] = named_stream(self._seed, f"acceptance-{request}")
        count = 0
        for rate in self.rates:  # whatever was drafted: a draft that the budget cut changes no later verification
            if stream.random() >= rate:
                break
            count += 1
        return min(count, drafts)

    def forget(self, request: int) -> None:
        self._streams.pop(request, None)


def build_acceptance(config: SpeculationConfig, seed: int) -> Acceptance:
    """What `engine.speculation` describes."""
    if config.accepted_tokens is not None:
        return RecordedAcceptance(config.accepted_tokens)
    if config.acceptance_rates is not None:
        return RandomAcceptance(config.acceptance_rates, seed)
    assert config.mean_accept_length is not None
    rate = equal_rate(config.mean_accept_length, config.num_speculative_tokens)
    return RandomAcceptance([rate] * config.num_speculative_tokens, seed)


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
