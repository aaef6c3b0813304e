"""What happens at a time of its own: transfers, late events, starting workers, faults, clients that give up, ticks.

It keeps the order of simultaneous events and decides nothing else. Ends of passes and arrivals are not in here: they
are what the event loop itself is about.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import Protocol

INFINITE = float("inf")


class Kind(IntEnum):
    """Kinds of events in the order in which they happen at one instant; a tick comes after everything else."""

    FAULT = 0
    WORKER_READY = 1
    EVENTS = 2
    TRANSFER = 3
    TIMEOUT = 4
    TICK = 5


class Event(Protocol):
    """Something that will happen, unless it has lost its point meanwhile."""

    def is_due(self) -> bool:
        """Whether it is still to happen. Once False, always False."""
        ...

    def happen(self, now_ms: float) -> None: ...


Entry = tuple[float, int, int, Event]


class Agenda:
    """Events in the order of (time, kind, rank).

    Attributes:
        entries: a heap of them, for owners that want to know cheaply whether there are any.
    """

    __slots__ = ("_entered", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._entered = 0

    def add(self, time_ms: float, kind: Kind, event: Event, rank: int | None = None) -> None:
        """Let an event happen at `time_ms`.

        Args:
            rank: its place among those of its kind and time, unless that is when it was entered; none has another's.
        """
        self._entered += 1
        heappush(self.entries, (time_ms, int(kind), self._entered if rank is None else rank, event))

    def next_ms(self) -> float:
        """When the next event happens that is still due; infinite if there is none."""
        entries = self.entries
        while entries and not entries[0][3].is_due():
            heappop(entries)
        return entries[0][0] if entries else INFINITE

    def happen(self, now_ms: float) -> None:
        """Let everything happen that is due by now, except ticks."""
        while self.next_ms() <= now_ms and self.entries[0][1] != Kind.TICK:
            heappop(self.entries)[3].happen(now_ms)

    def tick(self, now_ms: float) -> bool:
        """Let a tick happen that is next and due by now; whether there was one."""
        if self.next_ms() > now_ms or self.entries[0][1] != Kind.TICK:
            return False
        heappop(self.entries)[3].happen(now_ms)
        return True

    def is_tick_next(self) -> bool:
        """Whether what is next is a tick, so that nothing else on the agenda is left at its time."""
        return bool(self.entries) and self.entries[0][1] == Kind.TICK

    def has_only_ticks(self) -> bool:
        """Whether nothing but ticks is still due."""
        return all(entry[1] == Kind.TICK or not entry[3].is_due() for entry in self.entries)
