"""One rank of a data-parallel group: an engine whose passes end when those of the slowest rank do.

Attention-data-parallel ranks have a scheduler and a KV cache each, but their passes meet at every layer of experts. A
rank without work waits with the others. The rank decides what its scheduler decides and what its own part of a pass
costs; when passes begin and end is decided for the whole group, by its owner (cluster/rank_group.py).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from windtunnel.engine.engine import INFINITE, MAX_PLANNED_PASSES, Engine, Scheduler
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import FloatArray, PassShape, TimingModel

IDLE = -1  # what a rank offers that has nothing to run
SINGLE = 0  # ... that has scheduled a pass of its own


class Barrier(Protocol):
    """The owner of a group."""

    def cut(self, now_ms: float) -> float:
        """End a run with the pass in flight now; returns when that ends, infinite if nothing is."""
        ...


class RankEngine(Engine):
    """One scheduler on the clock of its group.

    `end_ms` is that of the group also while this rank has nothing in flight. A group calls `offer` on each rank, then
    `price` on those that offered anything, then `fix` or `wait`, and `end` or `end_wait` at the time they were given.

    Attributes:
        barrier: the group.
        is_waiting: the group has something in flight, and this rank has not.
    """

    barrier: Barrier

    def __init__(self, scheduler: Scheduler, timing: TimingModel, passes: PassColumns) -> None:
        super().__init__(scheduler, timing, passes)
        self.is_waiting = False
        self._shape: PassShape | None = None

    def submit(self, request: EngineRequest, now_ms: float) -> float:
        self.scheduler.submit(request)
        if self.end_ms != INFINITE and (self.is_waiting or (self._planned and self.scheduler.may_admit())):
            return self.barrier.cut(now_ms)
        return self.end_ms

    def cancel(self, request: EngineRequest, now_ms: float) -> float:
        request.cancelled_ms = now_ms
        if self.end_ms == INFINITE:
            self.scheduler.abort(request, now_ms)
            return now_ms
        self._leaving.append(request)
        return self.barrier.cut(now_ms)

    def offer(self, now_ms: float) -> int:
        """What it would run next: that many passes of decodes, of which fewer will do, `SINGLE` or `IDLE`."""
        passes = self.scheduler.decode_passes()
        if passes:
            if self.publishes_singly:
                passes = self._before_eviction(passes)
            return min(passes, MAX_PLANNED_PASSES)
        self._shape = self.scheduler.schedule(now_ms)
        return IDLE if self._shape is None else SINGLE

    def offered_tokens(self, offered: int) -> tuple[int, bool]:
        """Tokens of one pass of what it offered, and whether any are of a prompt."""
        shape = self._shape
        if offered == SINGLE:
            assert shape is not None
            return shape.num_decodes + sum(shape.chunk_tokens), bool(shape.chunk_tokens)
        return self.scheduler.group.size, False

    def price(self, offered: int, passes: int, group_tokens: int) -> FloatArray:
        """Durations in ms of the `passes` passes that the group runs, where this rank offered so many or `SINGLE`.

        Args:
            group_tokens: see `PassShape`.
        """
        shape = self._shape
        if offered == SINGLE:
            assert shape is not None
            self._shape = None
            shape.group_tokens = group_tokens
            if self._tells_more:
                self._tell(shape)
            return np.array((self.timing.price_pass_ms(shape),))
        group = self.scheduler.group
        if group_tokens:
            shape = PassShape(group.size, group.context_tokens)
            shape.group_tokens = group_tokens
            if self._tells_more:
                self._tell(shape)
                if self.timing.needs_physical_context:
                    shape.physical_context_tokens += group.size
            return np.array((self.timing.price_pass_ms(shape),))
        if self._tells_more:
            return self._price_telling(passes)
        if passes == 1:
            return np.array((self.timing.price_pass_ms(PassShape(group.size, group.context_tokens)),))
        return self.timing.price_run_ms(group.size, group.context_tokens, -1, passes)

    def fix(self, offered: int, start_ms: float, run_ends: FloatArray) -> None:
        """What it offered is in flight; its passes end at these times."""
        self._planned = 0 if offered == SINGLE else len(run_ends)
        self._start_ms = start_ms
        self._run_ends = run_ends
        self.end_ms = run_ends.item(-1)

    def wait(self, until_ms: float) -> None:
        """The others have something in flight."""
        self.is_waiting = True
        self.end_ms = until_ms

    def shorten(self, now_ms: float) -> float:
        """Its part of the group's cut."""
        return super().cut(now_ms)

    def cut(self, now_ms: float) -> float:
        return self.barrier.cut(now_ms)

    def end_wait(self) -> list[EngineRequest]:
        """The group's passes have ended; returns the requests whose clients gave up meanwhile."""
        now_ms = self.end_ms
        self.is_waiting = False
        self.end_ms = INFINITE
        left = self._leaving
        self._leaving = []
        for request in left:
            self.scheduler.abort(request, now_ms)
        return left

    def halt(self, now_ms: float) -> tuple[list[EngineRequest], list[EngineRequest]]:
        if self.is_waiting:
            self.is_waiting = False
            self.end_ms = INFINITE
        return super().halt(now_ms)
