"""The links of KV tiers that see each other, played together and only when somebody looks.

What happens on links follows from what was started on them, so nobody need be told at its time: whoever looks at a tier
lets everything happen first that is due by then, in the order of (time, link, start). Only while a request waits for a
transfer is there an alarm, at the time of what happens next. So writes that nobody waits for cost no events of the
simulation, and runs of passes and single passes agree. An engine whose tiers nobody else sees may run ahead of the
simulation's clock, which shows its time meanwhile. The file never knows what is carried.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from windtunnel.engine.kv.link import INFINITE, Link, Transfer


class Clock(Protocol):
    """The virtual time."""

    now_ms: float


class Waiter(Protocol):
    """Who waits for an errand."""

    def go_on(self, now_ms: float) -> None: ...


class Errand(Transfer, ABC):
    """A transfer between two levels, which fills or pins blocks until it is done with them, at a finite time.

    Attributes:
        waiters: to be told then.
    """

    __slots__ = ("waiters",)

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.waiters: list[Waiter] | None = None

    @abstractmethod
    def arrive(self, now_ms: float) -> None:
        """The transfer has ended, now."""

    def wait(self, waiter: Waiter) -> None:
        """Have someone told when it is done."""
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    def done(self, now_ms: float) -> None:
        """Tell the waiters."""
        waiters = self.waiters
        if waiters is not None:
            self.waiters = None
            for waiter in waiters:
                waiter.go_on(now_ms)


class Haulage:
    """Links, and the errands on them.

    Attributes:
        next_ms: nothing happens on any link before then.
        num_awaited: requests that wait for errands. Whoever changes it calls `plan`.
        set_alarm: who is asked to call `ring` at a time, or at another one instead; infinite is not at all.
    """

    __slots__ = ("_clock", "_left_ms", "_links", "_news", "_planned", "next_ms", "num_awaited", "set_alarm")

    def __init__(self, clock: Clock, set_alarm: Callable[[float], None] | None = None) -> None:
        self.next_ms = INFINITE
        self.num_awaited = 0
        self.set_alarm = set_alarm
        self._clock = clock
        self._left_ms = INFINITE  # what time it was when an engine began to run on; infinite if none does
        self._links = 0
        self._planned: list[tuple[float, int, Link]] = []  # a heap; stale entries are skipped
        self._news: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> float:
        return self._clock.now_ms

    def add(self, link: Link) -> Link:
        """Play a link, after those that were added before it at one instant."""
        link.rank = self._links
        self._links += 1
        return link

    def start(self, link: Link, errand: Errand, now_ms: float) -> None:
        """Send an errand over a link. Everything due by now has happened."""
        before_ms = link.next_ms
        link.start(errand, now_ms)
        next_ms = link.next_ms
        if next_ms != before_ms:
            heappush(self._planned, (next_ms, link.rank, link))
            self.next_ms = self._planned[0][0]
        if self.num_awaited:
            self.plan()

    def catch_up(self, until_ms: float = -1.0) -> float:
        """Let everything happen that is due by now, or by a later time; returns the time."""
        now_ms: float = self._clock.now_ms
        if now_ms < until_ms:
            now_ms = until_ms
        if self.next_ms <= now_ms:
            planned = self._planned
            while planned and planned[0][0] <= now_ms:
                at_ms, rank, link = heappop(planned)
                if link.next_ms != at_ms:
                    continue
                for errand in link.advance(at_ms):
                    assert isinstance(errand, Errand)
                    errand.arrive(at_ms)
                if link.next_ms != INFINITE:
                    heappush(planned, (link.next_ms, rank, link))
            self.next_ms = planned[0][0] if planned else INFINITE
            if self.num_awaited:
                self.plan()
        return now_ms

    def run_on(self, now_ms: float) -> bool:
        """The only engine here runs on by itself, to the end of a pass; False if the alarm rings first."""
        if self.num_awaited and self.next_ms <= now_ms:
            return False
        clock = self._clock
        if self._left_ms == INFINITE:
            self._left_ms = clock.now_ms
        clock.now_ms = now_ms
        return True

    def come_back(self) -> None:
        """It does so no more; it is still the time when it began to."""
        if self._left_ms != INFINITE:
            self._clock.now_ms = self._left_ms
            self._left_ms = INFINITE

    def tell(self, listener: Callable[[], None]) -> None:
        """Have someone told when the alarm rings, which it does at this instant."""
        self._news.append(listener)

    def plan(self) -> None:
        """Have the alarm ring when something happens next, if anybody waits."""
        if self.set_alarm is None:
            return
        if self._news:
            self.set_alarm(self._clock.now_ms)
            return
        planned = self._planned
        while planned and planned[0][2].next_ms != planned[0][0]:
            heappop(planned)
        self.next_ms = planned[0][0] if planned else INFINITE
        self.set_alarm(self.next_ms if self.num_awaited else INFINITE)

    def ring(self) -> None:
        """The alarm."""
        self.catch_up()
        news = self._news
        self._news = []
        for listener in news:
            listener()
        self.plan()
