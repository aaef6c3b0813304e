"""What becomes of the requests of a cluster: they arrive, are placed, wait, end, and tell the driver and the record.

Every way from an arrival to one of the terminal states is in here. When anything happens is decided by the event loop
(simulation.py); who waits for what between two pools, by the hand-offs (handoff.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush

from windtunnel.cluster.agenda import Agenda, Kind
from windtunnel.cluster.handoff import Handoffs
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.router.base import RefusalError, RoutedRequest
from windtunnel.cluster.router.feed import RouterFeed
from windtunnel.cluster.scaling import Scaling
from windtunnel.cluster.worker import Worker
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import Status
from windtunnel.record.recorder import Recorder
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload
from windtunnel.workload.urgency import NO_URGENCY

INFINITE = float("inf")


class GiveUp:
    """A client's patience with one request ends."""

    __slots__ = ("_flow", "_number")

    def __init__(self, flow: RequestFlow, number: int) -> None:
        self._flow = flow
        self._number = number

    def is_due(self) -> bool:
        return self._number in self._flow.live

    def happen(self, now_ms: float) -> None:
        self._flow.give_up(self._number, now_ms)


class ParkedRequest:
    """A request that arrived while there was no worker."""

    __slots__ = ("_flow", "_pool", "_request", "_routed")

    def __init__(self, flow: RequestFlow, pool: Pool, routed: RoutedRequest, request: EngineRequest) -> None:
        self._flow = flow
        self._pool = pool
        self._routed = routed
        self._request = request

    def is_due(self) -> bool:
        return self._flow.live.get(self._request.number) is self._request

    def resume(self, now_ms: float) -> None:
        flow = self._flow
        try:
            worker = self._pool.place(self._routed, now_ms, flow.workload)
        except RefusalError as refusal:
            flow.refuse(self._request, str(refusal), now_ms)
            return
        if worker is not None:
            flow.submit(worker, self._request, now_ms)

    def fail(self, now_ms: float, reason: str) -> None:
        self._request.note_wait(now_ms)
        self._flow.fail(self._request, now_ms, reason)


