"""What becomes of a worker's KV events on their way to a router while something is wrong with the way.

Lost events never arrive. Late ones arrive in the order in which they were published, and later ones queue up behind
them. Nothing is repaired: a router that was not told of an eviction goes on believing in the block, and refuses blocks
whose parents it was not told of, until the worker restarts. (vLLM's event publisher sends without acknowledgement, and
its replay buffer has to be asked for by the subscriber.)
"""

from __future__ import annotations

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.record.columns import FaultRecord


class EventLine:
    """The way of one worker's events.

    Attributes:
        losses: faults that lose events now.
        delays: those that delay them, with the delay in ms.
        last_ms: when the last late event arrives.
        life: which of the worker's lives the events are of; those of earlier ones never arrive.
    """

    __slots__ = ("delays", "last_ms", "life", "losses")

    def __init__(self) -> None:
        self.losses: list[FaultRecord] = []
        self.delays: list[tuple[float, FaultRecord]] = []
        self.last_ms = 0.0
        self.life = 0

    def arrival_ms(self, events: list[CacheEvent], now_ms: float) -> float | None:
        """When events that are published now arrive; None if they do not. Counts them for the faults they meet."""
        met = self.losses or [record for _, record in self.delays]
        for record in met:
            record.event_blocks += sum(event.end - event.first for event in events)
        if self.losses:
            return None
        at_ms = now_ms + sum(delay_ms for delay_ms, _ in self.delays)
        self.last_ms = max(at_ms, self.last_ms)
        return self.last_ms
