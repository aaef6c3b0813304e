"""When each request of a workload is sent, as time and completions allow.

Decides release times and the order at equal times: (ready time, session number). It never looks at engines or
queues and owns no clock; whoever does calls `release` and `finished`. Open loop: first turns are sent at their
arrival times. Closed loop by session: `concurrency` sessions are active at once; a session keeps its place through
all its turns and think times, and when it ends the next one starts at that instant. Closed loop by request:
`concurrency` requests are in flight at once; a free place goes to the turn that has waited for one longest, and if
none does to the next session. In all of them, a later turn is sent a delay after the turn before it has ended. A
workload may have several closed loops beside an open one. A request with dependencies is sent a delay after the last
of them has ended; if one of them was rejected, failed or cancelled it is never sent, and nor is what waits for it.
Equal ready times in such a workload go by request number.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from windtunnel.disk_columns import filled, first_row_on_disk, give_back
from windtunnel.errors import InputError
from windtunnel.workload.arrival_order import arrival_order, is_sorted
from windtunnel.workload.closed_loop import ClosedLoop, ConcurrencyBy, ReadyTurn
from windtunnel.workload.session import FloatColumn, Workload

INFINITY = float("inf")

OnFailedDependency = Literal["cancel", "release"]


class Driver:
    """Releases the requests of one workload, each once. An event costs O(log of the sessions that wait).

    Attributes:
        arrival_ms: per request, when it was sent: in an open loop its scheduled time, even if `release` is called
            later; in a closed loop the time of that call, for whoever waits for a place has not come. NaN before.
        released: requests sent so far.
        in_flight: requests sent and not yet finished.
        workload: the workload as it turns out. The one given, until an output that a later prompt quotes comes out
            shorter than asked for; then a copy with the prompts as they were sent.
    """

    def __init__(
        self,
        workload: Workload,
        concurrency: int | None = None,
        *,
        concurrency_by: ConcurrencyBy = "session",
        on_failed_dependency: OnFailedDependency = "cancel",
    ) -> None:
        """`concurrency` is the number of places of a closed loop, of what `concurrency_by` says; None is an open loop.

        Raises:
            InputError: `concurrency` is below 1, or of the wrong kind for the workload.
        """
        if concurrency is not None and concurrency < 1:
            raise InputError(f"found {concurrency}, expected at least 1 {concurrency_by}", field="concurrency")
        if concurrency_by != "session" and not workload.has_turns:
            raise InputError(
                f"has no effect: every session of {workload.source} is one request", field="concurrency_by"
            )
        if concurrency is not None and workload.dependencies:
            raise InputError(
                f"has no meaning for {workload.source}: its requests wait for each other, not for a place",
                field="concurrency",
            )
        if on_failed_dependency != "cancel" and not workload.dependencies:
            raise InputError(
                f"has no effect: no request of {workload.source} waits for another by name",
                field="on_failed_dependency",
            )
        if concurrency is None and workload.needs_concurrency:
            raise InputError(f"missing for {workload.source}: {workload.needs_concurrency}", field="concurrency")
        workload.complete()
        self.workload = workload
        self._original = workload
        self.arrival_ms: array[float] = filled("d", float("nan"), workload.num_requests)
        self.released = 0
        self.in_flight = 0
        if concurrency is not None:
            self._loops = [ClosedLoop(concurrency, 0, workload.num_sessions, concurrency_by)]
        else:
            self._loops = [loop.copy() for loop in workload.closed_loops]
        self._loop_of: list[ClosedLoop | None] | None = None  # by session; None if there is no closed loop
        self._sent = bytearray(workload.num_requests)  # 1 while in flight
        # What breaks ties: the number of the session, or of the request where sessions are mere labels.
        self._rank: Sequence[int] = range(workload.num_requests) if workload.dependencies else workload.session
        # (ready_ms, rank, request): turns whose session waits for them; in a closed loop first turns as well
        self._ready: list[tuple[float, int, int]] = []
        self._started = 0  # roots sent, in `_roots`
        self._roots: Sequence[int] = array("q")  # open loop only
        self._root_ms = array("d")  # arrivals in that order
        self._next_root_ms = INFINITY  # ... of the next root to send
        self._releases_on_failure = on_failed_dependency == "release"
        self._unmet = {request: len(before) for request, before in workload.dependencies.items() if before}
        self._dependents: dict[int, list[int]] = {}
        for request in self._unmet:
            for before in workload.dependencies[request]:
                self._dependents.setdefault(before, []).append(request)
        self._never_sent: list[tuple[int, str]] = []
        if concurrency is None:
            self._sort_by_arrival()
        if self._loops:
            self._loop_of = [None] * workload.num_sessions
            for loop in self._loops:
                sessions = range(loop.next_session, loop.end_session)
                self._loop_of[loop.next_session : loop.end_session] = [loop] * len(sessions)
                for _ in sessions[: loop.places]:
                    self._start_next_session(loop, 0.0)

    @property
    def exhausted(self) -> bool:
        """Nothing is left to release and nothing is in flight."""
        return not self._ready and not self.in_flight and self._next_root_ms == INFINITY and not self._unmet

    @property
    def has_followers(self) -> bool:
        """Whether the end of a request may make another one ready."""
        return bool(self._loops) or not self._original.has_only_roots

    def next_ready_ms(self) -> float:
        """When `release` will next have something to send; infinity if that takes a completion, or never comes."""
        if self._ready and self._ready[0][0] < self._next_root_ms:
            return self._ready[0][0]
        return self._next_root_ms

    def release(self, now_ms: float) -> list[int]:
        """Send what is ready at or before `now_ms`: request numbers, ordered by (ready time, session number)."""
        ready = self._ready
        sent: list[int] = []
        while True:
            root_ms = self._next_root_ms
            if ready and (turn := ready[0])[0] <= now_ms and (turn[0] < root_ms or self._is_before_next_root(turn)):
                heappop(ready)
                request = turn[2]
                if self._loop_of is None:
                    self.arrival_ms[request] = turn[0]
                elif not self._takes_place(turn, now_ms):
                    continue
                if self.workload is not self._original:
                    self.workload.settle(request)
            elif root_ms <= now_ms:
                started = self._started
                request = self._roots[started]
                self.arrival_ms[request] = root_ms
                self._started = started = started + 1
                self._next_root_ms = self._root_ms[started] if started < len(self._root_ms) else INFINITY
            else:
                break
            self._sent[request] = 1
            sent.append(request)
        self.released += len(sent)
        self.in_flight += len(sent)
        return sent

    def finished(
        self,
        request: int,
        now_ms: float,
        *,
        cancelled: bool = False,
        failed: str = "",
        output_tokens: int | None = None,
    ) -> None:
        """A request has reached its end at `now_ms`, which makes the next turn of its session due after its delay.

        For its session a rejection or failure is an end like a completion; for what depends on it, it is not.

        Args:
            cancelled: its client gave up, which ends the whole session instead.
            failed: how it failed, in one word ("rejected", "failed"); "" for a completion.
            output_tokens: what it generated; None for all that was asked for.

        Raises:
            ValueError: the request is not in flight.
        """
        if not self._sent[request]:
            raise ValueError(f"request {request} is not in flight")
        self._sent[request] = 0
        self.in_flight -= 1
        workload = self.workload
        if output_tokens is not None and workload.accumulates and output_tokens < workload.output_tokens[request]:
            if workload is self._original:
                self.workload = workload = workload.for_run()
            workload.shorten(request, output_tokens)
        following = workload.next_turn[request]
        goes_on = following >= 0 and not cancelled
        if goes_on:
            self._make_ready(following, now_ms)
        if self._loop_of is not None:
            self._leave_place(workload.session[request], goes_on, now_ms)
        if self._dependents:
            self._tell_dependents(request, now_ms, "cancelled" if cancelled else failed)

    def take_cancelled(self) -> list[tuple[int, str]]:
        """Requests that will never be sent since something they wait for did not complete, each told once: why."""
        never_sent = self._never_sent
        self._never_sent = []
        return never_sent

    def give_back(self) -> None:
        """Drop what memory holds of columns that are on disk; see `Workload.give_back`."""
        self.workload.give_back()
        give_back(self.arrival_ms)
        give_back(self._roots)
        give_back(self._root_ms)

    def _make_ready(self, request: int, now_ms: float) -> None:
        delay_ms = self.workload.time_ms[request]
        if delay_ms != delay_ms:  # not stated
            delay_ms = 0.0
        heappush(self._ready, (now_ms + delay_ms, self._rank[request], request))

    def _tell_dependents(self, request: int, now_ms: float, failed: str) -> None:
        for dependent in self._dependents.get(request, ()):
            if dependent not in self._unmet:
                continue  # it has been given up already
            if failed and not self._releases_on_failure:
                self._give_up(dependent, request, failed)
                continue
            self._unmet[dependent] -= 1
            if not self._unmet[dependent]:
                del self._unmet[dependent]
                self._make_ready(dependent, now_ms)

    def _give_up(self, request: int, culprit: int, failed: str) -> None:
        """Never send a request, nor any that waits for it."""
        chain = [(request, culprit, failed)]
        for lost, cause, what in chain:  # grows while it is read
            if lost in self._unmet:
                del self._unmet[lost]
                reason = f"request {self.workload.request_id(cause)}, which it waits for, was {what}"
                self._never_sent.append((lost, reason))
                chain += [(dependent, lost, "cancelled") for dependent in self._dependents.get(lost, ())]
                following = self.workload.next_turn[lost]
                while following >= 0:
                    self._never_sent.append((following, f"a turn before it, {reason}"))
                    chain += [(dependent, following, "cancelled") for dependent in self._dependents.get(following, ())]
                    following = self.workload.next_turn[following]

    def _sort_by_arrival(self) -> None:
        """Put the roots of the open loop in the order of their arrivals; one without a stated time arrives at zero."""
        if self.workload.num_requests >= first_row_on_disk() and self.workload.has_only_roots and not self._loops:
            times_ms: FloatColumn = np.asarray(self.workload.time_ms, dtype=np.float64)
            if times_ms.min() >= 0.0:  # and none is missing
                self._sort_on_disk(times_ms)
                return
        roots = self.workload.roots()
        first_turns = np.append(self.workload.first_turn, self.workload.num_requests)
        for loop in self._loops:
            begins, ends = first_turns[loop.next_session], first_turns[loop.end_session]
            roots = roots[(roots < begins) | (roots >= ends)]
        arrivals = np.array(self.workload.time_ms, dtype=np.float64)[roots]
        arrivals[np.isnan(arrivals)] = 0.0
        if arrivals.min(initial=0.0) < 0.0:
            early = int(roots[arrivals.argmin()])
            raise InputError(
                f"request {self.workload.request_id(early)} arrives at {arrivals.min():g} ms, expected at least 0",
                source=self.workload.source,
                field="time_ms",
            )
        order = np.argsort(arrivals, kind="stable")
        self._roots = array("q", roots[order].tobytes())
        self._root_ms = array("d", arrivals[order].tobytes())
        if self._root_ms:
            self._next_root_ms = self._root_ms[0]

    def _sort_on_disk(self, times_ms: FloatColumn) -> None:
        """The same for very many requests that have an arrival each, in bounded memory."""
        if is_sorted(times_ms):
            self._roots = range(len(times_ms))
            self._root_ms = self.workload.time_ms
        else:
            self._roots, self._root_ms = arrival_order(times_ms)
        self._next_root_ms = self._root_ms[0]

    def _is_before_next_root(self, turn: ReadyTurn) -> bool:
        """Whether a turn that is due at the same time as the next root of the open loop, or later, precedes it."""
        return turn[0] == self._next_root_ms and turn[1] < self._rank[self._roots[self._started]]

    def _takes_place(self, turn: ReadyTurn, now_ms: float) -> bool:
        """Note when a turn that is due is sent, or that it waits for a place in its closed loop."""
        assert self._loop_of is not None
        if turn[2] < 0:
            self._fill_places(-1 - turn[2], now_ms)
            return False
        loop = self._loop_of[self.workload.session[turn[2]]]
        if loop is not None and loop.by_request:
            if not loop.free:
                heappush(loop.waiting, turn)
                return False
            loop.free -= 1
        self.arrival_ms[turn[2]] = turn[0] if loop is None else now_ms
        return True

    def _leave_place(self, session: int, goes_on: bool, now_ms: float) -> None:
        """A request has ended, and with it its session unless that goes on: who is next in its closed loop?"""
        assert self._loop_of is not None
        loop = self._loop_of[session]
        if loop is None:
            return
        if loop.by_request:
            loop.free += 1
            if loop.waiting:
                heappush(self._ready, heappop(loop.waiting))
            elif loop.next_session < loop.end_session:
                self._fill_later(self._loops.index(loop), now_ms)
        elif not goes_on:
            self._start_next_session(loop, now_ms)

    def _fill_later(self, number: int, now_ms: float) -> None:
        """Begin sessions in the free places of a closed loop, once no turn that is due at this instant wants one."""
        heappush(self._ready, (now_ms, self.workload.num_requests, -1 - number))

    def _fill_places(self, number: int, now_ms: float) -> None:
        loop = self._loops[number]
        if loop.free and loop.next_session < loop.end_session:
            self._start_next_session(loop, now_ms)
            self._fill_later(number, now_ms)

    def _start_next_session(self, loop: ClosedLoop, place_free_ms: float) -> None:
        """Make the next first turn of a closed loop ready, since there is a place for its session."""
        session = loop.next_session
        if session == loop.end_session:
            return
        loop.next_session = session + 1
        heappush(self._ready, (place_free_ms, session, self.workload.first_turn[session]))
