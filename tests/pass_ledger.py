"""What each pass did, and what follows from that for a request: its tokens, and where its time went.

An independent account, straight from the documented definitions, of what the engine keeps with running totals.
Needs single passes (`fast_forward=False`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strategies import Outcome
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import PassColumns


@dataclass
class Page:
    """One pass: by request number, tokens computed before it and in it; who was admitted and preempted at its start."""

    computed: dict[int, tuple[int, int]] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)


class PassLedger:
    """A `PassObserver` that writes a page a pass; `lengths` are prompt and output tokens of the requests seen."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.lengths: dict[int, tuple[int, int]] = {}
        self._page = Page()

    def on_admission(self, request: EngineRequest, hit_tokens: int) -> None:
        self._page.admitted.append(request.number)

    def on_preemption(self, victim: EngineRequest, requester: EngineRequest) -> None:
        self._page.preempted.append(victim.number)

    def on_refusal(self, head: EngineRequest, hit_tokens: int, free_blocks: int) -> None:
        pass

    def on_scheduled(self, rows: list[tuple[EngineRequest, int, int]]) -> None:
        for request, before, tokens in rows:
            self._page.computed[request.number] = (before, tokens)
            self.lengths[request.number] = (request.prompt_tokens, request.max_output_tokens)

    def on_concluded(self) -> None:
        self.pages.append(self._page)
        self._page = Page()

    def starts_ms(self, passes: PassColumns) -> list[float]:
        """When each pass began: where the one before ended, unless the engine idled."""
        starts_ms = [0.0, *passes.end_ms][: len(passes.end_ms)]
        for number, start_ms in zip(passes.idle_pass, passes.idle_until_ms, strict=True):
            starts_ms[number] = start_ms
        return starts_ms


@dataclass
class TimeSpent:
    """See `RequestColumns`."""

    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    stalled_ms: float = 0.0
    preempted_ms: float = 0.0
    decode_ms: float = 0.0


def _ledger_of(outcome: Outcome, number: int) -> tuple[PassLedger, list[tuple[float, float, Page]]]:
    """The ledger of the engine that served a request, and its passes as (start, end, page)."""
    worker = outcome.record.requests.worker[number]
    ledger = outcome.observers[worker]
    assert isinstance(ledger, PassLedger)
    passes = outcome.record.passes[worker]
    assert len(ledger.pages) == len(passes.end_ms)
    return ledger, list(zip(ledger.starts_ms(passes), passes.end_ms, ledger.pages, strict=True))


def admission_ms(outcome: Outcome, number: int) -> float | None:
    """Start of the pass that first computed a request, None if none did."""
    _, passes = _ledger_of(outcome, number)
    return next((start_ms for start_ms, _, page in passes if number in page.computed), None)


def token_times_ms(outcome: Outcome, number: int) -> list[float]:
    """Ends of the passes that computed the last known token of a request, as far as it waited for them."""
    if outcome.record.requests.worker[number] < 0:
        return []
    ledger, passes = _ledger_of(outcome, number)
    prompt_tokens, output_tokens = ledger.lengths.get(number, (0, 0))
    terminal_ms = outcome.record.requests.terminal_ms[number]
    times_ms: list[float] = []
    emitted = 0
    for _, end_ms, page in passes:
        before, tokens = page.computed.get(number, (0, 0))
        if tokens and before + tokens == prompt_tokens + emitted and emitted < output_tokens:
            emitted += 1
            if not end_ms > terminal_ms:  # the client had given up
                times_ms.append(end_ms)
    return times_ms


def spent_by_definition(outcome: Outcome, number: int) -> TimeSpent:
    """Where the time of a request went from its arrival to its end, pass by pass."""
    spent = TimeSpent()
    ledger, passes = _ledger_of(outcome, number)
    prompt_tokens, _ = ledger.lengths.get(number, (0, 0))
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
        for _ in range(page.preempted.count(number)):
            # a token that was emitted has to be computed for the next one, even if it had not been
            lost = max(lost if recovering else 0, prompt_tokens + emitted if emitted else computed)
            recovering = True
        admitted = admitted or number in page.admitted
        if number not in page.computed:
            spend(end_ms, waiting())
            continue
        before, tokens = page.computed[number]
        computed = before + tokens
        if recovering:
            spend(end_ms, "preempted_ms")
            recovering = computed < lost
        else:
            spend(end_ms, "decode_ms" if before >= prompt_tokens else "prefill_ms")
        if computed == prompt_tokens + emitted:
            emitted += 1
    spend(terminal_ms, waiting())
    return spent
