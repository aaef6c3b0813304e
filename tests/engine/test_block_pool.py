"""The pool of spans holds, hits and evicts exactly what a pool of single blocks does."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from golden.vllm_format import BlockHashes
from oracle.block_by_block import BlockByBlockPool
from oracle.expand_spans import cached_copies, queued_hashes
from strategies import fuzz
from windtunnel.engine.kv.block_pool import BlockPool, BlockTable
from windtunnel.engine.kv.prefix_tree import NOTHING_CACHED, Span
from windtunnel.workload.content import Content, Run

# --- facts, one at a time, with blocks of one token: content [(origin, 0, n)] is n blocks


def prompt(*runs: Run) -> Content:
    return Content.of(list(runs))


def fill(pool: BlockPool, content: Content, hit_blocks: int = 0, unhashed_blocks: int = 0) -> BlockTable:
    """A new table with all blocks of a content, of which `hit_blocks` may be hits, and some more without a hash."""
    table = BlockTable(content)
    pool.hold(table, pool.match(content, hit_blocks))
    blocks = content.length // pool.block_size
    pool.take(blocks + unhashed_blocks - table.owned)
    table.owned = blocks + unhashed_blocks
    if blocks > table.hashed:
        pool.store(table, blocks)
    return table


def hit_blocks(pool: BlockPool, content: Content) -> int:
    return pool.match(content, content.length // pool.block_size).blocks


def test_a_sequence_is_evicted_from_its_tail() -> None:
    pool = BlockPool(4, 1, True, False)
    pool.release(fill(pool, prompt((1, 0, 4))))
    pool.take(1)
    assert hit_blocks(pool, prompt((1, 0, 4))) == 3
    pool.take(2)
    assert hit_blocks(pool, prompt((1, 0, 4))) == 1


def test_the_sequence_released_first_is_evicted_first() -> None:
    pool = BlockPool(4, 1, True, False)
    first, second = fill(pool, prompt((1, 0, 2))), fill(pool, prompt((2, 0, 2)))
    pool.release(second)
    pool.release(first)
    pool.take(2)
    assert hit_blocks(pool, prompt((1, 0, 2))) == 2
    assert hit_blocks(pool, prompt((2, 0, 2))) == 0


def test_a_hit_saves_blocks_from_eviction() -> None:
    pool = BlockPool(4, 1, True, False)
    pool.release(fill(pool, prompt((1, 0, 2))))
    pool.release(fill(pool, prompt((2, 0, 2))))
    pool.release(fill(pool, prompt((1, 0, 2)), hit_blocks=2))
    pool.take(2)
    assert hit_blocks(pool, prompt((1, 0, 2))) == 2
    assert hit_blocks(pool, prompt((2, 0, 2))) == 0


def test_blocks_without_a_hash_are_reused_first() -> None:
    pool = BlockPool(5, 1, True, False)
    pool.release(fill(pool, prompt((1, 0, 2))))
    pool.release(fill(pool, prompt((2, 0, 1)), unhashed_blocks=2))
    pool.take(2)
    assert hit_blocks(pool, prompt((1, 0, 2))) == 2
    assert hit_blocks(pool, prompt((2, 0, 1))) == 1
    assert pool.free_blocks == 3


def test_idle_hits_are_counted_apart_from_those_in_use() -> None:
    pool = BlockPool(8, 1, True, False)
    pool.release(fill(pool, prompt((1, 0, 5))))
    fill(pool, prompt((1, 0, 2)), hit_blocks=2)
    match = pool.match(prompt((1, 0, 5)), 5)
    assert (match.blocks, match.idle_blocks) == (5, 3)


def test_duplicates_are_kept_and_the_first_copy_is_hit() -> None:
    pool = BlockPool(9, 1, True, False)
    first, second = fill(pool, prompt((1, 0, 3))), fill(pool, prompt((1, 0, 3)))
    assert pool.free_blocks == 3
    pool.release(second)
    assert pool.match(prompt((1, 0, 3)), 3).idle_blocks == 0
    pool.release(first)
    fill(pool, prompt((1, 0, 3)), hit_blocks=3)  # of `first`, which would have been evicted last
    assert [span.ref for span in pool.tree.root.children[(1, 0)].copies] == [1, 0]
    pool.take(6)
    assert hit_blocks(pool, prompt((1, 0, 3))) == 3


def test_when_the_first_copy_is_evicted_the_next_one_is_hit() -> None:
    pool = BlockPool(6, 1, True, False)
    first = fill(pool, prompt((1, 0, 3)))
    fill(pool, prompt((1, 0, 3)))
    pool.release(first)
    pool.take(2)
    match = pool.match(prompt((1, 0, 3)), 3)
    assert (match.blocks, match.idle_blocks) == (3, 1)


def test_a_prompt_that_leaves_another_in_the_middle_of_a_block_shares_the_blocks_before() -> None:
    pool = BlockPool(6, 4, True, False)
    fill(pool, prompt((1, 0, 12)))
    assert hit_blocks(pool, prompt((1, 0, 7), (2, 0, 5))) == 1


def test_equal_tokens_after_different_ones_are_another_block() -> None:
    pool = BlockPool(6, 4, True, False)
    fill(pool, prompt((1, 0, 4), (3, 0, 4)))
    assert hit_blocks(pool, prompt((2, 0, 4), (3, 0, 4))) == 0


def test_a_prompt_that_leaves_a_stretch_does_not_hit_what_comes_after_it() -> None:
    pool = BlockPool(20, 1, True, False)
    fill(pool, prompt((1, 0, 6), (2, 6, 2)))
    fill(pool, prompt((1, 0, 6), (3, 0, 2)), hit_blocks=6)  # so that a stretch ends at 6, and (2, 6) comes after it
    match = pool.match(prompt((1, 0, 4), (2, 4, 4)), 8)
    assert (match.blocks, match.partial, len(match.path)) == (4, 4, 1)


def test_a_branch_splits_what_it_leaves_and_eviction_removes_all_of_it() -> None:
    pool = BlockPool(10, 1, True, False)
    pool.release(fill(pool, prompt((1, 0, 6))))
    pool.release(fill(pool, prompt((1, 0, 2), (2, 0, 3)), hit_blocks=2))
    (trunk,) = pool.tree.root.children.values()
    assert (trunk.size, sorted(child.size for child in trunk.children.values())) == (2, [3, 4])
    assert (pool.tree.num_nodes, pool.tree.num_splits) == (3, 1)
    pool.take(10)
    assert (pool.tree.num_nodes, pool.tree.root.children, pool.free_blocks) == (0, {}, 0)
    assert pool.queue.after is pool.queue


def test_a_growing_sequence_stays_one_span() -> None:
    pool = BlockPool(100, 1, True, False)
    table = BlockTable(prompt((1, 0, 100)))
    for upto in range(1, 101):
        pool.take(1)
        table.owned = upto
        pool.store(table, upto)
    assert (pool.tree.num_nodes, len(table.spans)) == (1, 1)


def test_events_name_each_copy_in_the_order_of_store_and_eviction() -> None:
    pool = BlockPool(4, 1, True, True)
    for _ in range(2):
        pool.release(fill(pool, prompt((1, 0, 2))))
    pool.take(3)
    assert [(event.stored, event.first, event.end) for event in pool.events] == [
        (True, 0, 2),
        (True, 0, 2),
        (False, 0, 2),
        (False, 1, 2),
    ]


def test_without_caching_nothing_is_hit_or_published() -> None:
    pool = BlockPool(4, 1, False, True)
    table = BlockTable(prompt((1, 0, 4)))
    pool.take(4)
    table.owned = 4
    pool.release(table)
    assert hit_blocks(pool, prompt((1, 0, 4))) == 0
    assert pool.events == []
    assert pool.free_blocks == 4


# --- sequences of operations


@dataclass
class Holder:
    """One table in both pools."""

    table: BlockTable
    hashes: list[int]
    blocks: list[int]  # in the pool of single blocks


class Pools:
    """The pool of spans and the pool of single blocks, which do the same."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.spans = BlockPool(num_blocks, block_size, caching=True, log_events=True)
        self.blocks = BlockByBlockPool(num_blocks)
        self.block_size = block_size
        self.hasher = BlockHashes(block_size)
        self.chains: dict[int, list[int]] = {}
        self.contents: list[Content] = []  # kept alive: chains are found by identity
        self.holders: list[Holder] = []

    def admit(self, runs: list[Run], limit_blocks: int, filled_blocks: int, unhashed_blocks: int) -> None:
        """A new table: hits up to a limit, then computed blocks, then some that are not full yet."""
        content = Content.of(runs)
        hashes: list[int] = []
        self.hasher.extend(hashes, [origin * 1000 + at for origin, start, n in runs for at in range(start, start + n)])
        self.contents.append(content)
        self.chains[id(content)] = hashes
        limit_blocks = min(limit_blocks, len(hashes))
        match = self.spans.match(content, limit_blocks)
        hits = self.blocks.match(hashes[:limit_blocks])
        assert (match.blocks, match.idle_blocks) == (len(hits), self.blocks.idle(hits))
        filled = min(max(filled_blocks, len(hits)), len(hashes))
        if filled + unhashed_blocks - len(hits) > len(self.blocks.free) - self.blocks.idle(hits):
            return
        holder = Holder(BlockTable(content), hashes, hits)
        self.holders.append(holder)
        self.spans.hold(holder.table, match)
        self.blocks.hold(hits)
        self.grow(holder, filled + unhashed_blocks - len(hits), filled)

    def grow(self, holder: Holder, count: int, filled: int) -> None:
        """Take `count` blocks for a table, of which then `filled` are full."""
        table = holder.table
        filled = min(filled, table.owned + count, len(holder.hashes))
        if count > len(self.blocks.free):
            return
        self.spans.take(count)
        table.owned += count
        holder.blocks += self.blocks.take(count)
        before = table.hashed
        if filled > before:
            self.spans.store(table, filled)
            parent = holder.hashes[before - 1] if before else None
            self.blocks.store(parent, holder.blocks[before:filled], holder.hashes[before:filled])

    def release(self, holder: Holder) -> None:
        self.holders.remove(holder)
        self.spans.release(holder.table)
        self.blocks.release(holder.blocks)

    def check(self) -> None:
        assert self.spans.free_blocks == len(self.blocks.free)
        events: list[tuple[bool, int]] = []
        for event in self.spans.events:
            stored = self.chain(event.content, event.end)[event.first : event.end]
            events += [(event.stored, block_hash) for block_hash in (stored if event.stored else stored[::-1])]
        assert events == [(kind == "S", block_hash) for kind, _, blocks in self.blocks.events for block_hash in blocks]
        self.spans.events.clear()
        self.blocks.events.clear()
        free_hashes = [self.blocks.hashes[block] for block in self.blocks.free]
        assert queued_hashes(self.spans, self.chain) == free_hashes[self.spans.blank :]
        assert free_hashes[: self.spans.blank] == [None] * self.spans.blank
        refs = {key: [self.blocks.refs[block] for block in copies] for key, copies in self.blocks.copies.items()}
        assert cached_copies(self.spans, self.chain) == dict(sorted(refs.items()))

    def chain(self, content: Content, blocks: int) -> list[int]:
        return self.chains[id(content)]


