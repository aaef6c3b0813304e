"""Engines whose runs verify drafts: what a run costs follows from how far its requests get, pass by pass."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from windtunnel.engine.acceptance import IntArray
from windtunnel.engine.engine import Engine, Scheduler
from windtunnel.engine.rank_engine import SINGLE, RankEngine
from windtunnel.engine.speculative import SpeculativeScheduler
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import FloatArray, TimingModel
from windtunnel.timing.verification import VerifyingShape, price_verifications_ms

accumulate = np.add.accumulate
NOT_TOLD = float("nan")


class Verifying(Protocol):
    """The requests that a run verifies drafts of."""

    size: int


class VerifyingScheduler(Scheduler, Protocol):
    """What these engines need of their scheduler besides; see `SpeculativeScheduler` for the meaning of each."""

    @property
    def num_drafts(self) -> int: ...
    @property
    def verifying(self) -> Verifying: ...
    def contexts(self, passes: int) -> IntArray: ...
    def physical_contexts(self, contexts: IntArray) -> IntArray: ...


def price_run_ms(scheduler: VerifyingScheduler, timing: TimingModel, passes: int) -> FloatArray:
    """Durations in ms of the next passes of a run."""
    contexts = scheduler.contexts(passes)
    physical = scheduler.physical_contexts(contexts) if timing.needs_physical_context else None
    size = scheduler.verifying.size
    return price_verifications_ms(timing, size, size * scheduler.num_drafts, contexts, physical)


class SpeculativeEngine(Engine):
    """An `Engine` whose scheduler speculates."""

    def __init__(
        self, scheduler: VerifyingScheduler, timing: TimingModel, passes: PassColumns, *, passes_ahead: int = 0
    ) -> None:
        super().__init__(scheduler, timing, passes, passes_ahead=passes_ahead)
        self.speculative = scheduler
        self._tells_longest = False  # contexts that drafts reach are told by their sum alone
        self._tells_more = timing.needs_physical_context

    def accept_length(self, now_ms: float) -> float:
        scheduler = self.speculative
        if isinstance(scheduler, SpeculativeScheduler):
            return scheduler.accept_length(self.passes_ended(now_ms))
        return NOT_TOLD

    def _price_run(self, passes: int, now_ms: float) -> None:
        ends = price_run_ms(self.speculative, self.timing, passes)
        ends[0] += now_ms
        accumulate(ends, out=ends)  # a running sum in order, as single passes make it
        self._run_ends = ends
        self.end_ms = ends.item(-1)


class SpeculativeRankEngine(RankEngine):
    """A `RankEngine` whose scheduler speculates."""

    def __init__(self, scheduler: SpeculativeScheduler, timing: TimingModel, passes: PassColumns) -> None:
        super().__init__(scheduler, timing, passes)
        self.speculative = scheduler
        self._tells_longest = False
        self._tells_more = timing.needs_physical_context

    def accept_length(self, now_ms: float) -> float:
        return self.speculative.accept_length(self.passes_ended(now_ms))

    def offered_tokens(self, offered: int) -> tuple[int, bool]:
        if offered != SINGLE:
            return self.speculative.verifying.size * (1 + self.speculative.num_drafts), False
        tokens, has_prompts = super().offered_tokens(offered)
        if isinstance(self._shape, VerifyingShape):
            tokens += self._shape.draft_tokens
        return tokens, has_prompts

    def price(self, offered: int, passes: int, group_tokens: int) -> FloatArray:
        if offered == SINGLE:
            return super().price(offered, passes, group_tokens)
        if not group_tokens:
            return price_run_ms(self.speculative, self.timing, passes)
        scheduler = self.speculative
        contexts = scheduler.contexts(1)
        shape = VerifyingShape()
        size = scheduler.verifying.size
        shape.add_verifications(size, contexts.item(0), size * scheduler.num_drafts)
        shape.group_tokens = group_tokens
        if self.timing.needs_physical_context:
            shape.physical_context_tokens = scheduler.physical_contexts(contexts).item(0)
        return np.array((self.timing.price_pass_ms(shape),))
