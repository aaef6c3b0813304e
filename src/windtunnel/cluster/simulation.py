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

from windtunnel.cluster.agenda import Agenda
from windtunnel.cluster.failures import Failures
from windtunnel.cluster.pool import Fleet, Pool
from windtunnel.cluster.request_flow import RequestFlow
from windtunnel.cluster.scaling import IDLE_TICKS
from windtunnel.cluster.worker import Worker
from windtunnel.errors import StalledError
from windtunnel.record.columns import Status
from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload

INFINITE = float("inf")
INSTANTS_PER_POLL = 256
POLLS_PER_GIVING_BACK = 64  # between two drops of what memory holds of columns that are on disk
NAMED_REQUESTS = 5  # in an error about many


def _by_order(worker: Worker) -> int:
    return worker.order


class Simulation(RequestFlow):
    """Workers behind a router, fed by a driver.

    Attributes:
        failures: what goes wrong, if anything does; set by who builds it.

    Args:
        pools, fleet, agenda, cancel_after_ms: see `RequestFlow`.
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
        super().__init__(workload, driver, pools, fleet, agenda, cancel_after_ms)
        self.max_time_ms = max_time_ms
        self.progress = progress
        self.should_stop = should_stop
        self.failures: Failures | None = None
        self._idle_ticks = 0
        self._follow_up = driver.has_followers

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
