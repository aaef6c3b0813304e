"""What a router sees and decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.workload.content import Content
from windtunnel.workload.urgency import NO_URGENCY, Urgency

QUEUED = -1  # the answer of a router that keeps the request for later


class RoutedRequest:
    """A request that needs a worker.

    Attributes:
        number: its number in the workload.
        session: number of its session; turn: its place in the session.
        input_tokens, output_tokens: prompt length and requested output length.
        content: the tokens of its prompt (and, beyond `input_tokens`, of the output it will generate).
        urgency: what the trace says of its place in a router's queue.
    """

    __slots__ = ("content", "input_tokens", "number", "output_tokens", "session", "turn", "urgency")

    def __init__(
        self,
        number: int,
        session: int,
        turn: int,
        input_tokens: int,
        output_tokens: int,
        content: Content,
        urgency: Urgency = NO_URGENCY,
    ) -> None:
        self.number = number
        self.session = session
        self.turn = turn
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.content = content
        self.urgency = urgency


class WorkerView(Protocol):
    """What a router may know of a worker at the instant it decides. All of it costs O(1) to read.

    Attributes:
        number: the worker's number; `route` returns one of these.
        num_requests: requests sent to it that have not ended.
        num_waiting, num_running: those in its queue and in its batch.
        free_blocks, num_blocks: KV blocks not held by running requests, and all there are.
        accept_length: tokens emitted per request and pass that emitted any, so far; above 1 with speculation only,
            where reading it costs as much as there are requests in the batch. NaN on SGLang that speculates.
    """

    @property
    def number(self) -> int: ...
    @property
    def num_requests(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def accept_length(self) -> float: ...


class Router(Protocol):
    """Places requests. Anything with this method is one; see docs/extending.md for an example."""

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        """The number of the worker that gets `request`. `workers` is in ascending order and never empty."""
        ...


class RefusalError(Exception):
    """Raised by `route`: the request is rejected, with this reason, and the simulation goes on."""


class TrackingRouter:
    """Base of routers that are told what becomes of requests and caches; override what is of interest.

    At one instant, what happens on workers is told before requests that arrive are routed. A request is told of only
    after it was placed: it emits a first token, unless it ends before, and it ends, however it does.

    Attributes:
        follows: whether it is told anything at all.
        dates_events: whether it matters in which pass inside a run of decodes an event was published; it costs more.
        reads_cache: whether `cache_events` is called, reads_prefills: whether `first_token` is; each costs.
        refresh: set by the simulation. Of the workers named, events that a run of passes in flight has published by
            now are only told when this is called; returns whether there were any.
        unread: likewise: the workers for which that may be the case; mostly none.
        publish: likewise: tells of blocks that live requests have generated and that a content quotes.
    """

    follows = True
    dates_events = False
    reads_cache = False
    reads_prefills = True

    def __init__(self) -> None:
        self.refresh: Callable[[Iterable[int]], bool] = _nothing_new
        self.unread: Callable[[], Sequence[int]] = _nobody
        self.publish: Callable[[Content], None] = _no_publication

    def cache_events(self, worker: int, events: list[CacheEvent], now_ms: float) -> None:
        """Blocks were stored and removed, in this order, in passes of a worker that have ended."""

    def first_token(self, number: int, worker: int, now_ms: float) -> None:
        """Request `number` has emitted its first token, and will emit more."""

    def ended(self, number: int, worker: int, now_ms: float) -> None:
        """Request `number` is not on its worker any more."""

    def released(self, workers: Sequence[WorkerView], now_ms: float) -> tuple[int, int] | None:
        """A request that was `QUEUED` and the worker that gets it now; None: the others wait on.

        Asked again until None, after everything that may have changed the answer.
        """
        return None

    def withdrawn(self, number: int, now_ms: float) -> None:
        """The client of a request that is `QUEUED` has given up."""

    def removed(self, worker: int) -> None:
        """A worker has gone for good, and its cache with it; all of its requests have ended."""


def _nothing_new(workers: Iterable[int]) -> bool:
    return False


def _nobody() -> Sequence[int]:
    return ()


def _no_publication(content: Content) -> None:
    return None
