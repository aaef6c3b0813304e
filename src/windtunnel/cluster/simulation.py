"""The event loop: virtual time, and the order of everything that happens at one instant.

At equal times, in this order:
    1. passes end, on the lowest worker first; their completions may release requests at the same instant;
    2. what is on the agenda happens: faults, workers that become ready, transfers that end, clients that give up;
    3. requests arrive, in the order of the driver, and are placed by the router;
    4. passes start, on the lowest worker first;
    5. an autoscaler looks at what has settled.
Nothing happens to an engine before the next of these, so up to then it may run on by itself; what it completes ends
at its time. So a completion frees its slot and blocks before an arrival sees the worker, and requests that arrive
together are batched together. An event at exactly the time cap still happens. (A peer orders simultaneous completions
by the start of their passes; inside a run of decodes no such order exists.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from windtunnel.cluster.agenda import Agenda, Kind
from windtunnel.cluster.failures import Failures
from windtunnel.cluster.handoff import Handoffs
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.router.base import RefusalError, RoutedRequest
from windtunnel.cluster.router.feed import RouterFeed
from windtunnel.cluster.scaling import IDLE_TICKS, Scaling
from windtunnel.cluster.worker import Worker
from windtunnel.engine.request import EngineRequest
from windtunnel.errors import StalledError
from windtunnel.record.columns import Status
from windtunnel.record.recorder import Recorder
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload
from windtunnel.workload.urgency import NO_URGENCY

INFINITE = float("inf")
INSTANTS_PER_POLL = 256
POLLS_PER_GIVING_BACK = 64  # between two drops of what memory holds of columns that are on disk
NAMED_REQUESTS = 5  # in an error about many


def _by_order(worker: Worker) -> int:
    return worker.order


class GiveUp:
    """A client's patience with one request ends."""

    __slots__ = ("_number", "_simulation")

    def __init__(self, simulation: Simulation, number: int) -> None:
        self._simulation = simulation
        self._number = number

    def is_due(self) -> bool:
        return self._number in self._simulation.live

    def happen(self, now_ms: float) -> None:
        self._simulation.give_up(self._number, now_ms)


class ParkedRequest:
    """A request that arrived while there was no worker."""

    __slots__ = ("_pool", "_request", "_routed", "_simulation")

    def __init__(self, simulation: Simulation, pool: Pool, routed: RoutedRequest, request: EngineRequest) -> None:
        self._simulation = simulation
        self._pool = pool
        self._routed = routed
        self._request = request

    def is_due(self) -> bool:
        return self._simulation.live.get(self._request.number) is self._request

    def resume(self, now_ms: float) -> None:
        simulation = self._simulation
        try:
            worker = self._pool.place(self._routed, now_ms, simulation.workload)
        except RefusalError as refusal:
            simulation.refuse(self._request, str(refusal), now_ms)
            return
        if worker is not None:
            simulation.submit(worker, self._request, now_ms)

    def fail(self, now_ms: float, reason: str) -> None:
        self._request.note_wait(now_ms)
        self._simulation.fail(self._request, now_ms, reason)


