"""vLLM's block pool: which blocks a request gets, and which cached block is evicted for them.

Rules of vLLM 0.33 (docs/fidelity.md): a hit takes the first cached copy; a table is freed tail first; freed
blocks without a hash are reused before any other, then hashed ones in the order they were freed. The pool
works on spans of blocks and makes exactly the decisions of a pool that handles them one by one. Blocks without
a hash have no identity: those held are `owned - hashed` of a table, those free are the number `blank`. In releases
before 0.33 freed blocks without a hash queue up like the others: spans of nodes that hang outside the tree.
"""

from __future__ import annotations

from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.kv.prefix_tree import NOTHING_CACHED, Match, Node, PrefixTree, Span
from windtunnel.workload.content import Content


class BlockTable:
    """The blocks of one request: the hashed ones as spans, then `owned - hashed` without a hash.

    Attributes:
        content: the tokens in them.
        spans, counts: held spans, and the number of blocks of each when it was written. A span that was split
            since holds fewer; the others follow along its `rest`.
    """

    __slots__ = ("content", "counts", "hashed", "owned", "spans")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.spans: list[Span] = []
        self.counts: list[int] = []
        self.hashed = 0
        self.owned = 0


class BlockPool:
    """All KV blocks of an engine.

    Attributes:
        num_blocks: usable blocks.
        tree: the cached ones by content.
        free_blocks: blocks that nobody holds.
        unhashed: where the nodes of queued blocks without a hash hang, if those have a place in the queue.
        blank: those of them without a hash that are used first; the others are in the queue.
        events: what happened since the owner last cleared it, if `log_events`.
        evicted: blocks whose last copy was evicted since the owner last took them, in that order; None unless wanted.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        caching: bool,
        log_events: bool,
        *,
        unhashed_first: bool = True,
        tree: PrefixTree | None = None,
    ) -> None:
        """`unhashed_first`: freed blocks without a hash are used next, else after all that were freed before; `tree`:
        an empty one to use instead of an ordinary one."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.tree = tree or PrefixTree(block_size)
        self.free_blocks = num_blocks
        self.blank = num_blocks
        self.queue = Span(self.tree.root)  # a ring: queue.after is evicted next
        self.unhashed_first = unhashed_first or not caching  # without hashes no order can be told
        self.unhashed = Node(None, (), Content.of([]), 0, 0)
        self._releases = 0  # of blocks that have no hash but a place in the queue
        self.log_events = log_events and caching
        self.events: list[CacheEvent] = []
        self.evicted: list[CacheEvent] | None = None

    def match(self, content: Content, limit_blocks: int) -> Match:
        """The cached prefix of `content`, at most `limit_blocks` blocks. Changes nothing."""
        if not self.caching:
            return NOTHING_CACHED
        return self.tree.match(content, limit_blocks)

    def hold(self, table: BlockTable, match: Match) -> None:
        """Give an empty table the blocks of a match; they leave the free queue."""
        path = match.path
        if not path:
            return
        last = path[-1]
        if match.partial < last.size:
            path[-1] = self.tree.split(last, match.partial)
        for node in path:
            span = node.copies[0]
            size = node.size
            if span.ref == 0:
                self._unlink(span)
                self.free_blocks -= size
            span.ref += 1
            table.spans.append(span)
            table.counts.append(size)
            table.hashed += size
        table.owned = table.hashed

    def store(self, table: BlockTable, upto: int) -> None:
        """Hash blocks [hashed, upto) of a table: they can be hit from now on."""
        content = table.content
        at = table.hashed
        table.hashed = upto
        if self.log_events:
            self.events.append(CacheEvent(True, content, at, upto))
        spans = table.spans
        counts = table.counts
        node = self.tree.root
        if spans:
            tip = spans[-1]
            if counts[-1] > tip.node.size:
                tip = self._tip(table)
            node = tip.node
            if tip.ref == 1 and not node.children and len(node.copies) == 1:
                # nobody else can tell: grow in place. The old content may go on differently beyond the old end.
                node.size += upto - at
                node.content = content
                counts[-1] += upto - at
                return
        while at < upto:
            child = self.tree.child_for(node, content, at, upto)
            span = Span(child)
            span.ref = 1
            child.copies.append(span)
            spans.append(span)
            counts.append(child.size)
            at += child.size
            node = child

    def take(self, count: int) -> None:
        """Take `count` free blocks, which there must be; those with a hash are evicted."""
        self.free_blocks -= count
        blank = self.blank
        if count <= blank:
            self.blank = blank - count
            return
        count -= blank
        self.blank = 0
        queue = self.queue
        while count > 0:
            span = queue.after
            node = span.node
            size = node.size
            if len(node.copies) == 1:
                if count < size:  # the tail of the only copy: the node shrinks
                    node.size = size - count
                    if self.evicted is not None:
                        self._note_eviction(self.evicted, node, node.depth + size - count, node.depth + size)
                    if self.log_events and node.parent is not self.unhashed:
                        self.events.append(
                            CacheEvent(False, node.content, node.depth + size - count, node.depth + size)
                        )
                    return
                if self.evicted is not None:
                    self._note_eviction(self.evicted, node, node.depth, node.depth + size)
                self.tree.remove(node)
            elif count < size:  # other copies stay whole: only the lower part loses this one
                self.tree.split(node, size - count)
                span = queue.after
                size = count
            if self.log_events and node.parent is not self.unhashed:
                self.events.append(CacheEvent(False, node.content, node.depth, node.depth + size))
            node.copies.remove(span)
            self._unlink(span)
            count -= size

    def _note_eviction(self, evicted: list[CacheEvent], node: Node, first: int, end: int) -> None:
        if node.parent is not self.unhashed:
            evicted.append(CacheEvent(False, node.content, first, end))

    def release(self, table: BlockTable) -> None:
        """Give up all blocks of a table: hashed ones tail first to the back of the queue, the others to its front."""
        spans = table.spans
        counts = table.counts
        freed = table.owned - table.hashed
        queue = self.queue
        if self.unhashed_first:
            self.blank += freed
        elif freed:
            self._append_unhashed(table, freed)
        while spans:
            span = spans[-1]
            if counts[-1] > span.node.size:
                span = self._tip(table)
            spans.pop()
            counts.pop()
            span.ref -= 1
            if span.ref == 0:
                freed += span.node.size
                last = queue.before
                span.before = last
                span.after = queue
                last.after = span
                queue.before = span
        self.free_blocks += freed
        table.hashed = 0
        table.owned = 0

    def _append_unhashed(self, table: BlockTable, blocks: int) -> None:
        """Put blocks without a hash at the back of the queue."""
        self._releases += 1
        node = Node(self.unhashed, (self._releases,), table.content, 0, blocks)
        self.unhashed.children[node.key] = node
        self.tree.num_nodes += 1
        span = Span(node)
        node.copies.append(span)
        queue = self.queue
        last = queue.before
        span.before = last
        span.after = queue
        last.after = span
        queue.before = span

    def _tip(self, table: BlockTable) -> Span:
        """The span of the last hashed block; rewrites the table's last entry if it was split since."""
        span = table.spans[-1]
        count = table.counts[-1]
        while count > span.node.size:
            size = span.node.size
            table.counts[-1] = size
            count -= size
            rest = span.rest
            assert rest is not None
            span = rest
            table.spans.append(span)
            table.counts.append(count)
        return span

    def _unlink(self, span: Span) -> None:
        before = span.before
        after = span.after
        before.after = after
        after.before = before
        span.before = span.after = self.queue  # its neighbours may be evicted, and must not live on through it
