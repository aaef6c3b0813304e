"""What schedulers do for a request that prefills on one engine and decodes on another.

A source computes prompts and keeps their KV until it is told to release it. A destination reserves room for a prompt,
gets it filled from elsewhere, and decodes. They decide nothing about when: that is the cluster's business
(cluster/handoff.py). All calls are made between two passes of the engine, of which an asynchronous one has decided the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from windtunnel.engine.engine import Scheduler
from windtunnel.engine.request import NAN, EngineRequest
from windtunnel.workload.content import Content

NO_ROOM = -1


class HalfScheduler(Scheduler, Protocol):
    """What is said and asked of either half.

    Attributes:
        is_ahead: it decides its next pass before it knows what the last one has brought, and has one to decide now.
        is_freeing: it holds blocks of requests that have completed, until it has done so.
    """

    @property
    def is_ahead(self) -> bool: ...
    @property
    def is_freeing(self) -> bool: ...

    def await_decision(self, visit: Callable[[], None]) -> None:
        """`visit` is called once, when the next pass has been decided."""
        ...


class SourceScheduler(HalfScheduler, Protocol):
    """Computes prompts, of requests that ask it for no output; what they computed is held when they have finished.

    Attributes:
        held: those requests, by number.
    """

    @property
    def held(self) -> Mapping[int, EngineRequest]: ...

    def release(self, request: EngineRequest) -> None:
        """Give up the KV of a request that has finished."""
        ...


class DestinationScheduler(HalfScheduler, Protocol):
    """Decodes requests whose prompts were computed elsewhere.

    Attributes:
        bars_fresh: reservations wait for room, so requests without a reservation are not admitted.
    """

    bars_fresh: bool

    def cached_tokens(self, content: Content, prompt_tokens: int) -> int:
        """Leading tokens of a prompt that are in the cache now, in whole blocks."""
        ...

    def reserve(self, request: EngineRequest) -> int:
        """Hold what the cache has of the prompt and take blocks for the rest.

        Returns the tokens of the blocks that are to be filled, or `NO_ROOM` with nothing done.
        """
        ...

    def cancel_reservation(self, request: EngineRequest) -> None:
        """Give up what `reserve` took."""
        ...

    def activate(self, request: EngineRequest) -> None:
        """The prompt has arrived: the request decodes as soon as the batch has a place."""
        ...


class HandedOver(Protocol):
    """A request at its destination.

    Attributes:
        decode_admit_ms: start of the first pass there that computes it; NaN before.
    """

    decode_admit_ms: float


class DestinationRequest(EngineRequest):
    """A request that decodes where it did not prefill: see `HandedOver`."""

    __slots__ = ("decode_admit_ms",)

    def __init__(
        self, number: int, content: Content, prompt_tokens: int, max_output_tokens: int, arrival_ms: float
    ) -> None:
        super().__init__(number, content, prompt_tokens, max_output_tokens, arrival_ms)
        self.decode_admit_ms = NAN
