"""The radix cache: small scenarios, what a long life leaves in memory, and equality with a tree of token lists."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.sglang_format import RawEvent
from golden.sglang_playback import PageHashes
from oracle.radix_by_token import RadixByToken, TreeNode
from strategies import Dice, fuzz
from windtunnel.engine.kv.radix import RadixCache, RadixLease
from windtunnel.workload.content import Content, Run


def content(*tokens: int) -> Content:
    """Exactly these tokens: token t is the one at offset t of the same endless stream."""
    return Content.of([(0, token, 1) for token in tokens])


def cache(*sequences: tuple[int, ...], tokens: int = 100, page_size: int = 1, policy: str = "lru") -> RadixCache:
    """A cache in which these sequences were computed, one after the other, and are held by nobody."""
    pool = RadixCache(tokens // page_size, page_size, True, policy, log_events=True)
    for sequence in sequences:
        pool.release(hold(pool, *sequence), len(sequence), keep=False)
    return pool


def hold(pool: RadixCache, *sequence: int) -> RadixLease:
    """Compute a sequence without looking for hits, and hold it."""
    lease = RadixLease(content(*sequence), 0)
    pool.take(pool.pages(len(sequence)))
    pool.store(lease, len(sequence))
    return lease


def match(pool: RadixCache, *sequence: int) -> int:
    return pool.match(content(*sequence), len(sequence)).end


def evict(pool: RadixCache, tokens: int) -> None:
    pool.evict_until(pool.free_tokens + tokens)


def nodes(pool: RadixCache) -> list[tuple[int, int]]:
    """Where each node starts and ends, parents first."""
    found = [pool.root]
    for node in found:
        found += node.children.values()
    return [(node.start, node.end) for node in found[1:]]


def test_pages_are_taken_and_freed_whole() -> None:
    pool = RadixCache(3, 4)
    assert [pool.pages(tokens) for tokens in (0, 3, 4, 5)] == [0, 4, 4, 8]
    pool.take(pool.pages(3))
    assert pool.free_tokens == 8
    lease = RadixLease(content(*range(5)), 0)
    pool.take(8)
    assert pool.free_tokens == 0
    pool.release(lease, 5, keep=True)
    assert (pool.free_tokens, pool.evictable_tokens, match(pool, *range(9))) == (4, 4, 4)


def test_a_branch_splits_a_node() -> None:
    pool = cache((1, 2, 3, 4, 5), (1, 2, 3, 6, 7))
    assert nodes(pool) == [(0, 3), (3, 5), (3, 5)]
    assert match(pool, 1, 2, 3, 9) == 3


def test_there_is_no_sharing_below_a_page() -> None:
    pool = cache((1, 2, 3, 4, 5, 6, 7), page_size=4)
    assert pool.evictable_tokens == 4
    assert (match(pool, 1, 2, 3, 4), match(pool, 1, 2, 3, 6)) == (4, 0)


def test_a_match_that_ends_in_a_node_splits_it() -> None:
    pool = cache((1, 2, 3, 4))
    assert match(pool, 1, 2, 9) == 2
    assert nodes(pool) == [(0, 2), (2, 4)]


def test_branches_are_held_each_for_itself() -> None:
    pool = cache()
    first, second = hold(pool, 1, 2, 3, 4, 5), hold(pool, 1, 2, 3, 6, 7)
    assert (pool.protected_tokens, pool.free_tokens) == (7, 93)  # the second copy of the prefix was freed
    pool.release(first, 5, keep=False)
    assert (pool.protected_tokens, pool.evictable_tokens) == (5, 2)
    pool.release(second, 5, keep=False)
    assert (pool.protected_tokens, pool.evictable_tokens) == (0, 7)


def test_a_split_under_a_hold() -> None:
    pool = cache(tokens=16, page_size=4)
    first = hold(pool, 1, 2, 3, 4, 5, 6, 7, 8)
    second = hold(pool, 1, 2, 3, 4, 9, 9, 9, 9)
    assert (nodes(pool), pool.free_tokens) == ([(0, 4), (4, 8), (4, 8)], 4)
    pool.release(first, 8, keep=True)
    pool.release(second, 8, keep=False)
    assert (pool.evictable_tokens, pool.protected_tokens) == (12, 0)
    evict(pool, 12)
    assert (pool.free_tokens, nodes(pool)) == (16, [])


def test_the_least_recently_used_goes_first() -> None:
    pool = cache((1, 2, 3), (4, 5, 6))
    evict(pool, 3)
    assert (match(pool, 1, 2, 3), match(pool, 4, 5, 6)) == (0, 3)


def test_a_match_is_a_use() -> None:
    pool = cache((1, 2, 3), (4, 5, 6))
    match(pool, 1, 2, 3)
    evict(pool, 3)
    assert (match(pool, 1, 2, 3), match(pool, 4, 5, 6)) == (3, 0)


def test_letting_go_is_no_use() -> None:
    pool = cache()
    old, new = hold(pool, 1, 2, 3), hold(pool, 4, 5, 6)
    pool.release(new, 3, keep=False)
    pool.release(old, 3, keep=False)
    evict(pool, 3)
    assert (match(pool, 1, 2, 3), match(pool, 4, 5, 6)) == (0, 3)


def test_what_is_held_is_not_evicted() -> None:
    pool = cache((4, 5, 6))
    hold(pool, 1, 2, 3)
    evict(pool, 6)
    assert (pool.free_tokens, pool.protected_tokens) == (97, 3)


def test_nodes_are_evicted_whole() -> None:
    """SGLang frees a leaf of 200 tokens when 30 are needed."""
    pool = cache((1, 2, 3, 4), (5, 6))
    evict(pool, 1)
    assert (match(pool, 1, 2, 3, 4), match(pool, 5, 6)) == (0, 2)


def test_a_parent_is_evicted_after_its_children_in_its_own_order() -> None:
    pool = cache((10, 11, 12), (10, 11, 13), (20, 21))
    evict(pool, 2)
    assert nodes(pool) == [(0, 2), (0, 2)]
    evict(pool, 2)
    assert (match(pool, 10, 11), match(pool, 20, 21)) == (0, 2)


def test_internal_nodes_count_as_evictable() -> None:
    pool = cache((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 9, 9, 9), tokens=16, page_size=4)
    assert pool.evictable_tokens == 12
    evict(pool, 12)
    assert pool.free_tokens == 16


@pytest.mark.parametrize(("policy", "survivors"), [("lru", {2, 3}), ("mru", {1, 2}), ("fifo", {2, 3}), ("lfu", {1, 3})])
def test_eviction_policies(policy: str, survivors: set[int]) -> None:
    """1 and 3 were inserted twice; 1 is the oldest insertion and the oldest use, 3 the newest use."""
    pool = cache((1,), (2,), (3,), (1,), (2,), (3,), policy=policy)
    if policy == "lfu":
        pool = cache((2,), (1,), (3,), (1,), (3,), policy=policy)
    evict(pool, 1)
    assert {token for token in (1, 2, 3) if match(pool, token)} == survivors


def test_the_border_of_prompt_and_output_stays_a_border() -> None:
    pool = cache()
    lease = RadixLease(content(*range(10)), border=6)
    pool.take(10)
    pool.release(lease, 10, keep=True)
    assert nodes(pool) == [(0, 6), (6, 10)]
    evict(pool, 1)
    assert match(pool, *range(10)) == 6


def test_what_is_given_up_without_being_stored_frees_all_but_the_hit() -> None:
    """4 cached and 6 more computed, in pages of 4: giving up leaves the 4, and 12 of 16 free."""
    pool = cache((1, 2, 3, 4), tokens=16, page_size=4)
    lease = RadixLease(content(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 0)
    pool.hold(lease, pool.match(lease.content, 9))
    pool.take(8)
    assert (pool.free_tokens, pool.protected_tokens) == (4, 4)
    pool.release(lease, 10, keep=False)
    assert (pool.free_tokens, pool.evictable_tokens, pool.protected_tokens) == (12, 4, 0)


def written(pool: RadixCache) -> list[tuple[bool, int, int]]:
    return [(event.stored, event.first, event.end) for event in pool.events]


def test_events_of_chunks_continue_each_other() -> None:
    pool = cache()
    lease = RadixLease(content(*range(6)), 6)
    pool.take(3)
    pool.store(lease, 3)
    pool.take(3)
    pool.store(lease, 6)
    assert written(pool) == [(True, 0, 3), (True, 3, 6)]
    pool.release(lease, 6, keep=True)
    evict(pool, 6)
    assert written(pool)[2:] == [(False, 3, 6), (False, 0, 3)]


def test_duplicates_are_no_events() -> None:
    """Two requests compute the same 3 tokens: stored once, removed once."""
    pool = cache()
    leases = [hold(pool, 1, 2, 3), hold(pool, 1, 2, 3)]
    assert (written(pool), pool.free_tokens) == ([(True, 0, 3)], 97)
    for lease in leases:
        pool.release(lease, 3, keep=True)
    assert (len(pool.events), pool.free_tokens) == (1, 97)
    evict(pool, 3)
    assert written(pool) == [(True, 0, 3), (False, 0, 3)]


def test_without_caching_nothing_is_stored_matched_or_published() -> None:
    pool = RadixCache(16, 4, caching=False, log_events=True)
    lease = RadixLease(content(*range(9)), 8)
    pool.hold(lease, pool.match(lease.content, 9))
    pool.take(12)
    pool.store(lease, 9)
    pool.release(lease, 9, keep=True)
    assert (pool.match(lease.content, 9).end, pool.events, pool.free_tokens, pool.num_nodes) == (0, [], 64, 0)


# --- memory


def retained_bytes(pool: RadixCache) -> int:
    """Storage that the nodes of a tree keep alive for their contents, shared ones once."""
    contents = {}
    todo = list(pool.root.children.values())
    for node in todo:
        contents[id(node.content)] = node.content
        todo += node.children.values()
    return sum(8 * 3 * len(content.ends) for content in contents.values())


def test_a_short_prefix_of_an_evicted_sequence_keeps_no_storage() -> None:
    """1,000,000 pages that continue nothing before them; all but the first are evicted."""
    pages = 1_000_000
    pool = RadixCache(2 * pages, 1)
    long = RadixLease(Content.of([(page, 0, 1) for page in range(pages)]), 0)
    pool.take(pages)
    pool.release(long, pages, keep=True)
    assert pool.match(long.content, 1).end == 1
    assert pool.num_nodes == 2
    assert retained_bytes(pool) == 24 * pages
    prefix = RadixLease(Content.of([(0, 0, 1)]), 0)
    pool.hold(prefix, pool.match(prefix.content, 1))
    evict(pool, pages)
    assert (pool.free_tokens, pool.protected_tokens) == (2 * pages - 1, 1)
    assert retained_bytes(pool) < 1000


def test_an_edge_split_everywhere_keeps_about_what_it_has() -> None:
    """4,096 pages, cut at every 8: contents, holds and eviction order stay, and storage is that of one sequence."""
    pages = 4096
    pool = RadixCache(2 * pages, 1)
    runs: list[Run] = [(page, 0, 1) for page in range(pages)]
    lease = RadixLease(Content.of(runs), 0)
    pool.take(pages)
    pool.store(lease, pages)
    before = retained_bytes(pool)
    for at in range(8, pages, 8):
        branch = RadixLease(Content.of([*runs[:at], (-at, 0, 1)]), 0)
        assert pool.match(branch.content, at + 1).end == at
    assert nodes(pool) == [(at, at + 8) for at in range(0, pages, 8)]
    assert (pool.protected_tokens, pool.evictable_tokens) == (pages, 0)
    assert retained_bytes(pool) == before
    pool.release(lease, pages, keep=True)
    evict(pool, 8)
    assert nodes(pool)[-1] == (pages - 16, pages - 8)


def test_the_queue_of_victims_does_not_grow_with_uses() -> None:
    for policy in ("lru", "mru", "lfu", "fifo"):
        pool = cache((1, 2), (3, 4), policy=policy)
        for _ in range(1000):
            match(pool, 1, 2)
        assert len(pool._victims) <= 4 * 2 + 64 + 1


# --- equality with the oracle


class PairedLease:
    """A lease of the cache, and what the oracle keeps for it."""

    def __init__(self, runs: list[Run], page_size: int, border: int) -> None:
        self.lease = RadixLease(Content.of(runs), border - border % page_size)
        self.tokens = [origin * 1_000_000 + start + i for origin, start, length in runs for i in range(length)]
        self.prompt = self.tokens[: border - border % page_size]
        self.computed = 0
        self.held = 0
        self.inserted = 0
        self.node: TreeNode | None = None


class Pair:
    """A radix cache and the oracle of it, under the same operations."""

    def __init__(self, dice: Dice, page_size: int, policy: str) -> None:
        tokens = page_size * dice.number(6, 60)
        self.cache = RadixCache(tokens // page_size, page_size, True, policy, log_events=True)
        self.oracle = RadixByToken(tokens, page_size, policy)
        self.page_size = page_size
        self.leases: list[PairedLease] = []

    def operate(self, dice: Dice) -> None:
        """One random operation, and all that can be compared after it."""
        operation = dice.pick("admit", "admit", "compute", "compute", "store", "store", "touch", "evict", "end", "lose")
        if operation == "admit":
            self._admit(dice)
        elif operation == "touch":
            lease = self._lease(dice)
            limit = dice.number(0, len(lease.tokens))
            assert self.cache.match(lease.lease.content, limit).end == self.oracle.match(lease.tokens[:limit])[0]
        elif operation == "evict":
            tokens = dice.number(0, 12 * self.page_size)
            self.cache.evict_until(tokens)
            self.oracle.evict_until(tokens)
        elif self.leases:
            lease = self.leases[dice.number(0, len(self.leases) - 1)]
            if operation == "compute":
                self._compute(lease, dice.number(0, len(lease.tokens) - lease.computed))
            elif operation == "store":
                self._store(lease, dice.number(lease.held, lease.computed))
            else:
                self.leases.remove(lease)
                self._end(lease, keep=operation == "end")
        cache, oracle = self.cache, self.oracle
        counts = (cache.free_tokens, cache.evictable_tokens, cache.protected_tokens, cache.num_nodes)
        assert counts == (oracle.free, oracle.evictable, oracle.protected, len(oracle.nodes()))

    def _lease(self, dice: Dice) -> PairedLease:
        runs: list[Run] = [(dice.number(0, 2), 0, dice.number(1, 5 * self.page_size))]
        while dice.pick(True, False):
            runs.append((dice.number(0, 5), dice.number(0, 2), dice.number(1, 3 * self.page_size)))
        return PairedLease(runs, self.page_size, dice.number(0, sum(run[2] for run in runs)))

    def _admit(self, dice: Dice) -> None:
        lease = self._lease(dice)
        limit = len(lease.tokens) - 1
        node = self.cache.match(lease.lease.content, limit)
        hit, lease.node = self.oracle.match(lease.tokens[:limit])
        assert node.end == hit
        evictable = self.cache.evictable_tokens - self.cache.unheld_tokens(node)
        self.cache.hold(lease.lease, node)
        self.oracle.lock(lease.node, 1)
        assert evictable == self.oracle.evictable == self.cache.evictable_tokens
        lease.held = lease.computed = hit
        self.leases.append(lease)

    def _compute(self, lease: PairedLease, tokens: int) -> None:
        pages = self.cache.pages(lease.computed + tokens) - self.cache.pages(lease.computed)
        self.cache.evict_until(pages)
        self.oracle.evict_until(pages)
        if self.cache.free_tokens >= pages:
            self.cache.take(pages)
            self.oracle.free -= pages
            lease.computed += tokens

    def _store(self, lease: PairedLease, upto: int) -> None:
        self.cache.store(lease.lease, upto)
        self._insert(lease, upto)

    def _insert(self, lease: PairedLease, upto: int) -> None:
        tokens = lease.tokens[: upto - upto % self.page_size]
        if not tokens:
            return
        node, duplicate = self.oracle.insert(tokens, lease.held, lease.inserted)
        self.oracle.free += duplicate
        lease.inserted = max(lease.inserted, len(tokens))
        if 0 < len(lease.prompt) < len(tokens):
            self.oracle.insert(lease.prompt, len(lease.prompt), len(lease.prompt))
        assert lease.node is not None
        self.oracle.lock(lease.node, -1)
        self.oracle.lock(node, 1)
        lease.node = node
        lease.held = len(tokens)

    def _end(self, lease: PairedLease, keep: bool) -> None:
        self.cache.release(lease.lease, lease.computed, keep)
        if keep:
            self._insert(lease, lease.computed)
        self.oracle.free += self.cache.pages(lease.computed) - lease.held
        assert lease.node is not None
        self.oracle.lock(lease.node, -1)

    def events(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Every page stored or removed, of the cache and of the oracle, with labels by first appearance."""
        raw = PageHashes(self.page_size).raw(self.cache.events)
        return self._labelled(raw), self._labelled(self.oracle.events)

    @staticmethod
    def _labelled(events: list[RawEvent]) -> list[tuple[str, int]]:
        labels: dict[int, int] = {}
        return [(kind, labels.setdefault(page, len(labels))) for kind, _, pages in events for page in pages]


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "mru"])
@fuzz(25)
@given(seed=st.integers(0, 2**32), operations=st.integers(1, 80))
def test_the_cache_is_the_tree_of_token_lists(policy: str, seed: int, operations: int) -> None:
    dice = Dice(random.Random(f"{policy} {seed}").randbytes(1024))
    pair = Pair(dice, dice.pick(1, 1, 2, 3, 4, 16), policy)
    for _ in range(operations):
        pair.operate(dice)
    for lease in pair.leases:
        pair._end(lease, keep=True)
    everything = pair.cache.num_blocks * pair.page_size
    pair.cache.evict_until(everything)
    pair.oracle.evict_until(everything)
    assert pair.cache.free_tokens == pair.oracle.free == everything
    ours, theirs = pair.events()
    assert ours == theirs


@fuzz(20)
@given(seed=st.integers(0, 2**32))
def test_events_replay_into_a_tree_without_a_missing_parent(seed: int) -> None:
    """A page is stored once, behind a page that is there, and removed once, before what is in front of it."""
    dice = Dice(random.Random(seed).randbytes(1024))
    pair = Pair(dice, dice.pick(1, 2, 4), "lru")
    for _ in range(60):
        pair.operate(dice)
    parents: dict[int, int | None] = {}
    for kind, parent, pages in PageHashes(pair.page_size).raw(pair.cache.events):
        for page in pages if kind == "S" else reversed(pages):
            if kind == "S":
                assert page not in parents
                assert parent is None or parent in parents
                parents[page] = parent
                parent = page
            else:
                del parents[page]
                assert page not in parents.values()
    assert len(parents) * pair.page_size == pair.cache.evictable_tokens + pair.cache.protected_tokens
