"""A pool: workers of one kind behind one router.

It makes its workers, knows which of them there are and which of them its router may choose, and checks what the router
answers. It never decides when workers come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index

from windtunnel.cluster.rank_group import RankGroup
from windtunnel.cluster.router.base import RoutedRequest, Router
from windtunnel.cluster.worker import Clock, Worker
from windtunnel.engine.engine import Engine, Scheduler
from windtunnel.engine.rank_engine import RankEngine
from windtunnel.errors import PluginError
from windtunnel.record.columns import PassColumns, Record
from windtunnel.workload.session import Workload


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


class Pool:
    """Workers that do the same work.

    Attributes:
        name: what reports call it; "" when it is the only one.
        turn: of several pools, that of the passes of its workers among those that start at one instant.
        router, router_name: who places requests on it, and what errors call that.
        workers: all there ever were, by number. With data parallelism every rank is one of them.
        routable: those that the router may choose, in ascending order.
        front: a scheduler to ask about requests before there is a worker for them; exists once a worker has joined.
        is_special: see `Worker.is_special`.

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
        self.front: Scheduler
        self.workers: list[Worker] = []
        self.routable: tuple[Worker, ...] = ()
        self.is_special = ranks_per_worker > 1
        self.ranks_per_worker = ranks_per_worker
        self.build = build
        self._fleet = fleet

    @property
    def num_workers(self) -> int:
        """Workers there ever were, however many ranks they have."""
        return len(self.workers) // self.ranks_per_worker

    def start(self) -> list[Worker]:
        """Make one more worker, which the router may choose; returns its ranks."""
        fleet = self._fleet
        ranks: list[Worker] = []
        for _ in range(self.ranks_per_worker):
            passes = PassColumns()
            index = len(fleet.workers)
            order = (self.turn << 32) + index
            worker = Worker(len(self.workers), index, order, self.build(passes), fleet.clock)
            worker.is_special = self.is_special
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
        self.refresh()
        return ranks

    def refresh(self) -> None:
        """Take notice of workers that have become routable, or are so no more."""
        self.routable = tuple(worker for worker in self.workers if worker.is_routable)

    def place(self, request: RoutedRequest, now_ms: float, workload: Workload) -> Worker:
        """The worker that the router chooses, among which there must be one.

        Raises:
            PluginError: the router raised, or answered with no worker that it may choose.
        """
        route: Callable[..., object] = self.router.route  # whatever it returns
        try:
            answer = route(request, self.routable, now_ms)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"router {self.router_name} raised {error!r} for request {workload.request_id(request.number)}", error
            ) from error
        workers = self.workers
        if type(answer) is int and 0 <= answer < len(workers) and (worker := workers[answer]).is_routable:
            return worker
        try:
            number = index(answer)  # type: ignore[arg-type]  # an integer of numpy will do; nothing else
        except TypeError:
            number = -1
        if 0 <= number < len(workers) and (worker := workers[number]).is_routable:
            return worker
        numbers = [worker.number for worker in self.routable]
        expected = f"a worker number from {numbers[0]} to {numbers[-1]}"
        if len(numbers) <= numbers[-1] - numbers[0]:
            expected = f"one of the workers {', '.join(map(str, numbers))}"
        raise PluginError(
            f"router {self.router_name} returned {answer!r} for request {workload.request_id(request.number)}: "
            f"expected {expected}"
        )
