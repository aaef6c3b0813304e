"""Tells a tracking router what happens on the workers of its pool, and asks it who may leave its queue.

KV events that a pass published are told when it has ended, before anything else of that pass. A run of decodes is not
cut for them: inside it they are collected when the router asks. The file decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

from windtunnel.cluster.agenda import Agenda, Kind
from windtunnel.cluster.router.base import TrackingRouter
from windtunnel.cluster.router.event_line import EventLine
from windtunnel.cluster.worker import Clock, Worker
from windtunnel.engine.engine import INFINITE
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.request import EngineRequest
from windtunnel.errors import PluginError
from windtunnel.workload.content import Content
from windtunnel.workload.planned_outputs import is_planned
from windtunnel.workload.session import Workload

if TYPE_CHECKING:
    from windtunnel.cluster.pool import Pool

Answer = TypeVar("Answer")


def _by_admission(news: tuple[EngineRequest, bool]) -> int:
    return news[0].admission


class LateEvents:
    """KV events that are still on their way."""

    __slots__ = ("_events", "_feed", "_life", "_line", "_worker")

    def __init__(self, feed: RouterFeed, worker: Worker, line: EventLine, events: list[CacheEvent]) -> None:
        self._feed = feed
        self._worker = worker
        self._line = line
        self._life = line.life
        self._events = events

    def is_due(self) -> bool:
        return self._line.life == self._life

    def happen(self, now_ms: float) -> None:
        self._feed.tell(self._worker, self._events, now_ms)


class RouterFeed:
    """What connects one router with the workers of its pool.

    Attributes:
        end_passes: set by the simulation: a pass inside a run of this worker ends now, so the run ends with it.
    """

    def __init__(self, router: TrackingRouter, pool: Pool, clock: Clock, workload: Workload) -> None:
        self.router = router
        self.router_name = pool.router_name
        self.end_passes: Callable[[Worker, float], object] = _nobody_ends
        self._pool = pool
        self._clock = clock
        self._workload = workload
        self._workers: dict[int, Worker] = {}
        self._home: dict[int, Worker] = {}  # by request, while it is on a worker
        self._groups: dict[int, tuple[Worker, ...]] = {}  # of data-parallel ranks, by each of them
        self._waiting: set[int] = set()  # in the router's queue
        self._changed: dict[int, Worker] = {}  # whose passes in flight have not been looked at
        self._news: list[tuple[float, int]] = []  # (from when on there may be unread events, worker); a heap
        self._unread: dict[int, Worker] = {}
        self._agenda: Agenda | None = None  # for late events
        self._lines: dict[int, EventLine] = {}  # by worker number, where faults concern its events
        self._dates_events = router.dates_events
        router.refresh = self._refresh
        router.unread = self._may_have_news
        router.publish = self._publish

    @property
    def num_waiting(self) -> int:
        """Requests in the router's queue."""
        return len(self._waiting)

    def watch(self, worker: Worker) -> None:
        """Follow a worker from now on."""
        worker.feed = self
        worker.engine.runs_on = False
        self._workers[worker.number] = worker
        scheduler = worker.engine.scheduler
        if self.router.reads_prefills or self.router.reads_cache:
            scheduler.first_tokens = []  # so that results are processed when they are known
        if self.router.reads_cache:
            scheduler.pool.log_events = scheduler.pool.caching
            worker.engine.publishes_singly = self._dates_events

    def expect_faults(self, agenda: Agenda) -> None:
        """Something will happen to events on their way, so that it matters in which pass they were published."""
        self._agenda = agenda
        self._dates_events = True
        for worker in self._workers.values():
            worker.engine.publishes_singly = True

    def line(self, number: int) -> EventLine:
        """The way of a worker's events."""
        return self._lines.setdefault(number, EventLine())

    def removed(self, worker: Worker) -> None:
        """A worker has gone for good."""
        for workers in (self._workers, self._changed, self._unread):
            workers.pop(worker.number, None)
        if worker.number in self._lines:
            self._lines[worker.number].life += 1
        self._call(self.router.removed, worker.number, number=None)

    # --- requests

    def placed(self, number: int, worker: Worker | None) -> None:
        """The router has placed a request, or keeps it."""
        if worker is None:
            self._waiting.add(number)
        else:
            self._home[number] = worker
            self._changed[worker.number] = worker

    def pass_ended(
        self, worker: Worker, finished: Sequence[EngineRequest], now_ms: float
    ) -> list[tuple[EngineRequest, bool]]:
        """Tell the events of a pass, of all ranks that it is a pass of. Returns who has news, rank by rank in batch
        order, and whether that is their end or else their first token."""
        if not worker.is_special:
            self.collect(worker, now_ms)
            if not worker.engine.scheduler.first_tokens:
                return [(request, True) for request in finished]
        news: list[tuple[EngineRequest, bool]] = []
        gone = {request.number for request in finished}
        for rank in self._ranks(worker):
            self.collect(rank, now_ms)
            scheduler = rank.engine.scheduler
            its_news = [(request, True) for request in finished if request.home == rank.index]
            first = scheduler.first_tokens
            if first:
                scheduler.first_tokens = []
                its_news += [(request, False) for request in first if request.number not in gone]
                its_news.sort(key=_by_admission)
            news += its_news
        return news

    def first_token(self, number: int, now_ms: float) -> None:
        """A request has emitted its first token and goes on, unless it has been handed over already."""
        worker = self._home.get(number)
        if worker is not None:
            try:
                self.router.first_token(number, worker.number, now_ms)
            except (Exception, SystemExit) as error:
                raise self._failure(error, "first_token", number) from error

    def ended(self, number: int, now_ms: float) -> None:
        """A request is not on its worker any more, or will not get to one."""
        worker = self._home.pop(number, None)
        if worker is not None:
            if worker.engine.end_ms == INFINITE and worker.engine.scheduler.pool.events:
                self.collect(worker, now_ms)  # what it left in the cache when it gave up
            self._changed[worker.number] = worker
            try:
                self.router.ended(number, worker.number, now_ms)
            except (Exception, SystemExit) as error:
                raise self._failure(error, "ended", number) from error
        elif number in self._waiting:
            self._waiting.discard(number)
            self._call(self.router.withdrawn, number, now_ms, number=number)

    def released(self, now_ms: float) -> tuple[int, Worker] | None:
        """A request that leaves the router's queue now, and the worker that it goes to."""
        workers = self._pool.routable
        if not self._waiting or not workers:
            return None
        answer = self._call(self.router.released, workers, now_ms, number=None)
        if answer is None:
            return None
        number, place = answer
        worker = self._workers.get(place)
        if number not in self._waiting or worker is None or not worker.is_routable:
            raise PluginError(
                f"router {self.router_name} released {answer!r}: expected a request that it keeps, and a worker"
            )
        self._waiting.discard(number)
        self._home[number] = worker
        return number, worker

    def _ranks(self, worker: Worker) -> Sequence[Worker]:
        """The workers whose passes end with those of this one."""
        if not worker.is_special:
            return (worker,)
        ranks = self._groups.get(worker.number)
        if ranks is None:
            ranks = tuple(other for other in self._workers.values() if other.unit is worker.unit)
            self._groups[worker.number] = ranks
        return ranks

    # --- caches

    def collect(self, worker: Worker, now_ms: float) -> None:
        """Tell what the passes of a worker that have ended have published."""
        pool = worker.engine.scheduler.pool
        events = pool.events
        if events and self.router.reads_cache:
            pool.events = []
            self._tell(worker, events, now_ms)

    def _tell(self, worker: Worker, events: list[CacheEvent], now_ms: float) -> None:
        """What a worker has published goes to the router."""
        line = self._lines.get(worker.number) if self._lines else None
        if line is None or not events:
            self.tell(worker, events, now_ms)
            return
        at_ms = line.arrival_ms(events, now_ms)
        if at_ms is None:
            return
        if at_ms == now_ms:
            self.tell(worker, events, now_ms)
        else:
            assert self._agenda is not None
            self._agenda.add(at_ms, Kind.EVENTS, LateEvents(self, worker, line, events))

    def tell(self, worker: Worker, events: list[CacheEvent], now_ms: float) -> None:
        """Events of a worker have arrived."""
        try:
            self.router.cache_events(worker.number, events, now_ms)
        except (Exception, SystemExit) as error:
            raise self._failure(error, "cache_events", None) from error

    def _may_have_news(self) -> Sequence[int]:
        """The workers that may have published something inside the passes in flight, by number."""
        now_ms = self._clock.now_ms
        news = self._news
        if self._changed:
            idle: dict[int, Worker] = {}
            for number, worker in self._changed.items():
                engine = worker.engine
                if engine.end_ms != INFINITE:
                    from_ms = engine.publishes_from_ms()
                    if worker.is_special and worker.unit.end_ms < from_ms:
                        from_ms = worker.unit.end_ms  # hand-offs ask at the end of one pass before that of another
                    if from_ms != INFINITE:
                        heappush(news, (from_ms, number))
                elif worker.num_requests:
                    idle[number] = worker  # its next pass begins at this instant, or waits for something
            self._changed = idle
        unread = self._unread
        while news and news[0][0] <= now_ms:
            number = heappop(news)[1]
            if number in self._workers:
                unread[number] = self._workers[number]
        if not unread:
            return ()
        self._unread = {number: worker for number, worker in unread.items() if self._is_unread(worker, now_ms)}
        return list(self._unread)

    def _is_unread(self, worker: Worker, now_ms: float) -> bool:
        return worker.engine.publishes_from_ms() <= now_ms or worker.unit.end_ms == now_ms

    def _refresh(self, numbers: Iterable[int]) -> bool:
        now_ms = self._clock.now_ms
        changed = False
        workers = self._workers
        for number in sorted(numbers):
            worker = workers.get(number)
            if worker is not None and self._is_unread(worker, now_ms):
                changed = self._catch_up(worker, now_ms) or changed
                self._changed[number] = worker
        return changed

    def _publish(self, content: Content) -> None:
        now_ms = self._clock.now_ms
        homes = [self._home.get(-1 - origin) for origin in content.sources]
        if self._workload.planned is not None and any(map(is_planned, content.sources)):
            homes = [*self._workers.values()]  # of all of them some request may generate it
        for worker in homes:
            if worker is not None and worker.engine.scheduler.pool.log_events:
                self._catch_up(worker, now_ms)
                self._tell(worker, worker.engine.publish_quoted(content), now_ms)

    def _catch_up(self, worker: Worker, now_ms: float) -> bool:
        """Commit what of a run has happened by now; whether that was anything."""
        engine = worker.engine
        if engine.end_ms == INFINITE:
            return False
        if worker.unit.end_ms == now_ms or engine.ends_inside(now_ms):
            worker.unit.cut(now_ms)
            self.end_passes(worker, now_ms)
            return True
        if engine.commit_ended(now_ms):
            self.collect(worker, now_ms)
            return True
        return False

    def _call(self, method: Callable[..., Answer], *arguments: object, number: int | None) -> Answer:
        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:
            raise self._failure(error, getattr(method, "__name__", "?"), number) from error

    def _failure(self, error: BaseException, method: str, number: int | None) -> PluginError:
        about = "" if number is None else f" for request {self._workload.request_id(number)}"
        return PluginError(f"router {self.router_name} raised {error!r} in {method}{about}", error)


def _nobody_ends(worker: Worker, now_ms: float) -> None:
    return None
