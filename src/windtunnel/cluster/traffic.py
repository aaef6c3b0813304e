"""Transfers of KV between tiers as events: each link wakes the event loop when something happens on it next."""

from __future__ import annotations

from windtunnel.cluster.agenda import Agenda, Kind
from windtunnel.cluster.worker import Clock
from windtunnel.engine.kv.link import Link
from windtunnel.engine.kv.offload import Errand

INFINITE = float("inf")


class Traffic:
    """Starts errands on links, and lets them arrive when they end."""

    def __init__(self, agenda: Agenda, clock: Clock) -> None:
        self._agenda = agenda
        self._clock = clock

    @property
    def now_ms(self) -> float:
        return self._clock.now_ms

    def start(self, link: Link, errand: Errand) -> None:
        """Send an errand over a link now."""
        before_ms = link.next_ms
        link.start(errand, self._clock.now_ms)
        if link.next_ms != before_ms:
            self.plan(link)

    def plan(self, link: Link) -> None:
        """Look at a link again when something happens on it next."""
        if link.next_ms != INFINITE:
            self._agenda.add(link.next_ms, Kind.TRANSFER, LinkEvent(self, link))


class LinkEvent:
    """Something happens on a link, unless that has been put off or brought forward."""

    __slots__ = ("_link", "_next_ms", "_traffic")

    def __init__(self, traffic: Traffic, link: Link) -> None:
        self._traffic = traffic
        self._link = link
        self._next_ms = link.next_ms

    def is_due(self) -> bool:
        return self._link.next_ms == self._next_ms

    def happen(self, now_ms: float) -> None:
        for errand in self._link.advance(now_ms):
            assert isinstance(errand, Errand)
            errand.arrive()
        self._traffic.plan(self._link)
