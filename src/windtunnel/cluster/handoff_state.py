"""How far hand-offs have come: one request on its way, and what one worker has to do for those that concern it.

Nothing is decided here: that is `cluster/handoff.py`.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Protocol, cast

from windtunnel.cluster.fabric import Shipment
from windtunnel.cluster.router.base import RoutedRequest
from windtunnel.cluster.worker import Worker
from windtunnel.engine.handoff import DestinationScheduler, HandedOver
from windtunnel.engine.request import NAN, EngineRequest
from windtunnel.record.columns import HandoffColumns


class Stage(IntEnum):
    """How far a hand-off has come."""

    WAITING = 0  # destination first: for room
    PREFILLING = 1
    HELD = 2  # at the source: for room at the destination, then for the transfer
    SENT = 3  # it has arrived, and the destination is in a pass
    ACTIVE = 4  # at the destination


class Owner(Protocol):
    """Who decides what becomes of a hand-off."""

    live: dict[int, Handoff]

    def sent(self, handoff: Handoff, now_ms: float) -> None: ...
    def resume(self, handoff: Handoff, now_ms: float) -> None: ...
    def fail(self, handoff: Handoff, now_ms: float, reason: str) -> None: ...


class Dock:
    """What one worker has to do for hand-offs.

    Attributes:
        pending: hand-offs that wait for room at this destination.
        tried: free blocks, requests that ran and requests that waited when the first of them did not fit; None while
            it was not tried.
        releases, activations, cancellations: to be done at the end of the pass in flight.
        is_open: they are being done.
    """

    __slots__ = ("activations", "cancellations", "is_open", "pending", "releases", "tried")

    def __init__(self) -> None:
        self.pending: deque[Handoff] = deque()
        self.tried: tuple[int, int, int] | None = None
        self.releases: list[EngineRequest] = []
        self.activations: list[Handoff] = []
        self.cancellations: list[EngineRequest] = []
        self.is_open = False

    def has_use_for(self, scheduler: DestinationScheduler) -> bool:
        """Whether anything has become free since the first hand-off that waits did not fit."""
        if self.tried is None:
            return True
        free_blocks, running, waiting = self.tried
        has_less = scheduler.pool.free_blocks <= free_blocks and scheduler.num_running >= running
        return not has_less or scheduler.num_waiting < waiting


class Handoff:
    """One request on its way.

    Attributes:
        routed: the request as routers see it; output_tokens: what it will generate.
        source, target: the request at the engine that prefills and at the one that decodes.
        held_ms, reserved_ms, activated_ms: when that happened, NaN before.
        missing_tokens: those of its prompt that the destination did not have, in whole blocks.
        lost: the attempt before, which came to nothing, if there was one.
        is_reserved: it holds room at its destination.
        is_held: its KV is held at the source.
    """

    def __init__(
        self,
        owner: Owner,
        routed: RoutedRequest,
        output_tokens: int,
        arrival_ms: float,
        lost: EngineRequest | None = None,
    ) -> None:
        self.owner = owner
        self.lost = lost
        self.routed = routed
        self.output_tokens = output_tokens
        self.arrival_ms = arrival_ms
        self.stage = Stage.WAITING
        self.source: EngineRequest | None = None
        self.target: EngineRequest | None = None
        self.source_worker: Worker | None = None
        self.target_worker: Worker | None = None
        self.shipment: Shipment | None = None
        self.missing_tokens = 0
        self.is_reserved = False
        self.is_held = False
        self.held_ms = NAN
        self.reserved_ms = NAN
        self.activated_ms = NAN

    def arrived(self, now_ms: float) -> None:
        """Its KV has crossed the network."""
        self.owner.sent(self, now_ms)

    def is_due(self) -> bool:
        """Whether it still waits for a worker, if it did."""
        return self.owner.live.get(self.routed.number) is self

    def resume(self, now_ms: float) -> None:
        """There is a worker again in the pool that it waits for."""
        self.owner.resume(self, now_ms)

    def fail(self, now_ms: float, reason: str) -> None:
        """There will be none."""
        self.owner.fail(self, now_ms, reason)

    def account(self, source: EngineRequest, now_ms: float) -> None:
        """The time since the prompt was computed went into the hand-off; before that, into the queue."""
        if self.is_held:
            source.note_transfer(now_ms)
        else:
            source.note_wait(now_ms)

    def carry_over(self, source: EngineRequest, target: EngineRequest) -> None:
        """What has happened at the source is part of the request at its destination."""
        target.first_admit_ms = source.first_admit_ms
        target.hit_tokens = source.hit_tokens
        target.reused_tokens = source.reused_tokens
        target.preemptions = source.preemptions
        target.marker_ms = source.marker_ms
        target.queued_ms = source.queued_ms
        target.prefill_ms = source.prefill_ms
        target.stalled_ms = source.stalled_ms
        target.preempted_ms = source.preempted_ms
        target.transfer_ms = source.transfer_ms

    def write(self, columns: HandoffColumns) -> None:
        """Record it."""
        number = self.routed.number
        if self.source_worker is not None:
            columns.prefill_worker[number] = self.source_worker.index
        columns.source_held_ms[number] = self.held_ms
        columns.reserved_ms[number] = self.reserved_ms
        columns.activated_ms[number] = self.activated_ms
        is_active = self.target is not None and self.stage is Stage.ACTIVE
        columns.decode_admit_ms[number] = cast(HandedOver, self.target).decode_admit_ms if is_active else NAN
        columns.missing_tokens[number] = self.missing_tokens if is_active else 0
