"""A pool: workers of one kind behind one router.

It makes its workers, knows which of them there are and which of them its router may choose, and checks what the router
answers. It never decides when workers come and go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from operator import index
from typing import Protocol

from windtunnel.cluster.rank_group import RankGroup
from windtunnel.cluster.router.base import QUEUED, RefusalError, RoutedRequest, Router
from windtunnel.cluster.router.feed import RouterFeed
from windtunnel.cluster.worker import Clock, Worker
from windtunnel.engine.engine import Engine, Scheduler
from windtunnel.engine.rank_engine import RankEngine
from windtunnel.errors import PluginError
from windtunnel.record.columns import PassColumns, Record
from windtunnel.workload.session import Workload

INFINITE = float("inf")


class Fleet:
    """All engines there ever were in a cluster, whatever their pool.

    Attributes:
        workers: by index.
        record: where they write what they do.
        clock: what time it is for all of them.
    """

    def __init__(self, record: Record, clock: Clock) -> None:
        self.workers: list[Worker] = []
        self.record = record
        self.clock = clock


class State(IntEnum):
    """Where a worker is in its life."""

    STARTING = 0
    ACTIVE = 1
    DRAINING = 2
    DOWN = 3
    REMOVED = 4


class Life:
    """A worker of a pool, with all its ranks.

    Attributes:
        number: its place among the workers of its pool, from 0.
        start_ms, end_ms: from when to when it is provisioned; infinite while it is.
    """

    __slots__ = ("end_ms", "number", "ranks", "start_ms", "state")

    def __init__(self, number: int, ranks: list[Worker], start_ms: float, state: State) -> None:
        self.number = number
        self.ranks = ranks
        self.start_ms = start_ms
        self.end_ms = INFINITE
        self.state = state


class Parked(Protocol):
    """A request that waits for a worker to become routable."""

    def is_due(self) -> bool:
        """Whether it still waits."""
        ...

    def resume(self, now_ms: float) -> None: ...
    def fail(self, now_ms: float, reason: str) -> None: ...


class Pool:
    """Workers that do the same work.

    Attributes:
        name: what reports call it; "" when it is the only one.
        turn: of several pools, that of the passes of its workers among those that start at one instant.
        router, router_name: who places requests on it, and what errors call that.
        workers: all there ever were, by number. With data parallelism every rank is one of them.
        routable: those that the router may choose, in ascending order.
        feed: tells the router what happens on the workers, if it wants to know; set before any joins.
        front: a scheduler to ask about requests before there is a worker for them; exists once a worker has joined.
        lives: its workers, however many ranks they have.
        parked: what waits for a worker to become routable, as long as none is.
        is_special: see `Worker.is_special`; of workers yet to start.
        tokens_per_block: of its KV caches.
        shares_outputs: whether requests may generate the same content; of workers yet to start.

    Args:
        build: makes the engine that writes to some pass columns.
        ranks_per_worker: data-parallel ranks of each worker.
    """

    def __init__(
        self,
        name: str,
        turn: int,
        router: Router,
        router_name: str,
        fleet: Fleet,
        build: Callable[[PassColumns], Engine],
        ranks_per_worker: int = 1,
    ) -> None:
        self.name = name
        self.turn = turn
        self.router = router
        self.router_name = router_name
        self.feed: RouterFeed | None = None
        self.front: Scheduler
        self.workers: list[Worker] = []
        self.routable: tuple[Worker, ...] = ()
        self.lives: list[Life] = []
        self.parked: deque[Parked] = deque()
        self.is_special = ranks_per_worker > 1
        self.tokens_per_block = 1
        self.shares_outputs = False
        self.ranks_per_worker = ranks_per_worker
        self._build = build
        self._fleet = fleet

    def provisioned_ms(self, end_ms: float) -> float:
        """Time integral, up to the end of everything, of the workers there were."""
        always = [life for life in self.lives if life.start_ms == 0.0 and life.end_ms >= end_ms]
        others = [life for life in self.lives if life.start_ms < end_ms and life not in always]
        return end_ms * len(always) + sum(min(life.end_ms, end_ms) - life.start_ms for life in others)

    def make_engine(self, passes: PassColumns) -> Engine:
        """An empty engine for a worker that starts, or is back after a crash, writing to these pass columns."""
        engine = self._build(passes)
        if self.is_special:
            engine.runs_on = False
        if self.shares_outputs:
            engine.scheduler.share_outputs()
        return engine

    def start(self, now_ms: float = 0.0, is_ready: bool = True) -> Life:
        """Make one more worker, which the router may choose if it is ready."""
        fleet = self._fleet
        ranks: list[Worker] = []
        for _ in range(self.ranks_per_worker):
            passes = PassColumns()
            index = len(fleet.workers)
            order = (self.turn << 32) + index
            worker = Worker(len(self.workers), index, order, self.make_engine(passes), fleet.clock)
            worker.is_special = self.is_special
            worker.is_routable = is_ready
            if not self.workers:
                self.front = worker.engine.scheduler
            fleet.record.passes.append(passes)
            fleet.record.worker_numbers.append(worker.number)
            fleet.workers.append(worker)
            self.workers.append(worker)
            ranks.append(worker)
        engines = [worker.engine for worker in ranks if isinstance(worker.engine, RankEngine)]
        if engines:
            group = RankGroup(engines)
            for worker in ranks:
                worker.unit = group
        if self.feed is not None:
            for worker in ranks:
                self.feed.watch(worker)
        life = Life(len(self.lives), ranks, now_ms, State.ACTIVE if is_ready else State.STARTING)
        self.lives.append(life)
        self.refresh()
        return life

    def unpark(self, now_ms: float) -> None:
        """Let go on what waited for a worker, if there is one now."""
        parked = self.parked
        self.parked = deque()
        while parked and self.routable:
            waiting = parked.popleft()
            if waiting.is_due():
                waiting.resume(now_ms)
        self.parked.extend(parked)

    def refresh(self) -> None:
        """Take notice of workers that have become routable, or are so no more."""
        self.routable = tuple(worker for worker in self.workers if worker.is_routable)

    def place(self, request: RoutedRequest, now_ms: float, workload: Workload) -> Worker | None:
        """The worker that the router chooses, among which there must be one; None if it keeps the request.

        Raises:
            RefusalError: it refuses the request.
            PluginError: the router raised, or answered with no worker that it may choose.
        """
        route: Callable[..., object] = self.router.route  # whatever it returns
        try:
            answer = route(request, self.routable, now_ms)
        except RefusalError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"router {self.router_name} raised {error!r} for request {workload.request_id(request.number)}", error
            ) from error
        workers = self.workers
        if type(answer) is int and 0 <= answer < len(workers) and (worker := workers[answer]).is_routable:
            if self.feed is not None:
                self.feed.placed(request.number, worker)
            return worker
        if answer == QUEUED and type(answer) is int and self.feed is not None:
            self.feed.placed(request.number, None)
            return None
        try:
            number = index(answer)  # type: ignore[arg-type]  # an integer of numpy will do; nothing else
        except TypeError:
            number = -1
        if 0 <= number < len(workers) and (worker := workers[number]).is_routable:
            if self.feed is not None:
                self.feed.placed(request.number, worker)
            return worker
        numbers = [worker.number for worker in self.routable]
        expected = f"a worker number from {numbers[0]} to {numbers[-1]}"
        if len(numbers) <= numbers[-1] - numbers[0]:
            expected = f"one of the workers {', '.join(map(str, numbers))}"
        raise PluginError(
            f"router {self.router_name} returned {answer!r} for request {workload.request_id(request.number)}: "
            f"expected {expected}"
        )
