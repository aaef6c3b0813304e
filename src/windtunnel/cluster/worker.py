"""A worker: one engine, and what the cluster and its router know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from windtunnel.engine.engine import Engine
from windtunnel.engine.request import EngineRequest

if TYPE_CHECKING:
    from windtunnel.cluster.router.feed import RouterFeed


class Clock:
    """The virtual time that the parts of a cluster share."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms = 0.0


class PassUnit(Protocol):
    """What begins and ends passes: an engine by itself, or several that do so together."""

    end_ms: float

    def begin(self, now_ms: float) -> float: ...
    def end(self) -> list[EngineRequest]: ...
    def cut(self, now_ms: float) -> float: ...


class Worker:
    """An engine with a number; satisfies `WorkerView`. A rank of a data-parallel group is a worker of its own.

    Attributes:
        number: its place among the workers of its pool, from 0; what a router answers.
        index: its place among all engines there ever were, which is that of its passes in the record.
        order: of what happens to several workers at one instant, the lowest first.
        engine: its scheduler, cache and clock.
        unit: what begins and ends its passes: its engine, or the group that it is a rank of.
        is_routable: whether its router may place requests on it.
        feed: tells its router what happens on it, if that wants to know.
        is_special: whether the end of a pass means more for it than the ends of requests.
        num_requests: requests sent to it that have not ended.
    """

    def __init__(self, number: int, index: int, order: int, engine: Engine, clock: Clock) -> None:
        self.number = number
        self.index = index
        self.order = order
        self.engine = engine
        self.unit: PassUnit = engine
        self.is_routable = True
        self.is_special = False
        self.feed: RouterFeed | None = None
        self.num_requests = 0
        self._clock = clock

    @property
    def num_waiting(self) -> int:
        return self.engine.scheduler.num_waiting

    @property
    def num_running(self) -> int:
        return self.engine.scheduler.num_running

    @property
    def free_blocks(self) -> int:
        return self.engine.free_blocks(self._clock.now_ms)

    @property
    def num_blocks(self) -> int:
        return self.engine.scheduler.pool.num_blocks

    @property
    def accept_length(self) -> float:
        return self.engine.accept_length(self._clock.now_ms)
