"""A pool: workers of one kind behind one router.

It knows which of its workers there are and which of them its router may choose, and checks what the router answers.
It never decides when workers come and go.
"""

from __future__ import annotations

from operator import index

from windtunnel.cluster.router.base import RoutedRequest, Router
from windtunnel.cluster.worker import Worker
from windtunnel.engine.engine import Scheduler
from windtunnel.errors import PluginError
from windtunnel.workload.session import Workload


class Pool:
    """Workers that do the same work.

    Attributes:
        name: what reports call it; "" when it is the only one.
        router, router_name: who places requests on it, and what errors call that.
        workers: all there ever were, by number. With data parallelism every rank is one of them.
        routable: those that the router may choose, in ascending order.
        front: a scheduler to ask about requests before there is a worker for them; exists once a worker has joined.
    """

    def __init__(self, name: str, router: Router, router_name: str) -> None:
        self.name = name
        self.router = router
        self.router_name = router_name
        self.front: Scheduler
        self.workers: list[Worker] = []
        self.routable: tuple[Worker, ...] = ()

    def join(self, worker: Worker) -> None:
        """Take in one more worker, whose number is the number of those before it."""
        if not self.workers:
            self.front = worker.engine.scheduler
        self.workers.append(worker)
        self.refresh()

    def refresh(self) -> None:
        """Take notice of workers that have become routable, or are so no more."""
        self.routable = tuple(worker for worker in self.workers if worker.is_routable)

    def place(self, request: RoutedRequest, now_ms: float, workload: Workload) -> Worker:
        """The worker that the router chooses, among which there must be one.

        Raises:
            PluginError: the router raised, or answered with no worker that it may choose.
        """
        try:
            answer = self.router.route(request, self.routable, now_ms)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"router {self.router_name} raised {error!r} for request {workload.request_id(request.number)}"
            ) from error
        workers = self.workers
        if type(answer) is int and 0 <= answer < len(workers) and (worker := workers[answer]).is_routable:
            return worker
        try:
            number = index(answer)  # an integer of numpy will do
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