class RequestFlow:
    """Requests between a driver and the workers of a cluster.

    Attributes:
        agenda: what else will happen.
        live: the requests that have arrived and not ended, by number.
        scaling, handoffs: set by who builds a cluster that has any.

    Args:
        pools: the workers; a request arrives at the first of them.
        fleet: all engines that there are and will be.
        agenda: the one that others make entries in too, if there are any.
        cancel_after_ms: clients give up on a request that has not ended this long after its arrival.
    """

    def __init__(
        self,
        workload: Workload,
        driver: Driver,
        pools: Sequence[Pool],
        fleet: Fleet,
        agenda: Agenda | None,
        cancel_after_ms: float,
    ) -> None:
        self.workload = workload
        self.driver = driver
        self.pools = tuple(pools)
        self.workers = fleet.workers
        self.record = fleet.record
        self.clock = fleet.clock
        self.cancel_after_ms = cancel_after_ms
        self.agenda = Agenda() if agenda is None else agenda
        self.live: dict[int, EngineRequest] = {}
        self.scaling: Scaling | None = None
        self.handoffs: Handoffs | None = None
        self._pool = self.pools[0]
        self._recorder = Recorder(fleet.record)
        self._ended = 0
        self._halted = False
        self._ends: list[tuple[float, int]] = []  # (end, worker) of what is in flight; stale entries are skipped
        self._boundary: list[Worker] = []  # between two passes, with a decision to take; one may be here twice
        for pool in self.pools:
            if pool.feed is not None:
                pool.feed.end_passes = self._end_passes

    def _end_passes(self, worker: Worker, now_ms: float) -> bool:
        """What the worker had in flight ends now; returns whether any request left it."""
        self._boundary.append(worker)
        finished = worker.unit.end()
        if worker.feed is not None:
            self._tell_router(worker, worker.feed, finished, now_ms)
            return bool(finished)
        if worker.is_special:
            return self._settle(worker, finished, now_ms)
        if not finished:
            return False
        for request in finished:
            self._finish(worker, request, now_ms)
        return True

    def _settle(self, worker: Worker, finished: list[EngineRequest], now_ms: float) -> bool:
        """The same for a worker that is one of several ranks, or hands requests over."""
        for request in finished:
            self._settle_one(self.workers[request.home], request, now_ms)
        if self.handoffs is not None:
            self.handoffs.pass_ended(worker, now_ms)
        return bool(finished)

    def _settle_one(self, home: Worker, request: EngineRequest, now_ms: float) -> None:
        if self.handoffs is None or not self.handoffs.take(home, request, now_ms):
            self._finish(home, request, now_ms)
            self.left(home, now_ms)
            if self.scaling is not None:
                self.scaling.ended.append(request.number)

    def settle(self, worker: Worker, finished: list[EngineRequest], now_ms: float) -> None:
        """Requests have left a worker that is no more."""
        for request in finished:
            self._settle_one(worker, request, now_ms)

    def start_anew(self, lost: EngineRequest, now_ms: float) -> None:
        """A request whose attempt came to nothing is placed again, as if it had just arrived, but for its times."""
        number = lost.number
        workload = self.driver.workload
        pool = self._pool
        prompt_tokens = workload.input_tokens[number]
        output_tokens = workload.output_tokens[number]
        engine_output = self.pools[-1].front.limit_output(prompt_tokens, output_tokens)
        content = workload.content(number, engine_output)
        routed = RoutedRequest(
            number, workload.session[number], workload.turn[number], prompt_tokens, output_tokens, content
        )
        if self.handoffs is not None and engine_output:
            self.handoffs.begin(routed, engine_output, lost.arrival_ms, now_ms, lost)
            return
        request = pool.front.request_type(number, content, prompt_tokens, engine_output, lost.arrival_ms)
        request.priority = workload.priorities.get(number, 0)
        request.carry_over(lost)
        self.live[number] = request
        waiting = ParkedRequest(self, pool, routed, request)
        if pool.routable:
            waiting.resume(now_ms)
        else:
            pool.parked.append(waiting)

    def fail(self, request: EngineRequest, now_ms: float, reason: str) -> None:
        """A request ends because of a fault."""
        del self.live[request.number]
        self._ended += 1
        self._recorder.ended(request, request.home, Status.FAILED, now_ms, reason)
        self.driver.finished(request.number, now_ms, failed="failed", output_tokens=0)

    def _fail_parked(self, now_ms: float) -> bool:
        """Nothing can happen any more, after a crash: those that wait for a worker wait in vain."""
        parked = [waiting for pool in self.pools for waiting in pool.parked if waiting.is_due()]
        for waiting in parked:
            waiting.fail(now_ms, "no worker is left")
        kept = [request for request in self.live.values() if request.home < 0] if not self._pool.routable else []
        for request in kept:  # by a router
            request.note_wait(now_ms)
            if self._pool.feed is not None:
                self._pool.feed.ended(request.number, now_ms)
            self.fail(request, now_ms, "no worker is left")
        return bool(parked) or bool(kept)

    def left(self, worker: Worker, now_ms: float) -> None:
        """A request is at a worker no more, which may be gone now."""
        if self.scaling is not None and not worker.is_routable:
            self.scaling.settle(worker, now_ms)

    def reach_boundary(self, worker: Worker, now_ms: float) -> bool:
        """Whether a worker is between two passes; if not, a run of decodes ends with the pass in flight."""
        unit = worker.unit
        if unit.end_ms == INFINITE:
            return True
        end_ms = unit.cut(now_ms)
        if end_ms == now_ms:  # inside a run, a pass has just ended
            self._end_passes(worker, now_ms)
            return True
        heappush(self._ends, (end_ms, worker.index))
        return False

    def wake(self, worker: Worker) -> None:
        """A worker between two passes may have something to do now."""
        self._boundary.append(worker)

    def _tell_router(self, worker: Worker, feed: RouterFeed, finished: Sequence[EngineRequest], now_ms: float) -> None:
        """A pass of a worker has ended, which its router follows."""
        handoffs = self.handoffs
        for request, has_ended in feed.pass_ended(worker, finished, now_ms):
            home = self.workers[request.home]
            if has_ended and (handoffs is None or not handoffs.take(home, request, now_ms)):
                self._finish(home, request, now_ms)
                self.left(home, now_ms)
                if self.scaling is not None:
                    self.scaling.ended.append(request.number)
            else:
                feed.first_token(request.number, now_ms)
                self._dispatch_released(feed, now_ms)
        if handoffs is not None:
            handoffs.pass_ended(worker, now_ms)

    def _leave_router(self, feed: RouterFeed, number: int, now_ms: float) -> None:
        """A request has left its worker, or the queue of its router."""
        feed.ended(number, now_ms)
        self._dispatch_released(feed, now_ms)

    def _dispatch_released(self, feed: RouterFeed, now_ms: float) -> None:
        """Send what the router has kept and lets go now."""
        while (found := feed.released(now_ms)) is not None:
            number, worker = found
            self.submit(worker, self.live[number], now_ms)

    def _finish(self, worker: Worker, request: EngineRequest, now_ms: float) -> None:
        """A request has left its engine: it completed, its client gave up, or the engine did."""
        del self.live[request.number]
        worker.num_requests -= 1
        if self.handoffs is not None:
            self.handoffs.ended(request)
        self._ended += 1
        if worker.feed is not None and not self._halted:
            self._leave_router(worker.feed, request.number, now_ms)
        if request.cancelled_ms <= now_ms:
            reason = f"client gave up after {self.cancel_after_ms:g} ms"
            self._recorder.ended(request, worker.index, Status.CANCELLED, request.cancelled_ms, reason)
            return
        if request.failure:
            self._recorder.ended(request, worker.index, Status.FAILED, request.marker_ms, request.failure)
            self.driver.finished(request.number, now_ms, failed="failed", output_tokens=0)
            return
        output_tokens = self._recorder.ended(request, worker.index, Status.COMPLETED, now_ms)
        self.driver.finished(request.number, now_ms, output_tokens=output_tokens)

    def give_up(self, number: int, now_ms: float) -> None:
        """The client of a live request gives up."""
        if self.handoffs is not None and self.handoffs.give_up(number, now_ms):
            return
        request = self.live[number]
        if request.home < 0:
            request.note_wait(now_ms)
            if self._pool.feed is not None:
                self._leave_router(self._pool.feed, number, now_ms)
            self.close_handoff(request, None, now_ms)
            return
        worker = self.workers[request.home]
        is_idle = self.reach_boundary(worker, now_ms)
        end_ms = worker.engine.cancel(request, now_ms)
        # for its client, and so for its session, the request ends now
        self.driver.finished(number, now_ms, cancelled=True)
        if not is_idle:
            heappush(self._ends, (end_ms, worker.index))
        elif worker.is_special:
            self._settle(worker, [request], now_ms)
            self.wake(worker)
        else:
            self._finish(worker, request, now_ms)
            self.wake(worker)

    def close_handoff(self, request: EngineRequest, worker: Worker | None, now_ms: float) -> None:
        """The client of a request that is at no engine has given up."""
        del self.live[request.number]
        self._ended += 1
        reason = f"client gave up after {self.cancel_after_ms:g} ms"
        self._recorder.ended(request, -1 if worker is None else worker.index, Status.CANCELLED, now_ms, reason)
        self.driver.finished(request.number, now_ms, cancelled=True)

    def _arrive(self, number: int, now_ms: float) -> None:
        workload = self.driver.workload  # its prompts may quote less of an output than was planned
        prompt_tokens = workload.input_tokens[number]
        output_tokens = workload.output_tokens[number]
        pool = self._pool
        front = pool.front
        engine_output = output_tokens
        reason = ""
        if prompt_tokens > front.safe_prompt_tokens or prompt_tokens + output_tokens > front.safe_total_tokens:
            engine_output = front.limit_output(prompt_tokens, output_tokens)
            reason = front.refusal_at_submission(prompt_tokens, output_tokens)
        content = workload.content(number, engine_output)
        routed = RoutedRequest(
            number, workload.session[number], workload.turn[number], prompt_tokens, output_tokens, content
        )
        if workload.urgency:
            routed.urgency = workload.urgency.get(number, NO_URGENCY)
        if self.handoffs is not None and engine_output:
            self._arrive_split(self.handoffs, routed, engine_output, now_ms)
            return
        worker = None
        if pool.routable:
            try:
                worker = pool.place(routed, now_ms, workload)
            except RefusalError as refusal:
                reason = str(refusal)
            else:
                if reason and pool.feed is not None:
                    self._leave_router(pool.feed, number, now_ms)
        if reason:
            self._reject(number, -1 if worker is None else worker.index, now_ms, reason)
            return
        request = front.request_type(number, content, prompt_tokens, engine_output, self.driver.arrival_ms[number])
        if workload.priorities:
            request.priority = workload.priorities.get(number, 0)
        self.live[number] = request
        if worker is not None:
            self.submit(worker, request, now_ms)
        elif not pool.routable:
            pool.parked.append(ParkedRequest(self, pool, routed, request))
        if self.cancel_after_ms != INFINITE:
            self._limit_patience(number, now_ms)

    def _arrive_split(self, handoffs: Handoffs, routed: RoutedRequest, engine_output: int, now_ms: float) -> None:
        """A request arrives that prefills on one worker and decodes on another."""
        number = routed.number
        reason = handoffs.refusal(routed)
        if reason:
            self._reject(number, -1, now_ms, reason)
            return
        handoffs.begin(routed, engine_output, self.driver.arrival_ms[number], now_ms)
        if self.cancel_after_ms != INFINITE:
            self._limit_patience(number, now_ms)

    def _limit_patience(self, number: int, now_ms: float) -> None:
        """The client of a request that arrives will give up."""
        self.agenda.add(now_ms + self.cancel_after_ms, Kind.TIMEOUT, GiveUp(self, number), number)

    def _reject(self, number: int, worker: int, now_ms: float, reason: str) -> None:
        """A request cannot be served, or its router refuses it."""
        self._recorder.rejected(number, worker, self.driver.arrival_ms[number], now_ms, reason)
        self._ended += 1
        self.driver.finished(number, now_ms, failed="rejected", output_tokens=0)

    def refuse(self, request: EngineRequest, reason: str, now_ms: float) -> None:
        """A router refuses a request that had to wait for a worker."""
        del self.live[request.number]
        self._reject(request.number, -1, now_ms, reason)

    def unpark(self, pool: Pool, now_ms: float) -> None:
        """A worker of a pool takes requests: those that waited for one go on."""
        pool.unpark(now_ms)
        if pool.feed is not None:
            self._dispatch_released(pool.feed, now_ms)

    def submit(self, worker: Worker, request: EngineRequest, now_ms: float) -> None:
        """Put a request in the queue of a worker."""
        request.home = worker.index
        worker.num_requests += 1
        engine = worker.engine
        before_ms = engine.end_ms
        end_ms = engine.submit(request, now_ms)
        if end_ms != before_ms:
            if end_ms == now_ms:  # inside a run, a pass has just ended
                self._end_passes(worker, now_ms)
            else:
                heappush(self._ends, (end_ms, worker.index))
        elif end_ms == INFINITE and (not self._boundary or self._boundary[-1] is not worker):
            self._boundary.append(worker)
