"""Which blocks of a prompt can be brought back to GPU memory: a pure function of what tiers hold.

A plan is the longest run of blocks that the tiers have and that the host can hold all at once, what others have pinned
there aside (targets.md, finding 10). It changes nothing; what becomes of a plan is decided in kv/offload.py.
"""

from __future__ import annotations

from windtunnel.engine.kv.haulage import Errand
from windtunnel.engine.kv.level import Level
from windtunnel.engine.kv.tier import BlockState
from windtunnel.workload.content import Content

Piece = tuple[int, int, int]  # blocks [first, end) of a sequence that level number so-and-so has


class Plan:
    """Which prefix can be restored, and what stands in the way of more.

    Attributes:
        pieces: what it consists of, in order.
        end: its last block, exclusive.
        fillers: whose blocks would be part of it.
        is_short: the host has no room for the rest.
    """

    __slots__ = ("end", "fillers", "is_short", "pieces")

    def __init__(self, first: int) -> None:
        self.pieces: list[Piece] = []
        self.end = first
        self.fillers: list[Errand] = []
        self.is_short = False


def plan_restore(levels: list[Level], content: Content, first: int, limit: int) -> Plan:
    """The longest run of blocks from `first` on that the levels have and the host can hold all at once.

    Blocks that are filling are taken to be there.
    """
    plan = Plan(first)
    tier = levels[0].tier
    room = tier.free_blocks + tier.idle_blocks
    lacks = False
    for stretch in tier.stretches(content, first, limit):
        at, end = stretch.first, stretch.end
        if stretch.state == BlockState.FILLING:
            assert stretch.filler is not None
            if stretch.filler not in plan.fillers:
                plan.fillers.append(stretch.filler)
            plan.end = end
            continue
        if stretch.state == BlockState.RESIDENT:
            if stretch.idle:  # it could have made room
                if lacks and end - at > room:
                    end = at + room
                    plan.is_short = True
                room -= end - at
            if end > at:
                plan.pieces.append((at, end, 0))
                plan.end = end
            if plan.is_short:
                return plan
            continue
        while at < end:
            number = 1
            stop = at
            while number < len(levels):
                stop = levels[number].tier.resident_until(content, at, end)
                if stop > at:
                    break
                number += 1
            if stop == at:
                return plan
            lacks = True
            if stop - at > room:
                stop = at + room
                plan.is_short = True
            room -= stop - at
            if stop > at:
                plan.pieces.append((at, stop, number))
                plan.end = at = stop
            if plan.is_short:
                return plan
    return plan


def plan_without_fillers(levels: list[Level], content: Content, first: int, limit: int) -> Plan:
    """The plan up to the first block that is filling."""
    for stretch in levels[0].tier.stretches(content, first, limit):
        if stretch.state == BlockState.FILLING:
            limit = stretch.first
            break
    return plan_restore(levels, content, first, limit)
