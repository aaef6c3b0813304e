"""A worker: one engine, and what the cluster and its router know about it."""

from __future__ import annotations

from windtunnel.engine.engine import Engine


class Clock:
    """The virtual time that the parts of a cluster share."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms = 0.0


class Worker:
    """An engine with a number; satisfies `WorkerView`.

    Attributes:
        number: its place among the workers, from 0.
        num_requests: requests sent to it that have not ended.
    """

    def __init__(self, number: int, engine: Engine, clock: Clock) -> None:
        self.number = number
        self.engine = engine
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