contents = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=4)
counts = st.integers(0, 12)
operations = st.one_of(
    st.tuples(st.just("admit"), contents, counts, st.tuples(counts, st.integers(0, 2))),
    st.tuples(st.just("grow"), counts, counts, counts),
    st.tuples(st.just("release"), counts, counts, counts),
)


@fuzz(250)
@given(st.integers(3, 24), st.integers(1, 4), st.lists(operations, max_size=40))
def test_any_sequence_of_operations_does_the_same_to_single_blocks(
    num_blocks: int, block_size: int, steps: list[tuple[str, object, object, object]]
) -> None:
    pools = Pools(num_blocks, block_size)
    for step in steps:
        match step:
            case ("admit", list(runs), int(limit), (int(filled), int(unhashed))):
                pools.admit(runs, limit, filled, unhashed)
            case (name, int(which), int(count), int(filled)) if pools.holders:
                holder = pools.holders[which % len(pools.holders)]
                if name == "grow":
                    pools.grow(holder, count, filled)
                else:
                    pools.release(holder)
        pools.check()


def test_an_empty_match_holds_nothing() -> None:
    pool = BlockPool(2, 1, True, False)
    table = BlockTable(prompt((1, 0, 2)))
    pool.hold(table, NOTHING_CACHED)
    assert (table.owned, pool.free_blocks) == (0, 2)


def living_spans() -> int:
    return sum(isinstance(thing, Span) for thing in gc.get_objects())


def test_what_was_evicted_is_not_kept_alive_by_what_was_its_neighbour() -> None:
    gc.collect()
    before = living_spans()
    pool = BlockPool(4, 1, True, False)
    popular = prompt((0, 0, 1))
    table = fill(pool, popular)
    first = fill(pool, prompt((1, 0, 1)))
    pool.release(table)
    pool.release(first)
    table = fill(pool, popular, hit_blocks=1)  # it was queued before the first, and is held from now on
    assert table.hashed == 1
    for origin in range(2, 100):
        pool.release(fill(pool, prompt((origin, 0, 1))))
    assert living_spans() - before <= pool.num_blocks + 1  # and the ring's
