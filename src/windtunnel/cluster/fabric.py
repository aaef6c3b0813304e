"""What KV crosses between two workers: the network interface of each, and the fabric between them.

A transfer is on every link that it crosses from its start on and has arrived when the last of them is done with it; on
each, transfers share the bandwidth equally. That is exact where one link is the bottleneck, and otherwise a little
early: what one link holds back is not given to others on the next. The file decides nothing else.
"""

from __future__ import annotations

from typing import Protocol

from windtunnel.cluster.agenda import Agenda
from windtunnel.cluster.alarm import Alarm
from windtunnel.engine.kv.link import INFINITE, Link, Transfer


class Arrival(Protocol):
    """Who waits for a transfer."""

    def arrived(self, now_ms: float) -> None: ...


class Shipment:
    """One transfer from worker to worker.

    Attributes:
        legs: its part on each link; left: those that are not done.
    """

    __slots__ = ("left", "legs", "owner")

    def __init__(self, owner: Arrival) -> None:
        self.owner = owner
        self.legs: list[tuple[CountedLink, Leg]] = []
        self.left = 0


class Leg(Transfer):
    """A shipment on one link."""

    __slots__ = ("shipment",)

    def __init__(self, size_bytes: int, shipment: Shipment) -> None:
        super().__init__(size_bytes)
        self.shipment = shipment


class CountedLink:
    """A link whose events are on the agenda, and which may be down.

    Attributes:
        legs: those on the link that are not done, in the order of their start.
    """

    def __init__(self, link: Link, agenda: Agenda) -> None:
        self.link = link
        self.legs: list[Leg] = []
        self._alarm = Alarm(agenda, self.happen)
        self._is_down = False

    def start(self, leg: Leg, now_ms: float) -> None:
        """Put a leg on the link, or keep it until the link is up."""
        self.legs.append(leg)
        if not self._is_down:
            self.link.start(leg, now_ms)
            self._alarm.set(self.link.next_ms)

    def cancel(self, leg: Leg, now_ms: float) -> None:
        if leg in self.legs:
            self.legs.remove(leg)
            if not self._is_down:
                self.link.cancel(leg, now_ms)
                self._alarm.set(self.link.next_ms)

    def set_down(self, is_down: bool, now_ms: float) -> None:
        """The link goes down, and what is on it is lost; or it is up again, and all that starts anew."""
        self._is_down = is_down
        if is_down:
            for leg in self.legs:
                self.link.cancel(leg, now_ms)
        else:
            self.legs = [self._again(leg, now_ms) for leg in self.legs]
        self._alarm.set(self.link.next_ms)

    def _again(self, old: Leg, now_ms: float) -> Leg:
        """A new leg in the place of one that was lost, or kept: a link knows each by itself."""
        if old.end_ms == old.end_ms:  # it ended at the instant that the link went down
            return old
        leg = Leg(old.size_bytes, old.shipment)
        legs = old.shipment.legs
        legs[legs.index((self, old))] = (self, leg)
        self.link.start(leg, now_ms)
        return leg

    def happen(self, now_ms: float) -> None:
        done = self.link.advance(now_ms)
        self._alarm.set(self.link.next_ms)
        for leg in done:
            assert isinstance(leg, Leg)
            if leg not in self.legs:
                continue  # it was cancelled at the instant of its end
            self.legs.remove(leg)
            shipment = leg.shipment
            shipment.left -= 1
            if not shipment.left:
                shipment.owner.arrived(now_ms)


class Fabric:
    """The network between workers.

    Args:
        gb_per_s: bandwidth of the interface of each worker and direction; infinite takes no time.
        fabric_gb_per_s: what all transfers together get; infinite for a fabric without a bottleneck of its own.
        latency_ms: from the start of a transfer to its first byte.
        shared: whether transfers share what they cross; otherwise each has all of it.
    """

    def __init__(
        self, agenda: Agenda, gb_per_s: float, fabric_gb_per_s: float, latency_ms: float, shared: bool
    ) -> None:
        self._agenda = agenda
        self._gb_per_s = gb_per_s
        self._latency_ms = latency_ms
        self._shared = shared
        self._outgoing: dict[int, CountedLink] = {}  # by index of the worker
        self._incoming: dict[int, CountedLink] = {}
        self._down: dict[int, int] = {}  # faults of each interface that is down
        self._fabric = None
        if fabric_gb_per_s != INFINITE:
            self._fabric = CountedLink(Link(fabric_gb_per_s, latency_ms, shared), agenda)

    def ship(self, owner: Arrival, source: int, target: int, size_bytes: int, now_ms: float) -> Shipment | None:
        """Start a transfer between two workers; None if it has arrived at once."""
        is_free = not size_bytes or (self._gb_per_s == INFINITE and self._fabric is None)
        if is_free and not self._latency_ms and source not in self._down and target not in self._down:
            return None
        shipment = Shipment(owner)
        links = [self._link(self._outgoing, source), self._link(self._incoming, target)]
        if self._fabric is not None:
            links.append(self._fabric)
        shipment.left = len(links)
        for link in links:
            leg = Leg(size_bytes, shipment)
            shipment.legs.append((link, leg))
            link.start(leg, now_ms)
        return shipment

    def cancel(self, shipment: Shipment, now_ms: float) -> None:
        """Take a transfer off the network."""
        for link, leg in shipment.legs:
            link.cancel(leg, now_ms)

    def set_down(self, worker: int, is_down: bool, now_ms: float) -> None:
        """The network interface of a worker goes down, or is up again."""
        if is_down:
            self._down[worker] = self._down.get(worker, 0) + 1
        else:
            self._down[worker] -= 1
            if not self._down[worker]:
                del self._down[worker]
        if (self._down[worker] == 1) if is_down else (worker not in self._down):
            for links in (self._outgoing, self._incoming):
                self._link(links, worker).set_down(is_down, now_ms)

    def _link(self, links: dict[int, CountedLink], worker: int) -> CountedLink:
        found = links.get(worker)
        if found is None:
            found = links[worker] = CountedLink(Link(self._gb_per_s, self._latency_ms, self._shared), self._agenda)
        return found
