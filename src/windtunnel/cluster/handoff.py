"""Hand-offs: requests that prefill on one worker and decode on another.

It decides who waits for what. Source first (vLLM): the prompt is computed, its KV held, room for it reserved at a
destination, and the KV sent. Destination first (SGLang): room is reserved before the prompt is computed. Either way the
KV is held at its source until it has arrived and the request is active at its destination, which emits all its tokens.
Reservations wait in the order of their arrival at a worker; the first that does not fit stops those behind it. What a
worker has to do for a hand-off it does between two of its passes, an asynchronous one when it has decided the second of
them; a run of decodes ends for it. Where room is, what is
sent when and how time is counted never depends on how passes are computed.
Source: the hand-off coordinator of the Dynamo mocker (docs/fidelity.md has the differences).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast

from windtunnel.cluster.bypass import Bypass
from windtunnel.cluster.fabric import Fabric
from windtunnel.cluster.handoff_state import Dock, Handoff, Stage
from windtunnel.cluster.pool import Pool
from windtunnel.cluster.router.base import RoutedRequest
from windtunnel.cluster.worker import Worker
from windtunnel.engine.handoff import NO_ROOM, DestinationScheduler, HalfScheduler, SourceScheduler
from windtunnel.engine.request import NAN, EngineRequest
from windtunnel.record.columns import HandoffColumns
from windtunnel.workload.session import Workload


class Cluster(Protocol):
    """What hand-offs need of the simulation around them."""

    live: dict[int, EngineRequest]

    def submit(self, worker: Worker, request: EngineRequest, now_ms: float) -> None: ...
    def reach_boundary(self, worker: Worker, now_ms: float) -> bool: ...
    def wake(self, worker: Worker) -> None: ...
    def close_handoff(self, request: EngineRequest, worker: Worker | None, now_ms: float) -> None: ...
    def left(self, worker: Worker, now_ms: float) -> None: ...
    def fail(self, request: EngineRequest, now_ms: float, reason: str) -> None: ...


class Handoffs:
    """The hand-offs of a cluster with a pool that prefills and one that decodes.

    Args:
        columns: where hand-offs are recorded.
        destination_first: room is reserved before the prompt is computed.
        kv_bytes_per_token: 0 sends nothing.
        sends_missing_only: what the destination has cached is not sent.
    """

    def __init__(
        self,
        cluster: Cluster,
        prefill: Pool,
        decode: Pool,
        fabric: Fabric,
        workload: Workload,
        columns: HandoffColumns,
        *,
        destination_first: bool,
        kv_bytes_per_token: int,
        sends_missing_only: bool,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.bypass: Bypass | None = None  # set by who wants some requests to run on one worker
        self.live: dict[int, Handoff] = {}
        self.fabric = fabric
        self._cluster = cluster
        self._workload = workload
        self._columns = columns
        self._destination_first = destination_first
        self._kv_bytes_per_token = kv_bytes_per_token
        self._sends_missing_only = sends_missing_only
        self._docks: dict[int, Dock] = {}

    def refusal(self, routed: RoutedRequest) -> str:
        """Why a request can never be served by both pools; "" if it can."""
        tokens = routed.input_tokens
        reason = self.prefill.front.refusal_at_submission(tokens, 0)
        if reason:
            return f"workers that prefill: {reason}"
        reason = self.decode.front.refusal_at_submission(tokens, routed.output_tokens)
        return f"workers that decode: {reason}" if reason else ""

    def begin(
        self,
        routed: RoutedRequest,
        output_tokens: int,
        arrival_ms: float,
        now_ms: float,
        lost: EngineRequest | None = None,
    ) -> None:
        """A request that both pools can serve arrives, or starts anew; it is handed over, unless it bypasses that."""
        worker = self.bypass.place(routed, now_ms, self._workload) if self.bypass is not None else None
        if worker is None:
            self.start(routed, output_tokens, arrival_ms, now_ms, lost)
            return
        request = worker.engine.scheduler.request_type(
            routed.number, routed.content, routed.input_tokens, output_tokens, arrival_ms
        )
        if lost is not None:
            request.carry_over(lost)
        self._columns.forget(routed.number)
        self._columns.prefill_worker[routed.number] = worker.index
        self._cluster.live[routed.number] = request
        self._cluster.submit(worker, request, now_ms)

    def start(
        self,
        routed: RoutedRequest,
        output_tokens: int,
        arrival_ms: float,
        now_ms: float,
        lost: EngineRequest | None = None,
    ) -> None:
        """Hand a request over that has output to generate, and neither pool refuses."""
        handoff = Handoff(self, routed, output_tokens, arrival_ms, lost)
        self._columns.released_ms[routed.number] = NAN
        self.live[routed.number] = handoff
        if self._destination_first:
            self._make_source(handoff)
            self._reserve(handoff, now_ms)
        else:
            self._prefill(handoff, now_ms)

    def take(self, worker: Worker, request: EngineRequest, now_ms: float) -> bool:
        """A request has finished at an engine; whether that was only the first half of a hand-off."""
        handoff = self.live.get(request.number)
        if handoff is None or request is not handoff.source:
            if self._is_source(worker):
                self._let_go(worker, request, now_ms)
            return False
        if request.cancelled_ms <= now_ms or request.failure:
            self._forget_target(handoff, now_ms)
            self.live.pop(request.number).write(self._columns)
            self._let_go(worker, request, now_ms)
            return False
        self.hold(handoff, now_ms)
        if handoff.is_reserved:
            self._send(handoff, now_ms)
        else:
            self._reserve(handoff, now_ms)
        return True

    def hold(self, handoff: Handoff, now_ms: float) -> None:
        """The prompt is computed."""
        handoff.stage = Stage.HELD
        handoff.is_held = True
        handoff.held_ms = now_ms

    def keep(self, request: EngineRequest, now_ms: float) -> bool:
        """The same when the simulation has stopped: nothing follows."""
        handoff = self.live.get(request.number)
        if handoff is None or request is not handoff.source or request.cancelled_ms <= now_ms or request.failure:
            return False
        self.hold(handoff, now_ms)
        return True

    def ended(self, request: EngineRequest) -> None:
        """A request has ended at its destination."""
        handoff = self.live.pop(request.number, None)
        if handoff is not None:
            handoff.write(self._columns)

    def give_up(self, number: int, now_ms: float) -> bool:
        """The client of a request gives up; whether it was at no engine, so that nothing more is to be done."""
        handoff = self.live.get(number)
        if handoff is None or handoff.stage in (Stage.PREFILLING, Stage.ACTIVE):
            return False
        source = handoff.source
        assert source is not None
        source.cancelled_ms = now_ms
        self._cluster.close_handoff(source, self._abandon(handoff, now_ms), now_ms)
        return True

    def fail(self, handoff: Handoff, now_ms: float, reason: str) -> None:
        """A hand-off ends that is at no engine."""
        source = handoff.source
        assert source is not None
        self._abandon(handoff, now_ms)
        self._cluster.fail(source, now_ms, reason)

    def pass_ended(self, worker: Worker, now_ms: float) -> None:
        """A worker is between two passes, and may do what waited for that."""
        dock = self._docks.get(worker.index)
        if dock is None:
            return
        scheduler = cast(HalfScheduler, worker.engine.scheduler)
        if not scheduler.is_ahead:
            self._work_off(worker, dock, now_ms)
            return
        is_due = bool(dock.releases or dock.cancellations or dock.activations)
        if not is_due and dock.pending:
            is_due = scheduler.is_freeing or dock.has_use_for(cast(DestinationScheduler, scheduler))
        if is_due:
            scheduler.await_decision(partial(self._work_off, worker, dock, now_ms))

    def _work_off(self, worker: Worker, dock: Dock, now_ms: float) -> None:
        """Do what has waited for a worker."""
        dock.is_open = True
        releases, cancellations, activations = dock.releases, dock.cancellations, dock.activations
        dock.releases = []
        dock.cancellations = []
        dock.activations = []
        for request in releases:
            self._release(worker, request, now_ms)
        for request in cancellations:
            self._cancel(worker, request)
        for handoff in activations:
            self._activate(handoff, now_ms)
        if dock.pending:
            self._grant(worker, dock, now_ms)
        dock.is_open = False

    def _may_act(self, worker: Worker, now_ms: float) -> bool:
        """Whether something can be done to a worker now, and not at the end of the pass in flight."""
        if not self._cluster.reach_boundary(worker, now_ms):
            return False
        scheduler = cast(HalfScheduler, worker.engine.scheduler)
        dock = self._dock(worker)
        if dock.is_open or not scheduler.is_ahead:
            return True
        scheduler.await_decision(partial(self._work_off, worker, dock, now_ms))
        return False

    def worker_lost(self, worker: Worker, now_ms: float) -> list[EngineRequest]:
        """A worker has crashed. Returns the requests that have lost their KV with it, accounted for up to now.

        Those whose prompts another worker holds, or computes, ask for room elsewhere.
        """
        self._docks.pop(worker.index, None)
        lost: list[EngineRequest] = []
        moved: list[Handoff] = []
        for handoff in list(self.live.values()):
            if handoff.stage is Stage.ACTIVE:
                if handoff.target_worker is worker and handoff.target is not None:
                    lost.append(handoff.target)
                    self.live.pop(handoff.routed.number).write(self._columns)
            elif handoff.source_worker is worker and handoff.source is not None:
                lost.append(handoff.source)
                if handoff.is_held:
                    handoff.source.note_transfer(now_ms)
                self._forget_target(handoff, now_ms)
                self.live.pop(handoff.routed.number).write(self._columns)
            elif handoff.target_worker is worker:
                moved.append(handoff)
        for handoff in moved:
            if worker.feed is not None:
                worker.feed.ended(handoff.routed.number, now_ms)
            if handoff.shipment is not None:
                self.fabric.cancel(handoff.shipment, now_ms)
                handoff.shipment = None
            handoff.target = None
            handoff.target_worker = None
            handoff.is_reserved = False
            handoff.reserved_ms = NAN
            if handoff.stage is Stage.SENT:
                handoff.stage = Stage.HELD
            if handoff.stage is not Stage.PREFILLING:
                self._reserve(handoff, now_ms)
        return lost

    def finish(self, now_ms: float) -> list[tuple[EngineRequest, Worker | None]]:
        """The simulation stops: the requests that are at no engine, accounted for up to now, and where they are."""
        found: list[tuple[EngineRequest, Worker | None]] = []
        for handoff in list(self.live.values()):
            if handoff.stage in (Stage.WAITING, Stage.HELD, Stage.SENT):
                source = handoff.source
                assert source is not None
                worker = handoff.source_worker or handoff.target_worker
                handoff.account(source, now_ms)
                found.append((source, worker))
            handoff.write(self._columns)
        return found

    # --- the source

    def _make_source(self, handoff: Handoff) -> EngineRequest:
        routed = handoff.routed
        request = self.prefill.front.request_type(
            routed.number, routed.content, routed.input_tokens, 0, handoff.arrival_ms
        )
        if handoff.lost is not None:
            request.carry_over(handoff.lost)
        request.priority = self._workload.priorities.get(routed.number, 0)
        handoff.source = request
        self._cluster.live[routed.number] = request
        return request

    def resume(self, handoff: Handoff, now_ms: float) -> None:
        """A hand-off goes on that waited for a worker."""
        if handoff.is_held or (self._destination_first and not handoff.is_reserved):
            self._reserve(handoff, now_ms)
        else:
            self._prefill(handoff, now_ms)

    def _prefill(self, handoff: Handoff, now_ms: float) -> None:
        if not self.prefill.routable:
            if handoff.source is None:
                self._make_source(handoff)
            self.prefill.parked.append(handoff)
            return
        worker = self.prefill.place(handoff.routed, now_ms, self._workload)
        assert worker is not None  # a router that keeps requests is refused before
        request = handoff.source or self._make_source(handoff)
        handoff.source_worker = worker
        handoff.stage = Stage.PREFILLING
        self._cluster.submit(worker, request, now_ms)

    def _leave_source(self, handoff: Handoff, now_ms: float) -> None:
        """The KV at the source is needed no more."""
        worker = handoff.source_worker
        assert worker is not None
        worker.num_requests -= 1
        if worker.feed is not None:
            worker.feed.ended(handoff.routed.number, now_ms)
        self._cluster.left(worker, now_ms)
        handoff.is_held = False
        source = handoff.source
        assert source is not None
        if self._may_act(worker, now_ms):
            self._release(worker, source, now_ms)
            self._cluster.wake(worker)
        else:
            self._dock(worker).releases.append(source)

    def _let_go(self, worker: Worker, request: EngineRequest, now_ms: float) -> None:
        """A pass of a source has ended, and with it a request that nobody takes over."""
        if cast(SourceScheduler, worker.engine.scheduler).is_ahead:
            self._dock(worker).releases.append(request)
        else:
            self._release(worker, request, now_ms)

    def _release(self, worker: Worker, request: EngineRequest, now_ms: float) -> None:
        """Give up what a source holds for a request, if anything."""
        scheduler = cast(SourceScheduler, worker.engine.scheduler)
        if request.number in scheduler.held:
            scheduler.release(request)
            self._columns.released_ms[request.number] = now_ms

    def _is_source(self, worker: Worker) -> bool:
        workers = self.prefill.workers
        return worker.number < len(workers) and workers[worker.number] is worker

    # --- the destination

    def _reserve(self, handoff: Handoff, now_ms: float) -> None:
        if not self.decode.routable:
            self.decode.parked.append(handoff)
            return
        worker = self.decode.place(handoff.routed, now_ms, self._workload)
        assert worker is not None
        routed = handoff.routed
        request_type = worker.engine.scheduler.request_type
        handoff.target_worker = worker
        handoff.target = request_type(
            routed.number, routed.content, routed.input_tokens, handoff.output_tokens, handoff.arrival_ms
        )
        handoff.target.priority = self._workload.priorities.get(routed.number, 0)
        worker.num_requests += 1
        dock = self._dock(worker)
        dock.pending.append(handoff)
        if len(dock.pending) > 1:
            return  # behind one that did not fit, or that waits for the same pass to end
        if self._may_act(worker, now_ms) and dock.pending:
            self._grant(worker, dock, now_ms)
            self._cluster.wake(worker)

    def _grant(self, worker: Worker, dock: Dock, now_ms: float) -> None:
        """Reserve room for those that wait for it, in their order, as far as there is any."""
        scheduler = cast(DestinationScheduler, worker.engine.scheduler)
        if not dock.has_use_for(scheduler):
            return
        granted: list[Handoff] = []
        while dock.pending:
            handoff = dock.pending[0]
            assert handoff.target is not None
            missing = scheduler.reserve(handoff.target)
            if missing == NO_ROOM:
                break
            dock.pending.popleft()
            handoff.missing_tokens = missing
            handoff.is_reserved = True
            handoff.reserved_ms = now_ms
            granted.append(handoff)
        dock.tried = None
        if dock.pending:
            dock.tried = (scheduler.pool.free_blocks, scheduler.num_running, scheduler.num_waiting)
        scheduler.bars_fresh = bool(dock.pending)
        self._publish(worker, now_ms)
        for handoff in granted:
            if handoff.is_held:
                self._send(handoff, now_ms)
            else:
                self._prefill(handoff, now_ms)

    def _send(self, handoff: Handoff, now_ms: float) -> None:
        source, target = handoff.source_worker, handoff.target_worker
        assert source is not None
        assert target is not None
        tokens = handoff.missing_tokens if self._sends_missing_only else handoff.routed.input_tokens
        size_bytes = tokens * self._kv_bytes_per_token
        handoff.shipment = self.fabric.ship(handoff, source.index, target.index, size_bytes, now_ms)
        if handoff.shipment is None:
            self.sent(handoff, now_ms)

    def sent(self, handoff: Handoff, now_ms: float) -> None:
        """The KV is at the destination."""
        worker = handoff.target_worker
        assert worker is not None
        handoff.shipment = None
        handoff.stage = Stage.SENT
        if self._may_act(worker, now_ms):
            self._activate(handoff, now_ms)
            self._cluster.wake(worker)
        else:
            self._dock(worker).activations.append(handoff)

    def _activate(self, handoff: Handoff, now_ms: float) -> None:
        worker, source, target = handoff.target_worker, handoff.source, handoff.target
        assert worker is not None
        assert source is not None
        assert target is not None
        handoff.stage = Stage.ACTIVE
        handoff.activated_ms = now_ms
        handoff.account(source, now_ms)
        handoff.carry_over(source, target)
        target.home = worker.index
        self._cluster.live[target.number] = target
        cast(DestinationScheduler, worker.engine.scheduler).activate(target)
        self._publish(worker, now_ms)
        self._leave_source(handoff, now_ms)

    def _forget_target(self, handoff: Handoff, now_ms: float) -> None:
        """The request will not come to its destination."""
        worker, target = handoff.target_worker, handoff.target
        if worker is None or target is None:
            return
        worker.num_requests -= 1
        if worker.feed is not None:
            worker.feed.ended(handoff.routed.number, now_ms)
        self._cluster.left(worker, now_ms)
        dock = self._dock(worker)
        if handoff in dock.pending:
            was_first = dock.pending[0] is handoff
            dock.pending.remove(handoff)
            if was_first:
                dock.tried = None
                cast(DestinationScheduler, worker.engine.scheduler).bars_fresh = bool(dock.pending)
                if self._may_act(worker, now_ms):
                    self._grant(worker, dock, now_ms)
                    self._cluster.wake(worker)
            return
        if handoff in dock.activations:
            dock.activations.remove(handoff)
        if handoff.shipment is not None:
            self.fabric.cancel(handoff.shipment, now_ms)
        if handoff.is_reserved:
            if self._may_act(worker, now_ms):
                self._cancel(worker, target)
                if dock.pending:
                    self._grant(worker, dock, now_ms)
                self._cluster.wake(worker)
            else:
                dock.cancellations.append(target)

    def _cancel(self, worker: Worker, request: EngineRequest) -> None:
        cast(DestinationScheduler, worker.engine.scheduler).cancel_reservation(request)

    def _abandon(self, handoff: Handoff, now_ms: float) -> Worker | None:
        """End a hand-off that is at no engine; returns where it was."""
        source = handoff.source
        assert source is not None
        del self.live[source.number]
        handoff.account(source, now_ms)
        self._forget_target(handoff, now_ms)
        worker = handoff.source_worker
        if worker is not None:
            self._leave_source(handoff, now_ms)
        else:
            worker = handoff.target_worker
        handoff.write(self._columns)
        return worker

    def _publish(self, worker: Worker, now_ms: float) -> None:
        """What room for prompts has evicted, and what prompts have brought, is known at once."""
        if worker.feed is not None:
            worker.feed.collect(worker, now_ms)

    def _dock(self, worker: Worker) -> Dock:
        dock = self._docks.get(worker.index)
        if dock is None:
            dock = self._docks[worker.index] = Dock()
        return dock
