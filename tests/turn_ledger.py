"""What each pass of an SGLang engine did, and what follows from that for a request: its tokens, where its time went.

An independent account, straight from the documented definitions, of what the engine keeps with running totals.
Needs single passes (`fast_forward=False`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pass_ledger import TimeSpent
from strategies import Outcome
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_request import Batch, SglangRequest


@dataclass
class PassPage:
    """One pass: by request number the part of a prompt it computes; who decodes, emits, is retracted as it starts."""

    chunks: dict[int, tuple[int, int]] = field(default_factory=dict)
    decoding: list[int] = field(default_factory=list)
    emitting: set[int] = field(default_factory=set)
    retracted: list[int] = field(default_factory=list)


class TurnLedger:
    """A `TurnObserver` that writes a page a pass, by number."""

    def __init__(self, scheduler: SglangScheduler) -> None:
        self.scheduler = scheduler
        self.pages: dict[int, PassPage] = {}
        self.prompts: dict[int, int] = {}
        self._members: dict[int, list[SglangRequest]] = {}

    def page(self, number: int) -> PassPage:
        return self.pages.setdefault(number, PassPage())

    def on_retraction(self, victim: SglangRequest) -> None:
        # the next pass to be recorded is the one that starts now, whether it is in flight already or launched now
        self.page(len(self.scheduler.passes.end_ms)).retracted.append(victim.number)

    def on_failure(self, request: SglangRequest) -> None:
        pass

    def on_scheduled(self, batch: Batch | None) -> None:
        if batch is None:
            return
        page = self.page(batch.number)
        for chunk in batch.chunks:
            page.chunks[chunk.request.number] = (chunk.start, chunk.end)
            self.prompts[chunk.request.number] = chunk.request.prompt_tokens
        members = list(self.scheduler.running.members.values()) if batch.decodes else []
        page.decoding = [request.number for request in members]
        self._members[batch.number] = members

    def on_result(self, batch: Batch) -> None:
        found = [chunk.request for chunk in batch.chunks if chunk.request is not batch.unfinished]
        found += self._members[batch.number]
        emitting = [r for r in found if not (r.gone or r.retracted) and r.max_output_tokens]
        self.page(batch.number).emitting = {request.number for request in emitting}

    def on_concluded(self) -> None:
        pass


def _passes_of(outcome: Outcome, number: int) -> tuple[TurnLedger, list[tuple[float, float, PassPage]]]:
    """The ledger of the engine that served a request, and its passes as (start, end, page)."""
    worker = outcome.record.requests.worker[number]
    ledger = outcome.observers[worker]
    assert isinstance(ledger, TurnLedger)
    columns = outcome.record.passes[worker]
    starts_ms = [0.0, *columns.end_ms][: len(columns.end_ms)]
    for index, start_ms in zip(columns.idle_pass, columns.idle_until_ms, strict=True):
        starts_ms[index] = start_ms
    pages = [ledger.page(index) for index in range(len(columns.end_ms))]
    return ledger, list(zip(starts_ms, columns.end_ms, pages, strict=True))


def emitted_ms(outcome: Outcome, number: int) -> list[float]:
    """When the tokens of a request reached its client: at the ends of the passes that computed them."""
    if outcome.record.requests.worker[number] < 0:
        return []
    terminal_ms = outcome.record.requests.terminal_ms[number]
    _, passes = _passes_of(outcome, number)
    return [end_ms for _, end_ms, page in passes if number in page.emitting and not end_ms > terminal_ms]


def time_by_definition(outcome: Outcome, number: int) -> TimeSpent:
    """Where the time of a request went from its arrival to its end, pass by pass."""
    spent = TimeSpent()
    ledger, passes = _passes_of(outcome, number)
    prompt_tokens = ledger.prompts.get(number, 0)
    marker_ms = outcome.record.requests.arrival_ms[number]
    terminal_ms = outcome.record.requests.terminal_ms[number]
    admitted = recovering = False
    lost = computed = emitted = 0

    def spend(until_ms: float, part: str) -> None:
        nonlocal marker_ms
        until_ms = min(until_ms, terminal_ms)
        if until_ms > marker_ms:
            setattr(spent, part, getattr(spent, part) + until_ms - marker_ms)
            marker_ms = until_ms

    def waiting() -> str:
        return "queued_ms" if not admitted else "preempted_ms" if recovering else "stalled_ms"

    for start_ms, end_ms, page in passes:
        spend(start_ms, waiting())
        chunk = page.chunks.get(number)
        if chunk is not None:
            admitted = True
            computed = chunk[1]
        if number in page.retracted:  # what this pass computes of it is lost too
            lost = max(lost if recovering else 0, prompt_tokens + emitted if emitted else computed)
            recovering = True
            spend(end_ms, "preempted_ms")
        elif chunk is not None and recovering:
            spend(end_ms, "preempted_ms")
            recovering = computed < lost
        elif chunk is not None:
            spend(end_ms, "prefill_ms")
        elif number in page.decoding:
            spend(end_ms, "decode_ms")
        else:
            spend(end_ms, waiting())
        emitted += number in page.emitting
    spend(terminal_ms, waiting())
    return spent
