"""What happened, in append-only columns: the only thing that reports are made from.

Times of single tokens are never stored. A request knows the numbers of the passes that emitted its first and
last token on its engine; the token times in between are a slice of that engine's column of pass ends, except
across the few `breaks` in which it emitted nothing for one or more passes.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

from windtunnel.disk_columns import filled, give_back
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.overhead import Overhead

NAN = float("nan")


class Status(IntEnum):
    """Terminal states of a request; every request of a workload ends in exactly one."""

    NOT_ARRIVED = 0
    UNFINISHED = 1
    COMPLETED = 2
    REJECTED = 3
    CANCELLED = 4
    FAILED = 5

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name.lower()


class RequestColumns:
    """One entry a request, in workload order. Times are virtual ms; NaN and -1 mean "never".

    Attributes:
        status: a `Status`.
        arrival_ms: when the request was sent.
        worker: number of the worker that served it.
        first_admit_ms: start of the pass that first scheduled it.
        first_token_ms, last_token_ms: ends of the passes that emitted these tokens.
        terminal_ms: when it reached its status (a completion without output ends with its prefill).
        output_tokens: tokens emitted.
        hit_tokens: prompt tokens found in the prefix cache at the first admission.
        reused_tokens: the largest such number over all admissions.
        preemptions: times it was preempted.
        first_pass, last_pass: pass numbers, on its engine, of its first and last token.
        queued_ms, prefill_ms, stalled_ms, preempted_ms, transfer_ms, decode_ms: where its time went. They add up to
            terminal_ms - arrival_ms. `prefill_ms` is spent in passes that compute its prompt, `stalled_ms` in
            passes that leave it out, `preempted_ms` from a preemption to the end of the pass that has
            recovered what was lost, `transfer_ms` waiting for KV that is on its way, or for room where it shall go.
        reasons: why it was rejected, cancelled or failed, by request number.
        extra_tokens: tokens beyond the first of each pass that emitted several (speculation).
        burst_request, burst_passes: one entry a request that speculates and has output: how many passes emitted any.
        burst_extra: the tokens beyond one of each of these passes, in order, request after request.
        break_request, break_before, break_after: one entry a break: the request emitted nothing between the
            passes `break_before` and `break_after`.
    """

    def __init__(self, num_requests: int) -> None:
        self.num_requests = num_requests
        self.status = bytearray(num_requests)
        self.arrival_ms: array[float] = filled("d", NAN, num_requests)
        self.worker: array[int] = filled("q", -1, num_requests)
        self.first_admit_ms: array[float] = filled("d", NAN, num_requests)
        self.first_token_ms: array[float] = filled("d", NAN, num_requests)
        self.last_token_ms: array[float] = filled("d", NAN, num_requests)
        self.terminal_ms: array[float] = filled("d", NAN, num_requests)
        self.output_tokens: array[int] = filled("q", 0, num_requests)
        self.hit_tokens: array[int] = filled("q", 0, num_requests)
        self.reused_tokens: array[int] = filled("q", 0, num_requests)
        self.preemptions: array[int] = filled("q", 0, num_requests)
        self.first_pass: array[int] = filled("q", -1, num_requests)
        self.last_pass: array[int] = filled("q", -1, num_requests)
        self.queued_ms: array[float] = filled("d", 0.0, num_requests)
        self.prefill_ms: array[float] = filled("d", 0.0, num_requests)
        self.stalled_ms: array[float] = filled("d", 0.0, num_requests)
        self.preempted_ms: array[float] = filled("d", 0.0, num_requests)
        self.transfer_ms: array[float] = filled("d", 0.0, num_requests)
        self.decode_ms: array[float] = filled("d", 0.0, num_requests)
        self.extra_tokens: array[int] = filled("q", 0, num_requests)
        self.reasons: dict[int, str] = {}
        self.burst_request = array("q")
        self.burst_passes = array("q")
        self.burst_extra = array("H")
        self.break_request = array("q")
        self.break_before = array("q")
        self.break_after = array("q")


class HandoffColumns:
    """One entry a request, in workload order, of requests that prefill and decode on different workers; as above.

    Attributes:
        prefill_worker: index, among all workers, of the one that computed the prompt; `worker` is the one that decodes,
            which may be the same.
        source_held_ms: when the prompt was computed and its KV held.
        reserved_ms: when there was room for it at its destination.
        activated_ms: when it had arrived there and could be scheduled.
        decode_admit_ms: start of the first pass there that computed it.
        released_ms: when its source gave up the KV.
        missing_tokens: tokens, in whole blocks, that the destination did not have in its cache.
    """

    def __init__(self, num_requests: int) -> None:
        self.prefill_worker = array("q", [-1]) * num_requests
        self.source_held_ms = array("d", [NAN]) * num_requests
        self.reserved_ms = array("d", [NAN]) * num_requests
        self.activated_ms = array("d", [NAN]) * num_requests
        self.decode_admit_ms = array("d", [NAN]) * num_requests
        self.released_ms = array("d", [NAN]) * num_requests
        self.missing_tokens = array("q", [0]) * num_requests

    def forget(self, number: int) -> None:
        """An attempt that was handed over came to nothing, and the next one is not."""
        for column in (
            self.source_held_ms,
            self.reserved_ms,
            self.activated_ms,
            self.decode_admit_ms,
            self.released_ms,
        ):
            column[number] = NAN
        self.missing_tokens[number] = 0


class PassColumns:
    """The forward passes of one engine, in order.

    Attributes:
        end_ms: when each pass ended.
        idle_pass, idle_until_ms: passes that did not start where the one before ended, and their start.
        decode_runs: decode runs committed; passes_in_runs: the passes inside them.
        single_passes: passes scheduled one at a time; cuts: runs that were shortened by an arrival.
    """

    def __init__(self) -> None:
        self.end_ms = array("d")
        self.idle_pass = array("q")
        self.idle_until_ms = array("d")
        self.decode_runs = 0
        self.passes_in_runs = 0
        self.single_passes = 0
        self.cuts = 0


class TierCounts:
    """What went through one memory tier behind the KV caches, all of its copies together.

    Attributes:
        name: "host", "disk" or "object_store".
        hit_tokens: tokens that restores took from it; stored_tokens: those that were written to it.
        evicted_tokens: those that made room; dropped_tokens: those that found no room when they were to be written.
        written_bytes, read_bytes: over its links, as far as transfers completed.
        write_busy_ms, read_busy_ms: time during which bytes flowed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.hit_tokens = 0
        self.stored_tokens = 0
        self.evicted_tokens = 0
        self.dropped_tokens = 0
        self.written_bytes = 0
        self.read_bytes = 0
        self.write_busy_ms = 0.0
        self.read_busy_ms = 0.0