class Simulation:
    """Workers behind a router, fed by a driver.

    Attributes:
        agenda: what else will happen.
        live: the requests that have arrived and not ended, by number.

    Args:
        pools: the workers; a request arrives at the first of them.
        fleet: all engines that there are and will be.
        agenda: the one that others make entries in too, if there are any.
        cancel_after_ms: clients give up on a request that has not ended this long after its arrival.
        max_time_ms: nothing later than this happens.
        progress: called now and then with (virtual ms, requests ended, requests in all).
        should_stop: asked as often; True ends the simulation as if the time cap were now.
    """

    def __init__(
        self,
        workload: Workload,
        driver: Driver,
        pools: Sequence[Pool],
        fleet: Fleet,
        *,
        agenda: Agenda | None = None,
        cancel_after_ms: float = INFINITE,
        max_time_ms: float = INFINITE,
        progress: Callable[[float, int, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.workload = workload
        self.driver = driver
        self.pools = tuple(pools)
        self.workers = fleet.workers
        self.record = fleet.record
        self.clock = fleet.clock
        self.cancel_after_ms = cancel_after_ms
        self.max_time_ms = max_time_ms
        self.progress = progress
        self.should_stop = should_stop
        self.agenda = Agenda() if agenda is None else agenda
        self.live: dict[int, EngineRequest] = {}
        self.scaling: Scaling | None = None  # set likewise
        self.failures: Failures | None = None
        self._idle_ticks = 0
        self.handoffs: Handoffs | None = None  # set by who builds a cluster that has any
        self._pool = self.pools[0]
        self._recorder = Recorder(fleet.record)
        self._ended = 0
        self._follow_up = driver.has_followers
        self._ends: list[tuple[float, int]] = []  # (end, worker) of what is in flight; stale entries are skipped
        self._halted = False
        for pool in self.pools:
            if pool.feed is not None:
                pool.feed.end_passes = self._end_passes
        self._boundary: list[Worker] = []  # between two passes, with a decision to take; one may be here twice

    def run(self) -> None:
        """Simulate to the end of the workload, the time cap, or a stop.

        Raises:
            StalledError: nothing can happen any more although requests remain.
            PluginError: the router or the timing model misbehaved.
        """
        polls = 0
        while self._advance(INSTANTS_PER_POLL):
            polls += 1
            if polls % POLLS_PER_GIVING_BACK == 0:
                self.driver.give_back()
                self.record.give_back()
            if self.progress is not None:
                self.progress(self.clock.now_ms, self._ended, self.workload.num_requests)
            if self.should_stop is not None and self.should_stop():
                self.halt(self.clock.now_ms, "interrupt")
                break
        if self.progress is not None:
            self.progress(self.clock.now_ms, self._ended, self.workload.num_requests)
        self.close()

    def _advance(self, instants: int) -> bool:
        """Let everything happen at the next so many instants; False if there is nothing more to happen."""
        clock = self.clock
        driver = self.driver
        ends = self._ends
        workers = self.workers
        boundary = self._boundary
        agenda = self.agenda.entries
        has_dependencies = bool(self.workload.dependencies)
        ready_ms = driver.next_ready_ms()
        for _ in range(instants):
            next_end_ms = INFINITE
            while ends:
                end_ms, number = ends[0]
                worker = workers[number]
                if worker.unit.end_ms == end_ms:
                    next_end_ms = end_ms
                    break
                heappop(ends)
            now_ms = ready_ms if ready_ms < next_end_ms else next_end_ms
            if agenda:
                now_ms = self._next_on_agenda_ms(now_ms)
            if now_ms == INFINITE:
                if self.failures is not None and self._fail_parked(clock.now_ms):
                    ready_ms = driver.next_ready_ms()
                    continue
                if self.live or not driver.exhausted:
                    raise StalledError(self._describe_stall())
                return False
            if now_ms > self.max_time_ms:
                self.halt(self.max_time_ms, "time cap")
                return False
            clock.now_ms = now_ms
            while next_end_ms == now_ms:
                heappop(ends)
                if worker.unit.end_ms == now_ms and self._end_passes(worker, now_ms):
                    ready_ms = driver.next_ready_ms()
                if not ends or ends[0][0] != now_ms:
                    break
                worker = workers[ends[0][1]]
            if agenda:
                self.agenda.happen(now_ms)
                ready_ms = driver.next_ready_ms()
            while ready_ms <= now_ms:  # again and again: a rejected turn is followed by the next one at once
                for number in driver.release(now_ms):
                    self._arrive(number, now_ms)
                ready_ms = driver.next_ready_ms()
            if has_dependencies:
                for number, reason in driver.take_cancelled():
                    self._recorder.never_sent(number, now_ms, reason)
                    self._ended += 1
            if len(boundary) > 1:
                boundary.sort(key=_by_order)
            for worker in boundary:
                unit = worker.unit
                if unit.end_ms == INFINITE:  # else it is here twice, and has begun
                    end_ms = unit.begin(now_ms)
                    if end_ms < ready_ms and worker.engine.runs_on and not agenda:
                        end_ms = worker.engine.run_on(self._undisturbed_until_ms(ready_ms))
                    if end_ms != INFINITE:
                        heappush(ends, (end_ms, worker.index))
            boundary.clear()
        return True

    def _undisturbed_until_ms(self, ready_ms: float) -> float:
        """Up to when nothing happens to the worker whose pass has begun, with an empty agenda."""
        if self._follow_up:  # who comes next may depend on what ends next
            if len(self._boundary) > 1:
                return self.clock.now_ms
            if self._ends and self._ends[0][0] < ready_ms:
                ready_ms = self._ends[0][0]
        return ready_ms if ready_ms < self.max_time_ms else self.max_time_ms

    def _next_on_agenda_ms(self, other_ms: float) -> float:
        """When something happens next: something else than the agenda has, or what that has.

        Once all requests have ended nothing on the agenda matters any more. A tick that comes before everything else
        happens here; what it starts begins at its time.
        """
        agenda = self.agenda
        if not self.live and self.driver.exhausted:
            agenda.entries.clear()
        next_ms = agenda.next_ms()
        if next_ms >= other_ms or next_ms > self.max_time_ms or not agenda.is_tick_next():
            return min(next_ms, other_ms)
        is_alone = other_ms == INFINITE and agenda.has_only_ticks()
        self._idle_ticks = self._idle_ticks + 1 if is_alone else 0
        if self._idle_ticks > IDLE_TICKS:
            raise StalledError(self._describe_stall())
        self.clock.now_ms = next_ms
        agenda.tick(next_ms)
        return next_ms

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
            self.handoffs.start(routed, engine_output, lost.arrival_ms, now_ms, lost)
            return
        request = pool.front.request_type(number, content, prompt_tokens, engine_output, lost.arrival_ms)
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
        fits = prompt_tokens <= front.safe_prompt_tokens and prompt_tokens + output_tokens <= front.safe_total_tokens
        engine_output = output_tokens if fits else front.limit_output(prompt_tokens, output_tokens)
        content = workload.content(number, engine_output)
        routed = RoutedRequest(
            number, workload.session[number], workload.turn[number], prompt_tokens, output_tokens, content
        )
        if workload.urgency:
            routed.urgency = workload.urgency.get(number, NO_URGENCY)
        if self.handoffs is not None and engine_output:
            self._arrive_split(self.handoffs, routed, engine_output, now_ms)
            return
        if not pool.routable:
            self._park(pool, routed, engine_output, now_ms)
            return
        reason = "" if fits else front.refusal_at_submission(prompt_tokens, output_tokens)
        worker = None
        try:
            worker = pool.place(routed, now_ms, workload)
        except RefusalError as refusal:
            reason = str(refusal)
        else:
            if reason and pool.feed is not None:
                self._leave_router(pool.feed, number, now_ms)
        arrival_ms = self.driver.arrival_ms[number]
        if reason:
            self._recorder.rejected(number, -1 if worker is None else worker.index, arrival_ms, now_ms, reason)
            self._ended += 1
            self.driver.finished(number, now_ms, failed="rejected", output_tokens=0)
            return
        request = front.request_type(number, content, prompt_tokens, engine_output, arrival_ms)
        if workload.priorities:
            request.priority = workload.priorities.get(number, 0)
        self.live[number] = request
        if worker is not None:
            self.submit(worker, request, now_ms)
        if self.cancel_after_ms != INFINITE:
            self.agenda.add(now_ms + self.cancel_after_ms, Kind.TIMEOUT, GiveUp(self, number), number)

    def _park(self, pool: Pool, routed: RoutedRequest, engine_output: int, now_ms: float) -> None:
        """A request arrives while there is no worker."""
        number = routed.number
        arrival_ms = self.driver.arrival_ms[number]
        reason = pool.front.refusal_at_submission(routed.input_tokens, routed.output_tokens)
        if reason:
            self._recorder.rejected(number, -1, arrival_ms, now_ms, reason)
            self._ended += 1
            self.driver.finished(number, now_ms, failed="rejected", output_tokens=0)
            return
        request = pool.front.request_type(number, routed.content, routed.input_tokens, engine_output, arrival_ms)
        self.live[number] = request
        pool.parked.append(ParkedRequest(self, pool, routed, request))
        if self.cancel_after_ms != INFINITE:
            self.agenda.add(now_ms + self.cancel_after_ms, Kind.TIMEOUT, GiveUp(self, number), number)

    def unpark(self, pool: Pool, now_ms: float) -> None:
        """A worker of a pool takes requests: those that waited for one go on."""
        pool.unpark(now_ms)
        if pool.feed is not None:
            self._dispatch_released(pool.feed, now_ms)

    def refuse(self, request: EngineRequest, reason: str, now_ms: float) -> None:
        """A router refuses a request that had to wait for a worker."""
        del self.live[request.number]
        self._recorder.rejected(request.number, -1, request.arrival_ms, now_ms, reason)
        self._ended += 1
        self.driver.finished(request.number, now_ms, failed="rejected", output_tokens=0)

    def _arrive_split(self, handoffs: Handoffs, routed: RoutedRequest, engine_output: int, now_ms: float) -> None:
        """A request arrives that prefills on one worker and decodes on another."""
        number = routed.number
        arrival_ms = self.driver.arrival_ms[number]
        reason = handoffs.refusal(routed)
        if reason:
            self._recorder.rejected(number, -1, arrival_ms, now_ms, reason)
            self._ended += 1
            self.driver.finished(number, now_ms, failed="rejected", output_tokens=0)
            return
        handoffs.start(routed, engine_output, arrival_ms, now_ms)
        if self.cancel_after_ms != INFINITE:
            self.agenda.add(now_ms + self.cancel_after_ms, Kind.TIMEOUT, GiveUp(self, number), number)

    def submit(self, worker: Worker, request: EngineRequest, now_ms: float) -> None:
        """Put a request in the queue of a worker."""
        request.home = worker.index
        worker.num_requests += 1
        engine = worker.engine
        before_ms = engine.end_ms
        end_ms = engine.submit(request, now_ms)
        if end_ms != before_ms:
            heappush(self._ends, (end_ms, worker.index))
        elif end_ms == INFINITE and (not self._boundary or self._boundary[-1] is not worker):
            self._boundary.append(worker)

    def halt(self, now_ms: float, why: str) -> None:
        """Stop for good: passes that end by now have happened, those in flight have not.

        Of engines that have run on, now is where the last of them is.
        """
        now_ms = max(now_ms, self._last_pass_end_ms())
        self.record.interrupted = why
        self._halted = True
        for worker in self.workers:
            finished, remaining = worker.engine.halt(now_ms)
            ends = worker.engine.passes.end_ms
            for request in finished:
                if self.handoffs is None or not self.handoffs.keep(request, ends[-1]):
                    self._finish(worker, request, ends[-1])
            for request in remaining:
                if request.cancelled_ms <= now_ms:
                    self._finish(worker, request, now_ms)
                else:
                    self._recorder.ended(request, worker.index, Status.UNFINISHED, float("nan"))
        if self.handoffs is not None:
            for request, place in self.handoffs.finish(now_ms):
                self._recorder.ended(request, -1 if place is None else place.index, Status.UNFINISHED, float("nan"))
        for request in self.live.values():
            if request.home < 0 and self.record.requests.status[request.number] != Status.UNFINISHED:
                request.note_wait(now_ms)
                self._recorder.ended(request, -1, Status.UNFINISHED, float("nan"))

    def close(self) -> None:
        """Write what the record says of the whole: integrals over time run to the last event that happened."""
        end_ms = max(self.clock.now_ms, self._last_pass_end_ms())
        self.record.end_ms = end_ms
        if self.failures is not None:
            self.failures.close()
        self.record.worker_ms = self.pools[-1].provisioned_ms(end_ms)
        if self.handoffs is not None:
            self.record.prefill_worker_ms = self.pools[0].provisioned_ms(end_ms)

    def _last_pass_end_ms(self) -> float:
        return max((columns.end_ms[-1] for columns in self.record.passes if columns.end_ms), default=0.0)

    def _describe_stall(self) -> str:
        """Which requests wait for what."""
        names = [self.workload.request_id(number) for number in list(self.live)[:NAMED_REQUESTS]]
        more = len(self.live) - len(names)
        who = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        waits = [
            f"worker {worker.number}: {worker.engine.scheduler.describe_wait()}"
            for worker in self.workers
            if worker.num_requests
        ]
        waits += [f"{len(pool.parked)} wait for a worker" for pool in self.pools if pool.parked]
        waits += [f"{p.feed.num_waiting} wait in the router" for p in self.pools if p.feed and p.feed.num_waiting]
        return f"stalled at {self.clock.now_ms:.3f} ms: nothing can run, and requests {who} remain. " + "; ".join(waits)
