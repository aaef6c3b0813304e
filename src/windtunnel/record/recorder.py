"""Writes a request's columns once, when it has reached its terminal state."""

from __future__ import annotations

from array import array
from typing import Protocol

from windtunnel.record.columns import Record, Status


class EndedRequest(Protocol):
    """What an engine knows of a request that has ended; see `RequestColumns` for the meaning."""

    number: int
    arrival_ms: float
    first_admit_ms: float
    hit_tokens: int
    reused_tokens: int
    preemptions: int
    first_pass: int
    last_pass: int
    break_before: array[int]
    break_after: array[int]
    burst_extra: array[int]
    queued_ms: float
    prefill_ms: float
    stalled_ms: float
    preempted_ms: float
    transfer_ms: float
    decode_ms: float


class Recorder:
    """Fills a `Record`."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def rejected(self, number: int, worker: int, arrival_ms: float, now_ms: float, reason: str) -> None:
        """A request was refused by a worker when it was submitted."""
        columns = self.record.requests
        columns.status[number] = Status.REJECTED
        columns.worker[number] = worker
        columns.arrival_ms[number] = arrival_ms
        columns.terminal_ms[number] = now_ms
        columns.reasons[number] = reason

    def never_sent(self, number: int, now_ms: float, reason: str) -> None:
        """A request will not be sent, because one that it waits for did not complete."""
        columns = self.record.requests
        columns.status[number] = Status.CANCELLED
        columns.terminal_ms[number] = now_ms
        columns.reasons[number] = reason

    def ended(self, request: EndedRequest, worker: int, status: Status, terminal_ms: float, reason: str = "") -> int:
        """A request left the engine of a worker, or the simulation stopped with it there; returns its output tokens."""
        columns = self.record.requests
        tokens = 0
        number = request.number
        columns.status[number] = status
        columns.worker[number] = worker
        columns.arrival_ms[number] = request.arrival_ms
        columns.first_admit_ms[number] = request.first_admit_ms
        columns.terminal_ms[number] = terminal_ms
        first = request.first_pass
        last = request.last_pass
        if first >= 0:
            ends = self.record.passes[worker].end_ms
            columns.first_pass[number] = first
            columns.last_pass[number] = last
            columns.first_token_ms[number] = ends[first]
            columns.last_token_ms[number] = ends[last]
            tokens = last - first + 1
            before = request.break_before
            if before:
                after = request.break_after
                columns.break_request.extend(array("q", (number,)) * len(before))
                columns.break_before.extend(before)
                columns.break_after.extend(after)
                tokens -= sum(after) - sum(before) - len(before)
            if request.burst_extra:
                columns.burst_request.append(number)
                columns.burst_passes.append(len(request.burst_extra))
                columns.burst_extra.extend(request.burst_extra)
                columns.extra_tokens[number] = extra = sum(request.burst_extra)
                tokens += extra
            columns.output_tokens[number] = tokens
        if request.reused_tokens:
            columns.hit_tokens[number] = request.hit_tokens
            columns.reused_tokens[number] = request.reused_tokens
        if request.preempted_ms or request.preemptions:
            columns.preemptions[number] = request.preemptions
            columns.preempted_ms[number] = request.preempted_ms
        if request.transfer_ms:
            columns.transfer_ms[number] = request.transfer_ms
        columns.queued_ms[number] = request.queued_ms
        columns.prefill_ms[number] = request.prefill_ms
        columns.stalled_ms[number] = request.stalled_ms
        columns.decode_ms[number] = request.decode_ms
        if reason:
            columns.reasons[number] = reason
        return tokens
