"""When each request of a workload is sent, as time and completions allow.

Decides release times and the order at equal times: (ready time, session number). It never looks at engines or
queues and owns no clock; whoever does calls `release` and `finished`. Open loop: first turns are sent at their
arrival times. Closed loop: `concurrency` sessions are active at once; a session keeps its place through all its turns
and think times, and when it ends the next one starts at that instant. In both, a later turn is sent a delay after the
turn before it has ended.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

import numpy as np

from windtunnel.errors import InputError
from windtunnel.workload.session import Workload

INFINITY = float("inf")


class Driver:
    """Releases the requests of one workload, each once. An event costs O(log of the sessions that wait).

    Attributes:
        arrival_ms: per request, when it was sent: in an open loop its scheduled time, even if `release` is called
            later; in a closed loop the time of that call. NaN before.
        released: requests sent so far.
        in_flight: requests sent and not yet finished.
    """

    def __init__(self, workload: Workload, concurrency: int | None = None) -> None:
        """`concurrency` is the number of active sessions of a closed loop; None is an open loop.

        Raises:
            InputError: `concurrency` is below 1.
        """
        if concurrency is not None and concurrency < 1:
            raise InputError(f"found {concurrency}, expected at least 1 session", field="concurrency")
        self.arrival_ms = array("d", [float("nan")]) * workload.num_requests
        self.released = 0
        self.in_flight = 0
        self._workload = workload
        self._closed_loop = concurrency is not None
        self._sent = bytearray(workload.num_requests)  # 1 while in flight
        # (ready_ms, session, request): turns whose session waits for them; in a closed loop first turns as well
        self._ready: list[tuple[float, int, int]] = []
        self._started = 0  # sessions started, in `_session_order`
        self._session_order = array("q", range(workload.num_sessions))
        self._session_ms = array("d")  # arrivals in that order; open loop only
        self._next_session_ms = INFINITY  # ... of the next session to start
        if concurrency is None:
            self._sort_by_arrival()
        else:
            for _ in range(min(concurrency, workload.num_sessions)):
                self._start_next_session(0.0)

    @property
    def exhausted(self) -> bool:
        """Nothing is left to release and nothing is in flight."""
        return not self._ready and not self.in_flight and self._next_session_ms == INFINITY

    def next_ready_ms(self) -> float:
        """When `release` will next have something to send; infinity if that takes a completion, or never comes."""
        if self._ready and self._ready[0][0] < self._next_session_ms:
            return self._ready[0][0]
        return self._next_session_ms

    def release(self, now_ms: float) -> list[int]:
        """Send what is ready at or before `now_ms`: request numbers, ordered by (ready time, session number)."""
        ready = self._ready
        sent: list[int] = []
        while True:
            session_ms = self._next_session_ms
            if ready and (turn := ready[0])[0] <= now_ms and (
                turn[0] < session_ms or self._is_before_next_session(turn)
            ):
                heappop(ready)
                request = turn[2]
                self.arrival_ms[request] = now_ms if self._closed_loop else turn[0]
            elif session_ms <= now_ms:
                started = self._started
                request = self._workload.first_turn[self._session_order[started]]
                self.arrival_ms[request] = session_ms
                self._started = started = started + 1
                self._next_session_ms = self._session_ms[started] if started < len(self._session_ms) else INFINITY
            else:
                break
            self._sent[request] = 1
            sent.append(request)
        self.released += len(sent)
        self.in_flight += len(sent)
        return sent

    def finished(self, request: int, now_ms: float, *, cancelled: bool = False) -> None:
        """A request has reached its end at `now_ms`, which makes the next turn of its session due after its delay.

        A rejection or failure is an end like a completion; `cancelled` ends the whole session instead.

        Raises:
            ValueError: the request is not in flight.
        """
        if not self._sent[request]:
            raise ValueError(f"request {request} is not in flight")
        self._sent[request] = 0
        self.in_flight -= 1
        workload = self._workload
        following = workload.next_turn[request]
        if following >= 0 and not cancelled:
            delay_ms = workload.time_ms[following]
            if delay_ms != delay_ms:  # not stated
                delay_ms = 0.0
            heappush(self._ready, (now_ms + delay_ms, workload.session[request], following))
        elif self._closed_loop:
            self._start_next_session(now_ms)

    def _sort_by_arrival(self) -> None:
        """Put the sessions in the order of their first arrivals; one without a stated time arrives at zero."""
        workload = self._workload
        arrivals = np.array(workload.time_ms, dtype=np.float64)[np.array(workload.first_turn, dtype=np.int64)]
        arrivals[np.isnan(arrivals)] = 0.0
        order = np.argsort(arrivals, kind="stable")
        self._session_order = array("q", order.astype(np.int64).tobytes())
        self._session_ms = array("d", arrivals[order].tobytes())
        if self._session_ms:
            self._next_session_ms = self._session_ms[0]

    def _is_before_next_session(self, turn: tuple[float, int, int]) -> bool:
        """Whether a turn that is due at the same time as the next session of the open loop, or later, precedes it."""
        return turn[0] == self._next_session_ms and turn[1] < self._session_order[self._started]

    def _start_next_session(self, place_free_ms: float) -> None:
        """Closed loop: make the next first turn ready, when there is a place for its session."""
        place = self._started
        if place == len(self._session_order):
            return
        self._started = place + 1
        session = self._session_order[place]
        heappush(self._ready, (place_free_ms, session, self._workload.first_turn[session]))
