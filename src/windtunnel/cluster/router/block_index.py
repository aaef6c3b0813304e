"""Which workers hold which KV blocks, as far as a router has been told: a prefix tree of spans with their owners.

A span is a stretch of consecutive blocks that the same owners hold in the same number of copies; storing, removing and
looking up cost by the spans they touch, whatever the number of blocks. Copies are counted: a block is held until its
last copy goes. Rules of Dynamo's radix indexer: a lookup scores each owner by the leading blocks that it holds without
a gap, and a block whose parent its owner does not hold is refused. The file knows no time and chooses nobody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windtunnel.workload.content import BlockKey, Content, agree_until

Numbers = npt.NDArray[np.int64]

FEW_OWNERS = 4  # so many are written one by one


class IndexSpan:
    """Blocks [depth, depth + size) of any sequence through it.

    Attributes:
        content: one of those sequences.
        key: identity of its first block among the children of `parent`.
        owners: copies that each owner holds of all of its blocks; at least one.
        numbers: the owners as an array; None when it has to be made anew.
    """

    __slots__ = ("children", "content", "depth", "key", "numbers", "owners", "parent", "size")

    def __init__(
        self, parent: IndexSpan | None, key: BlockKey, content: Content, depth: int, size: int, owners: dict[int, int]
    ) -> None:
        self.parent = parent
        self.key = key
        self.content = content
        self.depth = depth
        self.size = size
        self.owners = owners
        self.numbers: Numbers | None = None
        self.children: dict[BlockKey, IndexSpan] = {}


class BlockIndex:
    """Blocks by content and owner; owners are integers from 0 on, for as many as `make_room` was asked for.

    Attributes:
        blocks: distinct blocks that each owner holds.
        refused: stores that were refused, and unknown: blocks that were removed and not known; both stay 0 unless
            events get lost.
        num_spans: spans there are; spans_visited: those that were looked at so far to find the place of a content.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = IndexSpan(None, (), Content.of(()), 0, 0, {})
        self.blocks: Numbers = np.zeros(0, dtype=np.int64)
        self.refused = 0
        self.unknown = 0
        self.num_spans = 0
        self.spans_visited = 0
        self._depths: Numbers = np.zeros(0, dtype=np.int64)
        self._closed = True  # whoever owns a span owns those above; lost events of removals may end that
        self._found: Content | None = None  # what was looked up last, if nothing has changed since
        self._found_in = self.root  # the last span that it agrees with
        self._found_blocks = 0  # up to here
        self._found_limit = 0  # looked no further
        self._places: dict[Content, IndexSpan] = {}  # by content, a span that has it as `content`

    def make_room(self, owners: int) -> None:
        """Let there be at least so many owners."""
        missing = owners - len(self.blocks)
        if missing > 0:
            self.blocks = np.append(self.blocks, np.zeros(missing, dtype=np.int64))
            self._depths = np.zeros(len(self.blocks), dtype=np.int64)

    def depths(self, content: Content, limit_blocks: int) -> Numbers:
        """By owner, the number of leading blocks of `content`, at most `limit_blocks`, that it holds.

        The array is that of the index, which the next lookup writes to.
        """
        depths = self._depths
        depths.fill(0)
        bs = self.block_size
        node = self.root
        alive: dict[int, int] = {}
        depth = 0
        visited = 0
        closed = self._closed
        while depth < limit_blocks:
            child = node.children.get(content.key(depth * bs, bs))
            if child is None:
                break
            visited += 1
            end = depth + child.size
            if end > limit_blocks:
                end = limit_blocks
            if child.content is not content:
                end = agree_until(content, child.content, depth * bs, end * bs) // bs
            owners = child.owners
            if not closed:
                owners = alive = {owner: 1 for owner in owners if not depth or owner in alive}
                for owner in owners:
                    depths[owner] = end
            elif len(owners) <= FEW_OWNERS:
                for owner in owners:
                    depths[owner] = end
            else:
                numbers = child.numbers
                if numbers is None:
                    numbers = child.numbers = np.fromiter(owners, dtype=np.int64, count=len(owners))
                depths[numbers] = end
            node = child
            if end < depth + child.size:
                depth = end
                break
            depth = end
        self.spans_visited += visited
        self._found = content
        self._found_in = node
        self._found_blocks = depth
        self._found_limit = limit_blocks
        return depths

    # --- blocks come

    def hold_prefix(self, owner: int, content: Content, blocks: int) -> IndexSpan:
        """`owner` holds one more copy of the first `blocks` blocks, at least one, of `content`.

        Returns the span that ends with them, for `drop_prefix`. An owner that only holds prefixes has fewer copies of
        what is below, so the two are never merged: it ends there as long as they are held.
        """
        if self._found is not content or self._found_limit != blocks:
            self.depths(content, blocks)
        node = self._found_in
        at = self._found_blocks
        self._found = None
        if at < node.depth + node.size:
            node = self._split(node, at - node.depth)
        added = 0
        if at < blocks:
            tail = self._append(node, owner, content, at, blocks)
            added = blocks - at
        else:
            tail = node
            self._name(tail, content)
        while node.parent is not None:
            added += self._add_copy(owner, node)
            above = node.parent
            if len(node.children) == 1:
                self._merge(node)
            node = above
        self.blocks[owner] += added
        return tail

    def store(self, owner: int, content: Content, first: int, end: int) -> None:
        """`owner` holds one more copy of blocks [first, end) of `content`."""
        if first >= end:
            return
        self._found = None
        node = self.root
        if first:
            place = self._places.get(content)
            if place is None or first > place.depth + place.size:
                node = self._ending_at(content, first)
            elif first < place.depth + place.size:
                self._store_above(owner, content, first, end, place)
                return
            else:
                node = place
            owners = node.owners
            if owner not in owners:
                self.refused += 1
                return
            if not node.children and len(owners) == 1 and owners[owner] == 1:
                node.size += end - first  # nobody else can tell
                self._name(node, content)
                self.blocks[owner] += end - first
                return
        self.blocks[owner] += self._store_below(owner, content, first, end, node)
        if len(node.children) == 1:
            self._merge(node)

    def _store_above(self, owner: int, content: Content, first: int, end: int, place: IndexSpan) -> None:
        """The same for blocks the first of which is above the end of a span with that content."""
        stop = place.depth + place.size
        path = self._climb(place, first, min(end, stop))
        above = path[-1].parent
        assert above is not None
        if first and owner not in above.owners:
            self.refused += 1
        else:
            added = 0
            for span in path:
                added += self._add_copy(owner, span)
            if end > stop:
                added += self._store_below(owner, content, stop, end, place)
            self.blocks[owner] += added
        for span in path:
            if len(span.children) == 1:
                self._merge(span)
        if len(above.children) == 1:
            self._merge(above)

    def _climb(self, place: IndexSpan, first: int, end: int) -> list[IndexSpan]:
        """The spans of blocks [first, end) above the end of a span, which is where they end; the deepest first."""
        node = place
        while node.depth >= end:
            assert node.parent is not None
            node = node.parent
        if end < node.depth + node.size:
            node = self._split(node, end - node.depth)
        path = [node]
        while node.depth > first:
            assert node.parent is not None
            node = node.parent
            path.append(node)
        if node.depth < first:
            self._split(node, first - node.depth)
        return path

    def _store_below(self, owner: int, content: Content, first: int, end: int, above: IndexSpan) -> int:
        """Store blocks [first, end) behind those that end with `above`; returns how many of them are new to `owner`."""
        bs = self.block_size
        node = above
        added = 0
        at = first
        while at < end:
            child = node.children.get(content.key(at * bs, bs))
            if child is None:
                self._append(node, owner, content, at, end)
                added += end - at
                break
            stop = at + child.size
            if stop > end:
                stop = end
            count = agree_until(content, child.content, at * bs, stop * bs) // bs - at
            if count < child.size:
                child = self._split(child, count)
            added += self._add_copy(owner, child)
            at += count
            node = child
        while node is not above:
            parent = node.parent
            assert parent is not None
            if len(node.children) == 1:
                self._merge(node)
            node = parent
        return added

    def _append(self, node: IndexSpan, owner: int, content: Content, first: int, end: int) -> IndexSpan:
        """A new span below another, for blocks that nobody holds."""
        key = content.key(first * self.block_size, self.block_size)
        child = IndexSpan(node, key, content, first, end - first, {owner: 1})
        node.children[key] = child
        self._places[content] = child
        self.num_spans += 1
        return child

    def _add_copy(self, owner: int, span: IndexSpan) -> int:
        """Returns how many blocks are new to `owner`."""
        owners = span.owners
        copies = owners.get(owner, 0)
        owners[owner] = copies + 1
        if copies:
            return 0
        span.numbers = None
        return span.size

    # --- blocks go

    def drop_prefix(self, owner: int, tail: IndexSpan) -> None:
        """`owner` holds one copy less of the blocks that end with a span, which it has held."""
        self._found = None
        span = tail
        gone = 0
        while span.parent is not None:
            above = span.parent
            owners = span.owners
            if owners[owner] > 1:
                owners[owner] -= 1
            else:
                del owners[owner]
                span.numbers = None
                gone += span.size
            if len(span.children) < 2:
                self._tidy(span)
            span = above
        self.blocks[owner] -= gone

    def remove(self, owner: int, content: Content, first: int, end: int) -> None:
        """`owner` holds one copy less of blocks [first, end) of `content`."""
        if first >= end:
            return
        self._found = None
        node = self._places.get(content)
        if node is None or node.depth + node.size < end:
            node, known = self._reaching(content, end)
            self.unknown += end - max(first, known)
            end = known
            if first >= end:
                return
        elif node.depth + node.size == end and first > node.depth and not node.children:
            owners = node.owners
            if len(owners) == 1 and owners.get(owner) == 1:  # mostly: the end of what nobody else has
                node.size = first - node.depth
                self.blocks[owner] -= end - first
                return
        path = self._climb(node, first, end)
        above = path[-1].parent
        assert above is not None
        for span in path:
            self._take_copy(owner, span)
        if len(above.children) == 1:
            self._merge(above)

    def drop(self, owner: int) -> None:
        """Forget everything that `owner` holds. O(spans)."""
        self._found = None
        spans = list(self.root.children.values())
        for span in spans:
            spans += span.children.values()
        for span in reversed(spans):
            if span.owners.pop(owner, 0):
                span.numbers = None
                self._tidy(span)
        if owner < len(self.blocks):
            self.blocks[owner] = 0

    def _take_copy(self, owner: int, span: IndexSpan) -> None:
        owners = span.owners
        copies = owners.get(owner, 0)
        if not copies:
            self.unknown += span.size
            return
        if copies > 1:
            owners[owner] = copies - 1
        else:
            del owners[owner]
            span.numbers = None
            self.blocks[owner] -= span.size
            for child in span.children.values():
                if owner in child.owners:
                    self._closed = False
        self._tidy(span)

    def _tidy(self, span: IndexSpan) -> None:
        """Unlink a span that nobody holds, or make one of two that nothing tells apart any more."""
        children = span.children
        if children:
            if len(children) == 1:
                self._merge(span)
            return
        if span.owners:
            return
        parent = span.parent
        assert parent is not None
        del parent.children[span.key]
        self._unname(span)
        self.num_spans -= 1
        if not parent.owners and parent is not self.root:  # after lost events only
            self._tidy(parent)

    # --- spans

    def _merge(self, span: IndexSpan) -> None:
        """If the same hold its only child, that becomes part of it."""
        parent = span.parent
        if parent is None:
            return
        for child in span.children.values():
            if child.owners == span.owners:
                child.key = span.key
                child.depth = span.depth
                child.size += span.size
                child.parent = parent
                parent.children[span.key] = child
                self._unname(span)
                self.num_spans -= 1

    def _name(self, span: IndexSpan, content: Content) -> None:
        """Know a span by another content."""
        if span.content is not content:
            self._unname(span)
            span.content = content
            self._places[content] = span

    def _unname(self, span: IndexSpan) -> None:
        if self._places.get(span.content) is span:
            del self._places[span.content]

    def _reaching(self, content: Content, blocks: int) -> tuple[IndexSpan, int]:
        """The last span that the first `blocks` blocks of `content` agree with, and up to which block they do."""
        bs = self.block_size
        node = self.root
        at = 0
        while at < blocks:
            child = node.children.get(content.key(at * bs, bs))
            if child is None:
                break
            self.spans_visited += 1
            stop = at + child.size
            if stop > blocks:
                stop = blocks
            if child.content is not content:
                stop = agree_until(content, child.content, at * bs, stop * bs) // bs
            node = child
            at = stop
            if at < child.depth + child.size:
                break
        return node, at

    def _ending_at(self, content: Content, blocks: int) -> IndexSpan:
        """The span that ends with the first `blocks` blocks of `content`; the root if they are not all known."""
        node, known = self._reaching(content, blocks)
        if known < blocks:
            return self.root
        return node if known == node.depth + node.size else self._split(node, known - node.depth)

    def _split(self, span: IndexSpan, blocks: int) -> IndexSpan:
        """Cut off the first `blocks` blocks; returns them as a new span, `span` is the rest."""
        parent = span.parent
        assert parent is not None
        upper = IndexSpan(parent, span.key, span.content, span.depth, blocks, dict(span.owners))
        upper.numbers = span.numbers
        parent.children[span.key] = upper
        span.parent = upper
        span.depth += blocks
        span.size -= blocks
        bs = self.block_size
        span.key = span.content.key(span.depth * bs, bs)
        upper.children[span.key] = span
        self.num_spans += 1
        return upper
