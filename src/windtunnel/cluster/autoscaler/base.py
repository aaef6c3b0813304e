"""What an autoscaler sees and decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class WorkerSnapshot:
    """One active rank at the time of a tick.

    Attributes:
        number: its number in its pool.
        num_requests: requests sent to it that have not ended.
        num_waiting, num_running: those in its queue and in its batch.
        free_blocks, num_blocks: KV blocks that nobody holds, and all there are.
        accept_length: tokens emitted per request and pass that emitted any, so far; 1 without speculation, NaN on
            SGLang with it.
    """

    number: int
    num_requests: int
    num_waiting: int
    num_running: int
    free_blocks: int
    num_blocks: int
    accept_length: float = 1.0


@dataclass(frozen=True)
class PoolSnapshot:
    """A pool at the time of a tick; counts are of workers, however many ranks they have.

    Attributes:
        workers: every rank that the router may choose.
        active, starting, draining: workers that take requests, that will, and that do no more.
        parked: requests that wait for any worker of the pool to become ready.
    """

    workers: tuple[WorkerSnapshot, ...]
    active: int
    starting: int
    draining: int
    parked: int

    @property
    def num_requests(self) -> int:
        """Requests that the pool has to deal with."""
        return self.parked + sum(worker.num_requests for worker in self.workers)


@dataclass(frozen=True)
class TrafficWindow:
    """What has happened since the last tick; means over nothing are None.

    Attributes:
        duration_ms: length of the window.
        arrived: requests that were sent in it; completed: those that completed in it.
        mean_input_tokens, mean_output_tokens: over those that completed.
        mean_ttft_ms: over those of them that emitted anything; mean_itl_ms: of their mean gaps, over those with one.
        mean_hit_share: of the blocks of their prompts that were found in a cache, over the blocks, per request.
        accept_length: output tokens of those that completed, over the passes in which each of them emitted any: 1
            without speculation. None if there are no such tokens.
    """

    duration_ms: float
    arrived: int
    completed: int
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    mean_ttft_ms: float | None
    mean_itl_ms: float | None
    mean_hit_share: float | None
    accept_length: float | None = None

    @property
    def arrivals_per_s(self) -> float:
        return self.arrived / self.duration_ms * 1000.0 if self.duration_ms > 0.0 else 0.0


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster at the time of a tick, when everything else at that time has happened.

    Attributes:
        tick: 0 for the first.
        pools: by name: "workers", or "prefill" and "decode".
    """

    now_ms: float
    tick: int
    pools: Mapping[str, PoolSnapshot]
    traffic: TrafficWindow


@dataclass(frozen=True)
class ScalingDecision:
    """What an autoscaler wants.

    Attributes:
        targets: workers that each pool shall have, starting ones included; pools that are left out stay as they are.
        next_tick_ms: when to be asked again, later than now; None for never.
    """

    targets: Mapping[str, int] = field(default_factory=dict)
    next_tick_ms: float | None = None


class Autoscaler(Protocol):
    """Decides how many workers there shall be. Anything with these two methods is one; see docs/topologies.md."""

    def first_tick_ms(self) -> float:
        """When to be asked for the first time."""
        ...

    def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
        """What is wanted now."""
        ...
