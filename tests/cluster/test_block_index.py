"""A router's index of spans says what an index of single blocks does, and visits no more than the matching path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oracle.index_by_block import IndexByBlock
from strategies import Dice, fuzz
from windtunnel.cluster.router.block_index import BlockIndex, IndexSpan
from windtunnel.engine.kv.block_pool import BlockPool, BlockTable
from windtunnel.workload.content import Content, Run


def content(*runs: Run) -> Content:
    return Content.of(list(runs))


def new_index(block_size: int) -> BlockIndex:
    index = BlockIndex(block_size)
    index.make_room(64)
    return index


def overlaps(index: BlockIndex, prompt: Content, limit_blocks: int) -> dict[int, int]:
    return {owner: blocks for owner, blocks in enumerate(index.depths(prompt, limit_blocks).tolist()) if blocks}


def held(index: BlockIndex) -> dict[int, int]:
    return {owner: blocks for owner, blocks in enumerate(index.blocks.tolist()) if blocks}


def test_each_owner_is_scored_by_its_leading_blocks() -> None:
    index = new_index(4)
    prompt = content((1, 0, 40))
    index.store(7, prompt, 0, 10)
    index.store(2, prompt, 0, 3)
    index.store(5, content((1, 0, 22), (2, 0, 18)), 0, 10)
    assert overlaps(index, prompt, 10) == {7: 10, 2: 3, 5: 5}
    assert overlaps(index, prompt, 2) == {7: 2, 2: 2, 5: 2}
    assert overlaps(index, content((3, 0, 40)), 10) == {}


def test_a_block_stays_until_its_last_copy_goes() -> None:
    index = new_index(1)
    prompt = content((1, 0, 5))
    for _ in range(2):
        index.store(0, prompt, 0, 5)
    index.remove(0, prompt, 3, 5)
    assert (overlaps(index, prompt, 5), held(index)) == ({0: 5}, {0: 5})
    index.remove(0, prompt, 4, 5)
    assert (overlaps(index, prompt, 5), held(index)) == ({0: 4}, {0: 4})


def test_a_block_whose_parent_is_not_held_is_refused() -> None:
    index = new_index(1)
    prompt = content((1, 0, 5))
    index.store(0, prompt, 0, 2)
    index.store(1, prompt, 2, 5)
    index.store(0, content((2, 0, 5)), 1, 5)
    assert (index.refused, overlaps(index, prompt, 5)) == (2, {0: 2})


def test_lost_removals_leave_a_gap_that_a_lookup_does_not_cross() -> None:
    index = new_index(1)
    prompt = content((1, 0, 6))
    index.store(0, prompt, 0, 6)
    index.store(1, prompt, 0, 6)
    index.remove(0, prompt, 2, 4)
    assert overlaps(index, prompt, 6) == {0: 2, 1: 6}
    index.store(0, prompt, 2, 4)
    assert overlaps(index, prompt, 6) == {0: 6, 1: 6}


def test_removing_what_is_not_known_changes_nothing() -> None:
    index = new_index(1)
    index.store(0, content((1, 0, 3)), 0, 3)
    index.remove(0, content((1, 0, 6)), 2, 6)
    index.remove(1, content((1, 0, 3)), 0, 3)
    index.remove(1, content((2, 0, 3)), 0, 3)
    assert (index.unknown, index.blocks[0]) == (3 + 3 + 3, 2)


def test_an_owner_that_is_dropped_leaves_nothing() -> None:
    index = new_index(1)
    for owner in range(3):
        index.store(owner, content((1, 0, 4), (10 + owner, 0, 4)), 0, 8)
    for owner in range(3):
        index.drop(owner)
    assert (index.root.children, index.num_spans, held(index)) == ({}, 0, {})


def test_a_lookup_for_64_workers_is_one_pass_over_the_matching_path() -> None:
    index = new_index(16)
    system = (1, 0, 1600)
    for worker in range(64):
        for user in range(5):
            index.store(worker, content(system, (100 * worker + user + 2, 0, 16_000)), 0, 1100)
    before = index.spans_visited
    found = overlaps(index, content(system, (100 * 9 + 3 + 2, 0, 16_000), (9999, 0, 16_000)), 2100)
    assert index.spans_visited - before == 2  # the system prompt, and that user's
    assert found == {worker: 1100 if worker == 9 else 100 for worker in range(64)}


def test_a_growing_sequence_and_one_that_is_evicted_block_by_block_stay_few_spans() -> None:
    index = new_index(1)
    prompt = content((1, 0, 200))
    index.store(1, prompt, 0, 200)
    for block in range(200):
        index.store(0, prompt, block, block + 1)
        assert index.num_spans <= 2
    assert index.num_spans == 1
    for block in range(199, -1, -1):
        index.remove(0, prompt, block, block + 1)
        assert index.num_spans <= 3
    assert (index.num_spans, overlaps(index, prompt, 200)) == (1, {1: 200})


# --- held to single blocks


def _content(dice: Dice) -> Content:
    runs = [(dice.number(0, 1), 0, dice.number(1, 12))]
    if dice.pick(True, False):
        runs.append((dice.number(0, 2), dice.number(0, 6), dice.number(1, 12)))
    return Content.of(runs)


@given(st.sampled_from([1, 2, 3]), st.lists(st.binary(min_size=12, max_size=12), max_size=40))
@fuzz(300)
def test_any_events_leave_what_single_blocks_do(block_size: int, steps: list[bytes]) -> None:
    """Lost and repeated events are among them: stores without a parent, removals of anything.

    Owners 0 to 2 have events; 3 to 5 hold prompts from end to end, some of which have events too.
    """
    spans, blocks = new_index(block_size), IndexByBlock(block_size)
    active: list[tuple[int, Content, int, IndexSpan]] = []
    for entropy in steps:
        dice = Dice(entropy)
        owner = dice.number(0, 2)
        prompt = _content(dice)
        if active and dice.pick(True, False):
            prompt = active[dice.number(0, len(active) - 1)][1]
        length = prompt.length // block_size
        first = dice.number(0, length)
        end = dice.number(first, length)
        kind = dice.pick("store", "all", "begin", "remove", "all", "end", "begin", "remove", "store", "drop")
        if kind == "begin":
            fresh = Content.of(prompt.runs())
            if dice.pick(True, False):
                spans.depths(fresh, length if dice.pick(True, False) else end)
            if length:
                active.append((3 + owner, fresh, length, spans.hold_prefix(3 + owner, fresh, length)))
                blocks.store(3 + owner, fresh, 0, length)
        elif kind == "end" and active:
            number, content, count, last = active.pop(dice.number(0, len(active) - 1))
            assert last.depth + last.size == count
            spans.drop_prefix(number, last)
            blocks.remove(number, content, 0, count)
        elif kind == "all":
            spans.store(owner, prompt, 0, length)
            blocks.store(owner, prompt, 0, length)
        elif kind == "store":
            spans.store(owner, prompt, first, end)
            blocks.store(owner, prompt, first, end)
        elif kind == "remove":
            for index in (spans, blocks):
                index.remove(owner, prompt, first, end)
        elif kind == "drop":
            for index in (spans, blocks):
                index.drop(owner)
        for probe in (prompt, _content(dice)):
            limit = probe.length // block_size
            assert overlaps(spans, probe, limit) == blocks.overlaps(probe, limit)
    assert held(spans) == {owner: count for owner, count in blocks.blocks().items() if count}
    nodes = list(spans.root.children.values())
    for node in nodes:
        assert node.size > 0
        assert node.key == node.content.key(node.depth * block_size, block_size)
        assert spans._places.get(node.content, node).content is node.content
        assert node.numbers is None or sorted(node.numbers) == sorted(node.owners)
        nodes += node.children.values()
    assert len(nodes) == spans.num_spans
    assert {id(place) for place in spans._places.values()} <= {id(node) for node in nodes}


@given(st.lists(st.binary(min_size=6, max_size=6), max_size=40))
@fuzz(200)
def test_the_events_of_pools_replay_into_what_their_caches_hold(steps: list[bytes]) -> None:
    block_size = 2
    index = new_index(block_size)
    pools = [BlockPool(12, block_size, True, True) for _ in range(2)]
    tables: list[list[BlockTable]] = [[], []]
    for entropy in steps:
        dice = Dice(entropy)
        number = dice.number(0, 1)
        pool = pools[number]
        if tables[number] and dice.pick(False, True):
            pool.release(tables[number].pop(dice.number(0, len(tables[number]) - 1)))
        else:
            prompt = _content(dice)
            match = pool.match(prompt, prompt.length // block_size)
            lacking = prompt.length // block_size - match.blocks
            if lacking > pool.free_blocks - match.idle_blocks:
                continue
            table = BlockTable(prompt)
            pool.hold(table, match)
            pool.take(lacking)
            table.owned += lacking
            if lacking:
                pool.store(table, table.owned)
            tables[number].append(table)
        for event in pool.events:
            (index.store if event.stored else index.remove)(number, event.content, event.first, event.end)
        pool.events = []
        probe = _content(dice)
        limit = probe.length // block_size
        cached = {owner: pool.match(probe, limit).blocks for owner, pool in enumerate(pools)}
        assert overlaps(index, probe, limit) == {owner: blocks for owner, blocks in cached.items() if blocks}
    assert (index.refused, index.unknown, index._closed) == (0, 0, True)