class OffloadCounts:
    """What KV offload did, over all engines.

    Attributes:
        tiers: host memory first.
        lookups: admissions that asked for KV beyond the cache of their engine; lookup_tokens: what they lacked.
        waits: admissions that waited for transfers that others had begun.
        fallbacks: restores that were cut short, or given up, because the host had no room.
        cancelled: requests that gave up while they waited for KV.
        restored_tokens: what each request got back before it was first admitted, by tier; by request number.
    """

    def __init__(self) -> None:
        self.tiers: list[TierCounts] = []
        self.lookups = 0
        self.lookup_tokens = 0
        self.waits = 0
        self.fallbacks = 0
        self.cancelled = 0
        self.restored_tokens: dict[int, list[int]] = {}


class WorkerEvent(NamedTuple):
    """A worker came, went or changed.

    Attributes:
        pool: "" if there is only one; worker: its number there, however many ranks it has.
        event: "starting", "ready", "draining", "removed", "cancelled", "crashed".
        cause: what brought it about.
    """

    time_ms: float
    pool: str
    worker: int
    event: str
    cause: str


class FaultRecord:
    """Something that went wrong.

    Attributes:
        what: "crash", "slow", "link-down", "events-lost", "events-late".
        pool: "" if there is only one; worker: its number there.
        until_ms: when it is over, infinite if never.
        requests: numbers of those that it took; lost_tokens: what they had emitted until then.
        recovery_ms: from then to the end of the last of them; NaN if there are none, or one never ended.
        event_blocks: blocks whose KV events it lost or delayed.
    """

    def __init__(self, time_ms: float, what: str, pool: str, worker: int, until_ms: float) -> None:
        self.time_ms = time_ms
        self.what = what
        self.pool = pool
        self.worker = worker
        self.until_ms = until_ms
        self.requests: list[int] = []
        self.lost_tokens = 0
        self.recovery_ms = NAN
        self.event_blocks = 0

    def as_dict(self) -> dict[str, float | int | str | None]:
        """For reports."""
        return {
            "time_ms": self.time_ms,
            "what": self.what,
            "pool": self.pool,
            "worker": self.worker,
            "until_ms": self.until_ms if self.until_ms < float("inf") else None,
            "requests": len(self.requests),
            "lost_tokens": self.lost_tokens,
            "recovery_ms": self.recovery_ms if self.recovery_ms == self.recovery_ms else None,
            "event_blocks": self.event_blocks,
        }


class Record:
    """Everything a report needs about one simulation.

    Attributes:
        requests: the request columns.
        passes: the pass columns of each worker, by worker number.
        end_ms: virtual time of the last processed event.
        handoffs: the columns of hand-offs, None if workers prefill and decode.
        faults: what went wrong, in the order of time.
        worker_events: workers that came and went after the start, in the order of time.
        worker_numbers: number of each worker in its pool, in the order of `passes`.
        worker_ms, prefill_worker_ms: time integral of the number of provisioned workers, of those that (also) decode
            and of those that only prefill.
        decode_gpus_per_worker, prefill_gpus_per_worker: GPUs of each.
        offload: what KV offload did, None without it.
        speculates: whether requests verify drafts, so that a pass may emit several tokens of one.
        interrupted: why the simulation stopped early ("time cap", "interrupt"), else "".
        timing_range: where the timing model was measured, None if it does not say.
        timing_notes: what a reader should know about it, one line each.
        timing_overhead: what its passes take besides kernels, if it tells that apart.
    """

    def __init__(self, num_requests: int, num_workers: int) -> None:
        self.requests = RequestColumns(num_requests)
        self.passes = [PassColumns() for _ in range(num_workers)]
        self.end_ms = 0.0
        self.handoffs: HandoffColumns | None = None
        self.faults: list[FaultRecord] = []
        self.worker_events: list[WorkerEvent] = []
        self.worker_numbers = list(range(num_workers))
        self.worker_ms = 0.0
        self.prefill_worker_ms = 0.0
        self.decode_gpus_per_worker = 1
        self.prefill_gpus_per_worker = 0
        self.offload: OffloadCounts | None = None
        self.interrupted = ""
        self.timing_range: MeasuredRange | None = None
        self.timing_notes: list[str] = []
        self.timing_overhead: Overhead | None = None
        self.speculates = False

    def give_back(self) -> None:
        """Drop what memory holds of columns that are on disk, as those of very many requests are."""
        for name in dir(self.requests):  # compiled classes have no __dict__
            give_back(getattr(self.requests, name))
