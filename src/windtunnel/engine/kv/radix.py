"""SGLang's radix cache: which KV pages are cached, which prefix is hit, and what is evicted.

Rules of SGLang 0.5.23, as recorded in tests/golden; docs/fidelity.md lists them. A node is a stretch of whole pages
that is locked, split and evicted as one, so here, unlike in vLLM's pool, the borders of nodes and the order of their
last access are behaviour. A page that the tree holds exists once; pages that a request holds beside the tree have no
identity and are only counted. All sizes are tokens, multiples of the page. The file never looks at queues or time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.workload.content import NO_SOURCES, BlockKey, Content, agree_until

Rank: TypeAlias = int | tuple[int, int]

SPARE_RUNS = 8  # a node's content may have so many more than twice the runs it needs before it is cut down


class RadixNode:
    """Consecutive pages of the tree: tokens [start, end) of any sequence through it.

    Attributes:
        content: one of those sequences.
        key: identity of its first page, by which its parent finds it.
        holders: requests that hold the path down to here, plus children that are held. So it is positive exactly if
            something here or below is held, and then the node cannot be evicted.
        last: tick of the last access that ended here; an access of a path counts for all of it, see `evict_until`.
        born: tick of its insertion. hits: insertions that went through it.
        queued: whether it has an entry among the victims.
    """

    __slots__ = ("born", "children", "content", "end", "hits", "holders", "key", "last", "parent", "queued", "start")

    def __init__(
        self, parent: RadixNode | None, key: BlockKey, content: Content, start: int, end: int, tick: int
    ) -> None:
        self.parent = parent  # None for the root, and for a node that was evicted
        self.key = key
        self.content = content
        self.start = start
        self.end = end
        self.children: dict[BlockKey, RadixNode] = {}
        self.holders = 0
        self.last = tick
        self.born = tick
        self.hits = 0
        self.queued = False


class RadixLease:
    """What one request holds of the cache.

    Attributes:
        content: its tokens, prompt first.
        border: where its prompt ends, in whole pages: there the tree keeps a border between nodes.
        node: the node down to which the path is held; None if nothing is.
        held: tokens of that path, which belong to the tree.
        inserted: tokens that it has given to the tree so far.
    """

    __slots__ = ("border", "content", "held", "inserted", "node")

    def __init__(self, content: Content, border: int) -> None:
        self.content = content
        self.border = border
        self.node: RadixNode | None = None
        self.held = 0
        self.inserted = 0


Victim: TypeAlias = tuple[Rank, int, RadixNode]  # its rank when it was offered, and the number of the offer


class RadixCache:
    """All KV pages of an engine: free ones, those of the tree, and those that requests hold beside the tree.

    Attributes:
        num_blocks: pages in all.
        free_tokens: in pages that are neither in the tree nor held.
        evictable_tokens, protected_tokens: in nodes that nobody holds, and in the others.
        num_nodes: nodes of the tree, without its root.
        evicted: what was evicted since the owner last took it, in that order; None unless wanted.
        events: what was stored and removed since the owner last cleared it, if `log_events`. The pages of one event
            are published in ascending order.
    """

    def __init__(
        self,
        num_blocks: int,
        page_size: int,
        caching: bool = True,
        eviction_policy: str = "lru",
        log_events: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.page_size = page_size
        self.caching = caching
        self.free_tokens = num_blocks * page_size
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self.num_nodes = 0
        self.log_events = log_events and caching
        self.events: list[CacheEvent] = []
        self.evicted: list[CacheEvent] | None = None
        self.root = RadixNode(None, (), Content.of(()), 0, 0, 0)
        self.root.holders = 1
        self._policy = eviction_policy
        self._by_last = eviction_policy == "lru"
        self._newest_first = eviction_policy == "mru"
        self._counts_hits = eviction_policy == "lfu"
        self._tick = 0  # of accesses; a clock would not tell two of one instant apart
        self._victims: list[Victim] = []  # a heap
        self._newest: deque[Victim] = deque()  # most candidates come up in the order of their eviction
        self._offers = 0

    @property
    def free_blocks(self) -> int:
        """Pages that nobody holds: free, or in the tree and evictable."""
        return (self.free_tokens + self.evictable_tokens) // self.page_size

    def pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages, in tokens."""
        page = self.page_size
        return -(-tokens // page) * page

    # --- finding

    def match(self, content: Content, limit: int) -> RadixNode:
        """The end of the cached prefix of content[:limit], in whole pages; the root if there is none.

        It counts as an access of the path, and makes the end of the match the border of a node.
        """
        node = self.root
        if not self.caching:
            return node
        page = self.page_size
        limit -= limit % page
        at = 0
        while at < limit:
            child = node.children.get(content.key(at, page))
            if child is None:
                break
            end = child.end if child.end < limit else limit
            if child.content is not content:
                end = agree_until(content, child.content, at, end)
                end -= end % page
            node = child if end == child.end else self._split(child, end)
            at = end
            if not node.children:
                break
        if at:
            self._touch(node)
        return node

    def unheld_tokens(self, node: RadixNode) -> int:
        """Tokens of the path down to `node` that are evictable, which they will not be once it is held."""
        tokens = 0
        while not node.holders:
            tokens += node.end - node.start
            assert node.parent is not None
            node = node.parent
        return tokens

    def knows_more(self, lease: RadixLease, upto: int) -> bool:
        """Whether some of the lease's first `upto` tokens are in the tree beyond the path that it holds."""
        node = self.root if lease.node is None else lease.node
        page = self.page_size
        return self.caching and node.end + page <= upto and lease.content.key(node.end, page) in node.children

    # --- holding and storing

    def hold(self, lease: RadixLease, node: RadixNode) -> None:
        """Hold the path of a match; nothing of it is evicted until it is released."""
        if self.caching:
            self._lock(node)
            lease.node = node
            lease.held = node.end

    def take(self, tokens: int) -> None:
        """Take free pages of `tokens` tokens, which there must be, for a request to hold beside the tree."""
        self.free_tokens -= tokens
        assert self.free_tokens >= 0

    def store(self, lease: RadixLease, upto: int, hold: bool = True) -> None:
        """Give the full pages of the lease's first `upto` tokens to the tree; `hold` goes on holding them.

        What of it lies below the held path and is there already is the lease's duplicate, and is freed.
        """
        page = self.page_size
        upto -= upto % page
        if not upto or not self.caching:
            return
        content = lease.content
        before = lease.node
        node = self.root if before is None else before
        at = node.end
        while at < upto:
            key = content.key(at, page)
            children = node.children
            child = children.get(key)
            if child is None:
                self._tick = tick = self._tick + 1  # later than the split of its elder sibling, if there was one
                children[key] = node = RadixNode(node, key, content, at, upto, tick)
                self.num_nodes += 1
                if self.log_events:
                    self.events.append(CacheEvent(True, content, at // page, upto // page))
                if hold and node.parent is before:  # what is held grows by this node, through which the old end is held
                    node.holders = 1
                    self.protected_tokens += upto - at
                    lease.node = node
                else:
                    self.evictable_tokens += upto - at
                    if not hold:
                        self._offer(node)
                break
            end = child.end if child.end < upto else upto
            if child.content is not content:
                end = agree_until(content, child.content, at, end)
                end -= end % page
            node = child if end == child.end else self._split(child, end)
            self.free_tokens += end - at
            at = end
        else:
            self._touch(node)
        lease.held = upto
        if self._counts_hits:
            self._count_hits(node, lease)
        border = lease.border
        if 0 < border < upto and border != node.start:
            self._make_border(node, border)
        if hold and node is not lease.node:
            lease.node = node
            self._lock(node)  # before the old end is let go, so that what both share does not flip
            if before is not None:
                self._unlock(before)

    def release(self, lease: RadixLease, tokens: int, keep: bool) -> None:
        """Give up a lease and its pages of `tokens` tokens; `keep` leaves the full ones in the tree."""
        if keep:
            self.store(lease, tokens, hold=False)
        self.free_tokens += -(-tokens // self.page_size) * self.page_size - lease.held
        if lease.node is not None:
            self._unlock(lease.node)
            lease.node = None
        lease.held = 0

    def _count_hits(self, node: RadixNode, lease: RadixLease) -> None:
        """A lease was inserted down to `node`: this counts for what it had not inserted before."""
        counted = lease.inserted
        lease.inserted = max(node.end, counted)
        while node.end > counted:
            node.hits += 1
            assert node.parent is not None
            node = node.parent

    def _make_border(self, node: RadixNode, at: int) -> None:
        """Make `at` a border between nodes on the path down to `node`."""
        while node.start >= at:
            assert node.parent is not None
            node = node.parent
        if node.end > at:
            self._split(node, at)

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut the pages before `at` off a node; returns them as its new parent. Holders and children stay below."""
        parent = node.parent
        assert parent is not None
        upper = RadixNode(parent, node.key, node.content, node.start, at, node.last)
        upper.holders = 1 if node.holders else 0
        upper.hits = node.hits
        upper.born = node.born
        parent.children[node.key] = upper
        node.parent = upper
        node.start = at
        node.key = node.content.key(at, self.page_size)
        upper.children[node.key] = node
        self.num_nodes += 1
        self._touch(node)  # SGLang does; the caller then goes on with the upper part, which so becomes newer
        return upper

    def _touch(self, node: RadixNode) -> None:
        self._tick += 1
        node.last = self._tick
        if self._newest_first and not node.holders and not node.children:
            self._offer(node)

    def _lock(self, node: RadixNode) -> None:
        end = node
        node.holders += 1
        while node.holders == 1:  # the root has one already
            assert node.parent is not None
            node = node.parent
            node.holders += 1
        size = end.end - node.end
        self.evictable_tokens -= size
        self.protected_tokens += size

    def _unlock(self, node: RadixNode) -> None:
        end = node
        node.holders -= 1
        while not node.holders:  # the root keeps one
            assert node.parent is not None
            node = node.parent
            node.holders -= 1
        size = end.end - node.end
        self.evictable_tokens += size
        self.protected_tokens -= size
        if not end.holders and not end.children:
            self._offer(end)

    # --- eviction

    def evict_until(self, tokens: int) -> None:
        """Evict whole nodes, in the order of the policy, until `tokens` tokens are free or nothing more can be.

        Only nodes without children are candidates. An access is noted where it ends; its path is never older than
        that, and a node becomes a candidate only once everything below it is gone, so it learns then.
        """
        if self.free_tokens >= tokens:
            return
        victims = self._victims
        newest = self._newest
        while self.free_tokens < tokens and (victims or newest):
            if not victims or (newest and newest[0] < victims[0]):
                rank, order, node = newest.popleft()
            else:
                rank, order, node = heappop(victims)
            if node.children or node.holders or node.parent is None:
                node.queued = False
                continue
            now: Rank = node.last if self._by_last else self._rank(node)
            if now != rank:  # touched since
                if not self._newest_first:
                    heappush(victims, (now, order, node))
                continue
            self._evict(node, tokens)

    def _evict(self, node: RadixNode, tokens: int) -> None:
        """Evict the next victim; then the node above it as long as that is the next one, and more is wanted."""
        while True:
            parent = node.parent
            assert parent is not None
            size = node.end - node.start
            self.free_tokens += size
            self.evictable_tokens -= size
            self.num_nodes -= 1
            if self.log_events or self.evicted is not None:
                self._note_eviction(node)
            del parent.children[node.key]
            node.parent = None
            is_next = self._by_last
            if node.last > parent.last:
                parent.last = node.last
            else:
                is_next = False  # it was accessed without this node, and later
            if len(parent.content.ends) > SPARE_RUNS:
                _cut_down(parent)
            if parent.children or parent.holders:  # the root has one
                return
            if not is_next or self.free_tokens >= tokens:
                self._offer(parent)
                return
            node = parent

    def _note_eviction(self, node: RadixNode) -> None:
        page = self.page_size
        event = CacheEvent(False, node.content, node.start // page, node.end // page)
        if self.log_events:
            self.events.append(event)
        if self.evicted is not None:
            self.evicted.append(event)

    def _rank(self, node: RadixNode) -> Rank:
        """Its place in the order of eviction, lowest first."""
        if self._newest_first:
            return -node.last
        if self._counts_hits:
            return (node.hits, node.last)
        return node.last if self._by_last else node.born

    def _offer(self, node: RadixNode) -> None:
        """A node has no children and no holders: it may be evicted."""
        if node.queued:
            if not self._newest_first:
                return  # ranks only grow: its old entry comes up in time and is renewed then
            if len(self._victims) > 4 * self.num_nodes + 64:
                self._victims = [entry for entry in self._victims if entry[0] == -entry[2].last]
                heapify(self._victims)
        node.queued = True
        self._offers += 1
        victim = (node.last if self._by_last else self._rank(node), self._offers, node)
        if not self._newest or victim > self._newest[-1]:
            self._newest.append(victim)
        else:
            heappush(self._victims, victim)


def _cut_down(node: RadixNode) -> None:
    """Drop the part of a node's content that nothing needs any more, so that evicted sequences leave no storage."""
    content = node.content
    ends = content.ends
    runs = bisect_left(ends, node.end) + 1
    if len(ends) <= 2 * runs + SPARE_RUNS:
        return
    node.content = Content(content.origins[:runs], content.deltas[:runs], ends[:runs], ends[runs - 1], NO_SOURCES)
