"""A tier of stretches holds, pins and evicts exactly what a tier of single blocks does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_strategies import NobodysErrand
from oracle.tier_by_block import TierByBlock
from strategies import fuzz
from windtunnel.engine.kv.tier import Part, Tier, TierNode
from windtunnel.workload.content import Content, Run


def prompt(*runs: Run) -> Content:
    return Content.of(list(runs))


def store(tier: Tier, content: Content, first: int, end: int) -> list[tuple[int, int]]:
    parts = tier.reserve(content, first, end, NobodysErrand(0))
    taken = ranges(parts)
    for part in parts:
        tier.fill(part)
    return taken


def ranges(parts: list[Part]) -> list[tuple[int, int]]:
    """The blocks [first, end) of parts."""
    return [(first, node.depth + node.size) for node, first in parts]


def resident(tier: Tier, content: Content, blocks: int) -> list[int]:
    """The places of the resident blocks among the first `blocks`."""
    return [
        at
        for stretch in tier.stretches(content, 0, blocks)
        if stretch.state == 2
        for at in range(stretch.first, stretch.end)
    ]


A = prompt((0, 0, 8))
B = prompt((1, 0, 8))


def test_the_end_of_a_stretch_goes_before_its_front() -> None:
    tier = Tier(4, 1)
    store(tier, A, 0, 4)
    store(tier, B, 0, 2)
    assert resident(tier, A, 8) == [0, 1]
    assert resident(tier, B, 8) == [0, 1]


def test_storing_again_is_a_use_and_takes_no_room() -> None:
    tier = Tier(4, 1)
    store(tier, A, 0, 2)
    store(tier, B, 0, 2)
    assert store(tier, A, 0, 2) == []
    store(tier, prompt((2, 0, 8)), 0, 2)
    assert resident(tier, A, 8) == [0, 1]
    assert resident(tier, B, 8) == []


def test_a_tier_may_hold_the_end_of_a_prefix_without_its_front() -> None:
    tier = Tier(4, 1)
    store(tier, A, 4, 6)
    assert resident(tier, A, 8) == [4, 5]
    assert tier.resident_until(A, 4, 8) == 6
    assert tier.resident_until(A, 0, 8) == 0


def test_equal_prefixes_are_one_entry() -> None:
    tier = Tier(8, 2)
    store(tier, prompt((0, 0, 8)), 0, 4)
    assert store(tier, prompt((0, 0, 4), (1, 0, 4)), 0, 4) == [(2, 4)]
    assert tier.free_blocks == 2


def test_a_cohort_larger_than_the_tier_keeps_its_leading_blocks() -> None:
    tier = Tier(2, 1)
    assert store(tier, A, 0, 3) == [(0, 2)]
    assert tier.dropped_blocks == 1


def test_a_cohort_never_evicts_its_own_blocks() -> None:
    """S125: a is resident and oldest, x is resident; storing [a, b] in a tier of two evicts x."""
    tier = Tier(2, 1)
    store(tier, A, 0, 1)
    x = prompt((9, 0, 1))
    store(tier, x, 0, 1)
    assert store(tier, A, 0, 2) == [(1, 2)]
    assert resident(tier, A, 8) == [0, 1]
    assert resident(tier, x, 1) == []


def test_what_is_pinned_stays() -> None:
    tier = Tier(2, 1)
    store(tier, A, 0, 2)
    tier.pin(A, 0, 1)
    (part,) = tier.pin(A, 1, 2)
    assert store(tier, B, 0, 1) == []
    tier.unpin(part)
    assert store(tier, B, 0, 1) == [(0, 1)]
    assert resident(tier, A, 8) == [0]


def test_what_fills_is_not_evicted() -> None:
    """S108: a tier of one block that is being filled takes nothing else."""
    tier = Tier(1, 1)
    assert ranges(tier.reserve(A, 0, 1, NobodysErrand(0))) == [(0, 1)]
    assert store(tier, B, 0, 1) == []


def test_the_order_of_eviction_is_that_of_the_last_use() -> None:
    """S107: five blocks offered to a tier of three keep the leading three."""
    tier = Tier(3, 1)
    assert store(tier, A, 0, 5) == [(0, 3)]
    assert (tier.dropped_blocks, tier.evicted_blocks) == (2, 0)


def test_a_tier_without_room_holds_nothing() -> None:
    tier = Tier(0, 1)
    assert store(tier, A, 0, 4) == []
    assert tier.num_nodes == 0


def test_what_is_gone_leaves_no_nodes() -> None:
    tier = Tier(4, 1)
    for origin in range(50):
        store(tier, prompt((origin, 0, 12)), 8, 12)
    assert tier.num_nodes <= 2


CONTENTS = [
    prompt((0, 0, 12)),
    prompt((0, 0, 5), (1, 0, 7)),
    prompt((0, 0, 8), (2, 0, 4)),
    prompt((3, 0, 12)),
    prompt((3, 0, 2), (4, 0, 10)),
]
steps = st.lists(
    st.tuples(
        st.sampled_from(["store", "reserve", "fill", "pin", "pin filling", "unpin"]),
        st.integers(0, len(CONTENTS) - 1),
        st.integers(0, 11),
        st.integers(1, 12),
    ),
    max_size=40,
)


@fuzz(200)
@given(st.integers(0, 10), st.integers(1, 3), steps)
def test_any_history_is_that_of_single_blocks(
    num_blocks: int, block_size: int, history: list[tuple[str, int, int, int]]
) -> None:
    tier = Tier(num_blocks, block_size)
    oracle = TierByBlock(num_blocks, block_size)
    filling: list[tuple[Content, Part, tuple[int, int]]] = []
    pinned: list[tuple[Content, list[Part], tuple[int, int]]] = []
    tips: dict[int, TierNode] = {}
    for action, which, first, length in history:
        content = CONTENTS[which]
        blocks = content.length // block_size
        end = min(first + length, blocks)
        if action in ("store", "reserve") and first < end:
            parts = tier.reserve(content, first, end, NobodysErrand(0), tips.get(which))
            tips[which] = tier.tip
            places = [at for low, high in ranges(parts) for at in range(low, high)]
            assert places == oracle.reserve(content, first, end)
            filling += [(content, part, span) for part, span in zip(parts, ranges(parts), strict=True)]
            if action == "store":
                while filling:
                    content, part, span = filling.pop()
                    tier.fill(part)
                    oracle.fill(content, *span)
        elif action == "fill" and filling:
            content, part, span = filling.pop(first % len(filling))
            tier.fill(part)
            oracle.fill(content, *span)
        elif action == "pin":
            until = tier.resident_until(content, first, end)
            if first < until:
                pinned.append((content, tier.pin(content, first, until), (first, until)))
                oracle.pin(content, first, until)
        elif action == "pin filling" and filling:
            content, part, span = filling[first % len(filling)]
            tier.pin_filling(part)
            oracle.pin(content, *span)
            pinned.append((content, [part], span))
        elif action == "unpin" and pinned:
            content, parts, span = pinned.pop(first % len(pinned))
            for part in reversed(parts):
                tier.unpin(part)
            oracle.unpin(content, *span)
        names = {0: "absent", 1: "filling", 2: "resident"}
        for other in CONTENTS:
            blocks = other.length // block_size
            got = [
                (names[int(stretch.state)], stretch.idle)
                for stretch in tier.stretches(other, 0, blocks)
                for _ in range(stretch.first, stretch.end)
            ]
            assert got == oracle.states(other, 0, blocks)
        assert tier.idle_blocks == len(oracle.idle)
        assert tier.free_blocks == num_blocks - len(oracle.state)
        assert (tier.evicted_blocks, tier.dropped_blocks) == (oracle.evicted_blocks, oracle.dropped_blocks)


def test_what_is_not_pinned_cannot_be_unpinned() -> None:
    tier = Tier(2, 1)
    store(tier, A, 0, 1)
    (part,) = tier.pin(A, 0, 1)
    tier.unpin(part)
    with pytest.raises(AssertionError):
        tier.unpin(part)
