"""A closed loop: so many places, and the sessions that wait for one.

Says what `concurrency` counts. By session, a place is held through all turns and think times of a session; by
request, it is held while a request is in flight, so that one session thinks while another one uses its place. Which
session begins when a place is free is decided here; what is sent at which instant, by the driver.
"""

from __future__ import annotations

from typing import Literal

ConcurrencyBy = Literal["session", "request"]

ReadyTurn = tuple[float, int, int]  # ready_ms, rank, request; see the driver


class ClosedLoop:
    """The places of some sessions of a workload, which begin in order.

    Attributes:
        places: how many.
        by: what takes one; by_request: whether that is a request.
        next_session: the session that begins next; `end_session` if none is left.
        free: places that nothing has taken.
        waiting: a heap of turns that are due and find no place; by request only.
    """

    __slots__ = ("by", "by_request", "end_session", "free", "next_session", "places", "waiting")

    def __init__(self, places: int, first_session: int, end_session: int, by: ConcurrencyBy = "session") -> None:
        self.places = places
        self.by = by
        self.by_request = by == "request"
        self.next_session = first_session
        self.end_session = end_session
        self.free = places
        self.waiting: list[ReadyTurn] = []

    def copy(self) -> ClosedLoop:
        """The same loop before anything has begun."""
        return ClosedLoop(self.places, self.next_session, self.end_session, self.by)
