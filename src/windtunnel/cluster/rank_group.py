"""A data-parallel group: ranks with a scheduler and a KV cache each, whose passes begin and end together.

A pass of the group begins when none of its ranks is in one and at least one has work, and ends when the slowest rank
is done; tokens and freed blocks of every rank exist from then on. Who arrives meanwhile, at an idle rank too, waits for
that. A run of decodes is one for the group, as long as every rank that has work only decodes: a pass of it costs what
it costs the slowest rank. Source: how the Dynamo mocker groups attention-DP ranks (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windtunnel.engine.rank_engine import IDLE, RankEngine
from windtunnel.engine.request import EngineRequest
from windtunnel.timing.base import FloatArray

INFINITE = float("inf")
accumulate = np.add.accumulate


class RankGroup:
    """The ranks of one worker; a `PassUnit`.

    Attributes:
        ranks: in the order of their numbers.
        end_ms: when what is in flight ends; infinite when idle.
    """

    def __init__(self, ranks: Sequence[RankEngine]) -> None:
        self.ranks = tuple(ranks)
        self.end_ms = INFINITE
        for rank in ranks:
            rank.barrier = self

    def begin(self, now_ms: float) -> float:
        """Start a pass of the group, or a run of decodes; returns when it ends, infinite if no rank has work."""
        offers = [rank.offer(now_ms) for rank in self.ranks]
        at_work = [(rank, offered) for rank, offered in zip(self.ranks, offers, strict=True) if offered != IDLE]
        if not at_work:
            return INFINITE
        passes = max(min(offered for _, offered in at_work), 1)
        tokens = 0
        if passes == 1:
            told = [rank.offered_tokens(offered) for rank, offered in at_work]
            if any(has_prompts for _, has_prompts in told):
                tokens = sum(count for count, _ in told)
        ends: FloatArray = np.zeros(passes)
        for rank, offered in at_work:
            np.maximum(ends, rank.price(offered, passes, tokens), out=ends)
        ends[0] += now_ms
        accumulate(ends, out=ends)  # in order, as single passes do
        self.end_ms = end_ms = ends.item(-1)
        for rank, offered in zip(self.ranks, offers, strict=True):
            if offered == IDLE:
                rank.wait(end_ms)
            else:
                rank.fix(offered, now_ms, ends)
        return end_ms

    def cut(self, now_ms: float) -> float:
        """End a run with the pass in flight now, on every rank."""
        if self.end_ms == INFINITE:
            return INFINITE
        for rank in self.ranks:
            if not rank.is_waiting:
                self.end_ms = rank.shorten(now_ms)
        for rank in self.ranks:
            if rank.is_waiting:
                rank.end_ms = self.end_ms
        return self.end_ms

    def end(self) -> list[EngineRequest]:
        """What is in flight has ended. Returns the requests that left, rank by rank."""
        self.end_ms = INFINITE
        finished: list[EngineRequest] = []
        for rank in self.ranks:
            finished += rank.end_wait() if rank.is_waiting else rank.end()
        return finished
