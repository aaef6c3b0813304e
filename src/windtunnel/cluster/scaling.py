"""Workers that come and go in virtual time: on a schedule, or as an autoscaler wants.

It decides which workers start and which drain when a pool shall have so many. More: new ones start, with numbers that
were never used, and are ready after the startup time. Fewer: starting ones are given up, the last first, then active
ones drain, the highest number first: they get no more requests, finish those they have and are gone. A worker counts as
provisioned from the moment it is asked for. Ticks come after everything else that happens at their time.
Source: how the Dynamo planner's targets are applied in replay (docs/fidelity.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from windtunnel.cluster.agenda import Agenda, Kind
from windtunnel.cluster.autoscaler.base import (
    Autoscaler,
    ClusterSnapshot,
    PoolSnapshot,
    ScalingDecision,
    TrafficWindow,
    WorkerSnapshot,
)
from windtunnel.cluster.pool import Life, Pool, State
from windtunnel.cluster.worker import Worker
from windtunnel.errors import PluginError
from windtunnel.record.columns import Record, Status, WorkerEvent
from windtunnel.workload.driver import Driver

IDLE_TICKS = 10_000  # one after another with nothing between them: whoever waits does so in vain


class Cause(IntEnum):
    """Why workers come and go."""

    SCHEDULE = 0
    AUTOSCALER = 1

    @property
    def label(self) -> str:
        return self.name.lower()


class Cluster(Protocol):
    """What scaling needs of the simulation around it."""

    agenda: Agenda
    record: Record
    driver: Driver

    def unpark(self, pool: Pool, now_ms: float) -> None: ...


class Ready:
    """A worker has started."""

    __slots__ = ("_life", "_pool", "_scaling")

    def __init__(self, scaling: Scaling, pool: Pool, life: Life) -> None:
        self._scaling = scaling
        self._pool = pool
        self._life = life

    def is_due(self) -> bool:
        return self._life.state is State.STARTING

    def happen(self, now_ms: float) -> None:
        self._scaling.ready(self._pool, self._life, now_ms)


class Step:
    """One entry of a schedule."""

    __slots__ = ("_scaling", "targets")

    def __init__(self, scaling: Scaling, targets: dict[str, int]) -> None:
        self._scaling = scaling
        self.targets = targets

    def is_due(self) -> bool:
        return True

    def happen(self, now_ms: float) -> None:
        self._scaling.apply(self.targets, Cause.SCHEDULE, now_ms)


class Tick:
    """The autoscaler is asked."""

    __slots__ = ("_scaling",)

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling

    def is_due(self) -> bool:
        return True

    def happen(self, now_ms: float) -> None:
        self._scaling.tick(now_ms)


class Scaling:
    """Applies a schedule, and asks an autoscaler.

    Args:
        pools: those of the cluster; a single one is called "workers".
        startup_ms: from asking for a worker to its first request.
        schedule: (time in ms, workers by pool), in any order.
        autoscaler, name: who is asked, and what errors call it.
    """

    def __init__(
        self,
        cluster: Cluster,
        pools: Sequence[Pool],
        startup_ms: float = 0.0,
        schedule: Sequence[tuple[float, dict[str, int]]] = (),
        autoscaler: Autoscaler | None = None,
        name: str = "autoscaler",
    ) -> None:
        self.pools = {pool.name or "workers": pool for pool in pools}
        self.ended: list[int] = []  # requests that have, since the last tick
        self._cluster = cluster
        self._startup_ms = startup_ms
        self._autoscaler = autoscaler
        self._name = name
        self._ticks = 0
        self._window_start_ms = 0.0
        self._window_released = 0
        for time_ms, targets in schedule:
            cluster.agenda.add(time_ms, Kind.TICK, Step(self, targets))
        if autoscaler is not None:
            self._plan_tick(autoscaler.first_tick_ms(), 0.0)

    def apply(self, targets: dict[str, int], cause: Cause, now_ms: float) -> None:
        """Bring pools to so many workers."""
        for name, target in targets.items():
            pool = self.pools[name]
            starting = [life for life in pool.lives if life.state is State.STARTING]
            active = [life for life in pool.lives if life.state is State.ACTIVE]
            surplus = len(starting) + len(active) - target
            for _ in range(-surplus):
                self._start(pool, cause, now_ms)
            for life in [*reversed(starting), *reversed(active)][: max(surplus, 0)]:
                if life.state is State.STARTING:
                    self._end(pool, life, State.REMOVED, "cancelled", cause.label, now_ms)
                else:
                    self._drain(pool, life, cause, now_ms)

    def ready(self, pool: Pool, life: Life, now_ms: float) -> None:
        """A worker takes requests from now on."""
        life.state = State.ACTIVE
        for worker in life.ranks:
            worker.is_routable = True
        pool.refresh()
        self._note(pool, life, "ready", "startup", now_ms)
        self._cluster.unpark(pool, now_ms)

    def settle(self, worker: Worker, now_ms: float) -> None:
        """A request has left a worker: if that drains and has no more, it is gone."""
        for pool in self.pools.values():
            for life in pool.lives:
                if worker in life.ranks and life.state is State.DRAINING:
                    if not any(rank.num_requests for rank in life.ranks):
                        self._end(pool, life, State.REMOVED, "removed", "drained", now_ms)
                    return

    def tick(self, now_ms: float) -> None:
        """Ask the autoscaler.

        Raises:
            PluginError: it raised, or what it answers makes no sense.
        """
        autoscaler = self._autoscaler
        assert autoscaler is not None
        snapshot = self.snapshot(now_ms)
        try:
            decision = autoscaler.on_tick(snapshot)
        except (Exception, SystemExit) as error:
            raise PluginError(f"{self._name} raised {error!r} at {now_ms:g} ms") from error
        self._check(decision, now_ms)
        self._ticks += 1
        self._window_start_ms = now_ms
        self._window_released = self._cluster.driver.released
        self.ended.clear()
        self.apply(dict(decision.targets), Cause.AUTOSCALER, now_ms)
        if decision.next_tick_ms is not None:
            self._plan_tick(decision.next_tick_ms, now_ms)

    def snapshot(self, now_ms: float) -> ClusterSnapshot:
        """What an autoscaler sees now."""
        pools = {name: _snapshot(pool, now_ms) for name, pool in self.pools.items()}
        return ClusterSnapshot(now_ms, self._ticks, pools, self._traffic(now_ms))

    def _traffic(self, now_ms: float) -> TrafficWindow:
        columns = self._cluster.record.requests
        workload = self._cluster.driver.workload
        done = [number for number in self.ended if columns.status[number] == Status.COMPLETED]
        tokens = [columns.output_tokens[number] for number in done]
        ttft = [columns.first_token_ms[n] - columns.arrival_ms[n] for n in done if columns.output_tokens[n]]
        itl = [
            (columns.last_token_ms[n] - columns.first_token_ms[n]) / (columns.output_tokens[n] - 1)
            for n in done
            if columns.output_tokens[n] > 1
        ]
        forwards = sum(tokens) - sum(columns.extra_tokens[number] for number in done)
        block = next(iter(self.pools.values())).tokens_per_block
        hits = [columns.hit_tokens[n] // block / -(-workload.input_tokens[n] // block) for n in done]
        return TrafficWindow(
            now_ms - self._window_start_ms,
            self._cluster.driver.released - self._window_released,
            len(done),
            _mean([float(workload.input_tokens[number]) for number in done]),
            _mean([float(count) for count in tokens]),
            _mean(ttft),
            _mean(itl),
            _mean(hits),
            sum(tokens) / forwards if forwards else None,
        )

    def _check(self, decision: ScalingDecision, now_ms: float) -> None:
        for name, target in decision.targets.items():
            if name not in self.pools or type(target) is not int or target < 0:
                pools = ", ".join(self.pools)
                raise PluginError(
                    f"{self._name} wants {target!r} workers of {name!r}: expected a number of at least 0 of {pools}"
                )
        next_ms = decision.next_tick_ms
        if next_ms is not None and not (math.isfinite(next_ms) and next_ms > now_ms):
            raise PluginError(f"{self._name} wants its next tick at {next_ms!r} ms, expected later than {now_ms:g} ms")

    def _plan_tick(self, time_ms: float, now_ms: float) -> None:
        self._cluster.agenda.add(max(time_ms, now_ms), Kind.TICK, Tick(self))

    def _start(self, pool: Pool, cause: Cause, now_ms: float) -> None:
        life = pool.start(now_ms, is_ready=False)
        self._note(pool, life, "starting", cause.label, now_ms)
        if self._startup_ms:
            self._cluster.agenda.add(now_ms + self._startup_ms, Kind.WORKER_READY, Ready(self, pool, life))
        else:
            self.ready(pool, life, now_ms)

    def _drain(self, pool: Pool, life: Life, cause: Cause, now_ms: float) -> None:
        life.state = State.DRAINING
        for worker in life.ranks:
            worker.is_routable = False
            worker.is_special = True
        pool.refresh()
        self._note(pool, life, "draining", cause.label, now_ms)
        if not any(rank.num_requests for rank in life.ranks):
            self._end(pool, life, State.REMOVED, "removed", "drained", now_ms)

    def _end(self, pool: Pool, life: Life, state: State, event: str, cause: str, now_ms: float) -> None:
        life.state = state
        life.end_ms = now_ms
        self._note(pool, life, event, cause, now_ms)
        if pool.feed is not None:
            for rank in life.ranks:
                pool.feed.removed(rank)

    def _note(self, pool: Pool, life: Life, event: str, cause: str, now_ms: float) -> None:
        self._cluster.record.worker_events.append(WorkerEvent(now_ms, pool.name, life.number, event, cause))


def _snapshot(pool: Pool, now_ms: float) -> PoolSnapshot:
    started_ms = math.nextafter(now_ms, math.inf)  # passes that start now have started; inside a run too
    workers = tuple(
        WorkerSnapshot(
            w.number,
            w.num_requests,
            w.num_waiting,
            w.num_running,
            w.engine.free_blocks(started_ms),
            w.num_blocks,
            w.engine.accept_length(now_ms),
        )
        for w in pool.routable
    )
    states = [life.state for life in pool.lives]
    return PoolSnapshot(
        workers,
        states.count(State.ACTIVE),
        states.count(State.STARTING),
        states.count(State.DRAINING),
        len(pool.parked),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
