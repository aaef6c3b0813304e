"""What goes wrong in virtual time: workers crash or get slow, network interfaces go down, KV events get lost.

A crash takes a worker's queue, batch and KV cache; the pass in flight never ends. The requests that it had start anew
on another worker, or fail, as the policy says; tokens that their clients had seen are sent again and count as lost. A
request whose prompt another worker still holds is not lost: it asks for room elsewhere. What is slow takes longer from
the next pass on. Transfers over an interface that goes down start again when it is back.
Nothing is lost silently: each fault says how many requests it hit, and when the last of them had ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windtunnel.cluster.agenda import Agenda, Kind
from windtunnel.cluster.fabric import Fabric
from windtunnel.cluster.handoff import Handoffs
from windtunnel.cluster.pool import Life, Pool, State
from windtunnel.cluster.rank_group import RankGroup
from windtunnel.cluster.router.event_line import EventLine
from windtunnel.cluster.worker import Worker
from windtunnel.config.faults import INFINITE, PlannedFault
from windtunnel.engine.rank_engine import RankEngine
from windtunnel.engine.request import EngineRequest
from windtunnel.errors import InputError
from windtunnel.record.columns import FaultRecord, Record, WorkerEvent
from windtunnel.timing.base import TimingModel
from windtunnel.timing.slowed import SlowedTiming

EVENT_FAULTS = ("events-lost", "events-late")


class Cluster(Protocol):
    """What failures need of the simulation around them."""

    agenda: Agenda
    record: Record
    handoffs: Handoffs | None

    def unpark(self, pool: Pool, now_ms: float) -> None: ...
    def reach_boundary(self, worker: Worker, now_ms: float) -> bool: ...
    def settle(self, worker: Worker, finished: list[EngineRequest], now_ms: float) -> None: ...
    def start_anew(self, lost: EngineRequest, now_ms: float) -> None: ...
    def fail(self, request: EngineRequest, now_ms: float, reason: str) -> None: ...


class Begin:
    """A fault begins."""

    __slots__ = ("_failures", "_fault")

    def __init__(self, failures: Failures, fault: PlannedFault) -> None:
        self._failures = failures
        self._fault = fault

    def is_due(self) -> bool:
        return True

    def happen(self, now_ms: float) -> None:
        self._failures.begin(self._fault, now_ms)


class End:
    """A fault ends."""

    __slots__ = ("_failures", "_fault", "_life", "_pool", "_record")

    def __init__(self, failures: Failures, fault: PlannedFault, record: FaultRecord, pool: Pool, life: Life) -> None:
        self._failures = failures
        self._fault = fault
        self._record = record
        self._pool = pool
        self._life = life

    def is_due(self) -> bool:
        return self._life.state is not State.REMOVED

    def happen(self, now_ms: float) -> None:
        self._failures.end(self._fault, self._record, self._pool, self._life, now_ms)


class Failures:
    """The faults of one simulation.

    Args:
        pools: those of the cluster.
        retries: whether requests that a crash has taken start anew; otherwise they fail.
        fabric: the network, if KV crosses any.
        is_scaled: whether there may be more workers later.

    Raises:
        InputError: a fault of a worker that there is not, or of events that nobody reads.
    """

    def __init__(
        self,
        cluster: Cluster,
        pools: Sequence[Pool],
        faults: Sequence[PlannedFault],
        *,
        retries: bool,
        fabric: Fabric | None,
        is_scaled: bool,
    ) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self._cluster = cluster
        self._retries = retries
        self._fabric = fabric
        self._factors: dict[int, list[float]] = {}  # of slow workers, by index
        self._timing: dict[int, TimingModel] = {}  # what they were priced with before
        for fault in faults:
            if not is_scaled and fault.worker >= len(self.pools[fault.pool].lives):
                raise self._nobody(fault)
            if fault.what in EVENT_FAULTS:
                feed = self.pools[fault.pool].feed
                if feed is None or not feed.router.reads_cache:
                    raise InputError(
                        f"{fault.what} has no effect: the router{_of(self.pools[fault.pool])} reads no KV events",
                        field="cluster.failures.faults",
                    )
                feed.expect_faults(cluster.agenda)
            cluster.agenda.add(fault.at_ms, Kind.FAULT, Begin(self, fault))

    def _nobody(self, fault: PlannedFault) -> InputError:
        pool = self.pools[fault.pool]
        return InputError(
            f"{fault.what} at {fault.at_ms / 1000.0:g} s: found worker {fault.worker}, expected a number below "
            f"{len(pool.lives)}, which is how many{_of(pool)} there are",
            field="cluster.failures.faults",
        )

    def begin(self, fault: PlannedFault, now_ms: float) -> None:
        """A fault happens."""
        pool = self.pools[fault.pool]
        if fault.worker >= len(pool.lives):
            raise self._nobody(fault)
        life = pool.lives[fault.worker]
        until_ms = now_ms + fault.for_ms
        record = FaultRecord(now_ms, fault.what, pool.name, fault.worker, until_ms)
        self._cluster.record.faults.append(record)
        if life.state in (State.REMOVED, State.DOWN, State.STARTING):
            return  # there is nothing that could break
        if fault.what == "crash":
            self._crash(pool, life, record, now_ms)
        elif fault.what == "slow":
            for worker in life.ranks:
                self._factors.setdefault(worker.index, []).append(fault.factor)
                self._cluster.reach_boundary(worker, now_ms)
                self._reprice(worker)
        elif fault.what in EVENT_FAULTS:
            for line in self._lines(pool, life):
                if fault.what == "events-lost":
                    line.losses.append(record)
                else:
                    line.delays.append((fault.delay_ms, record))
        elif self._fabric is not None:
            self._fabric.set_down(life.ranks[0].index, True, now_ms)
        if until_ms != INFINITE:
            self._cluster.agenda.add(until_ms, Kind.WORKER_READY, End(self, fault, record, pool, life))

    def end(self, fault: PlannedFault, record: FaultRecord, pool: Pool, life: Life, now_ms: float) -> None:
        """A fault is over."""
        if fault.what == "crash":
            if life.state is not State.DOWN:
                return
            life.state = State.ACTIVE
            for worker in life.ranks:
                worker.is_routable = True
            pool.refresh()
            self._note(pool, life, "ready", "restart", now_ms)
            self._cluster.unpark(pool, now_ms)
        elif fault.what == "slow":
            for worker in life.ranks:
                self._factors[worker.index].remove(fault.factor)
                self._cluster.reach_boundary(worker, now_ms)
                self._reprice(worker)
        elif fault.what in EVENT_FAULTS:
            for line in self._lines(pool, life):
                line.losses = [other for other in line.losses if other is not record]
                line.delays = [(delay_ms, other) for delay_ms, other in line.delays if other is not record]
        elif self._fabric is not None:
            self._fabric.set_down(life.ranks[0].index, False, now_ms)

    def close(self) -> None:
        """The simulation has ended: say when the requests that each fault hit had."""
        columns = self._cluster.record.requests
        for fault in self._cluster.record.faults:
            ends = [columns.terminal_ms[number] for number in fault.requests]
            if ends and all(end_ms == end_ms for end_ms in ends):
                fault.recovery_ms = max(ends) - fault.time_ms

    def _crash(self, pool: Pool, life: Life, record: FaultRecord, now_ms: float) -> None:
        cluster = self._cluster
        comes_back = record.until_ms != INFINITE and life.state is State.ACTIVE
        life.state = State.DOWN if comes_back else State.REMOVED
        if not comes_back:
            life.end_ms = now_ms
        self._note(pool, life, "crashed" if comes_back else "removed", "crash", now_ms)
        for worker in life.ranks:
            worker.is_routable = False
        pool.refresh()
        lost: list[EngineRequest] = []
        for worker in life.ranks:
            finished, remaining = worker.engine.halt(now_ms)
            given_up = [request for request in remaining if request.cancelled_ms <= now_ms]
            cluster.settle(worker, finished + given_up, now_ms)
            lost += [request for request in remaining if request not in given_up]
        handoffs = cluster.handoffs
        self._rebuild(life, pool)
        if handoffs is not None:
            at_no_engine = [request for w in life.ranks for request in handoffs.worker_lost(w, now_ms)]
            lost += [request for request in at_no_engine if request not in lost]
        for worker in life.ranks:
            worker.num_requests = 0
            if worker.feed is not None:
                for request in lost:
                    worker.feed.ended(request.number, now_ms)
                worker.feed.removed(worker)
                worker.feed.watch(worker)
        for request in lost:
            record.requests.append(request.number)
            record.lost_tokens += request.num_emitted
        for request in lost:
            request.note_loss(now_ms)
            if self._retries:
                cluster.start_anew(request, now_ms)
            else:
                cluster.fail(request, now_ms, f"worker {life.number}{_of(pool)} crashed at {now_ms:g} ms")

    def _rebuild(self, life: Life, pool: Pool) -> None:
        """Empty engines in the place of those that are gone; they go on writing to the same columns."""
        for worker in life.ranks:
            worker.engine = pool.make_engine(worker.engine.passes)
            worker.unit = worker.engine
            self._timing.pop(worker.index, None)
            self._reprice(worker)
        engines = [worker.engine for worker in life.ranks if isinstance(worker.engine, RankEngine)]
        if engines:
            group = RankGroup(engines)
            for worker in life.ranks:
                worker.unit = group

    def _reprice(self, worker: Worker) -> None:
        """Price the passes of a worker with all that slows it down now."""
        factors = self._factors.get(worker.index, [])
        engine = worker.engine
        plain = self._timing.setdefault(worker.index, engine.timing)
        engine.timing = plain
        for factor in factors:
            engine.timing = SlowedTiming(engine.timing, factor)

    def _lines(self, pool: Pool, life: Life) -> list[EventLine]:
        """The ways of a worker's KV events."""
        assert pool.feed is not None
        return [pool.feed.line(worker.number) for worker in life.ranks]

    def _note(self, pool: Pool, life: Life, event: str, cause: str, now_ms: float) -> None:
        self._cluster.record.worker_events.append(WorkerEvent(now_ms, pool.name, life.number, event, cause))


def _of(pool: Pool) -> str:
    return f" of pool {pool.name}" if pool.name else ""
