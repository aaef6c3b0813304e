"""Which workers hold which KV blocks, as far as a router has been told: a prefix tree of spans with their owners.

A span is a stretch of consecutive blocks that the same owners hold in the same number of copies; storing, removing and
looking up cost by the spans they touch, whatever the number of blocks. Copies are counted: a block is held until its
last copy goes. Rules of Dynamo's radix indexer: a lookup scores each owner by the leading blocks that it holds without
a gap, and a block whose parent its owner does not hold is refused. The file knows no time and chooses nobody.
"""

from __future__ import annotations

from windtunnel.workload.content import BlockKey, Content, agree_until


class IndexSpan:
    """Blocks [depth, depth + size) of any sequence through it.

    Attributes:
        content: one of those sequences.
        key: identity of its first block among the children of `parent`.
        owners: copies that each owner holds of all of its blocks; at least one.
    """

    __slots__ = ("children", "content", "depth", "key", "owners", "parent", "size")

    def __init__(
        self, parent: IndexSpan | None, key: BlockKey, content: Content, depth: int, size: int, owners: dict[int, int]
    ) -> None:
        self.parent = parent
        self.key = key
        self.content = content
        self.depth = depth
        self.size = size
        self.owners = owners
        self.children: dict[BlockKey, IndexSpan] = {}


class BlockIndex:
    """Blocks by content and owner; owners are any integers.

    Attributes:
        blocks: distinct blocks that each owner holds.
        refused: stores that were refused, and unknown: blocks that were removed and not known; both stay 0 unless
            events get lost.
        num_spans: spans there are; spans_visited: those that lookups have looked at so far.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = IndexSpan(None, (), Content.of(()), 0, 0, {})
        self.blocks: dict[int, int] = {}
        self.refused = 0
        self.unknown = 0
        self.num_spans = 0
        self.spans_visited = 0
        self._closed = True  # whoever owns a span owns those above; lost events of removals may end that

    def overlaps(self, content: Content, limit_blocks: int) -> dict[int, int]:
        """For each owner of any, the number of leading blocks of `content`, at most `limit_blocks`, that it holds."""
        found: dict[int, int] = {}
        bs = self.block_size
        node = self.root
        alive: dict[int, int] = {}
        depth = 0
        visited = 0
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
            if not depth:
                alive = owners
            elif len(owners) != len(alive) or not self._closed:
                staying: dict[int, int] = {}
                for owner in alive:
                    if owner in owners:
                        staying[owner] = 1
                    else:
                        found[owner] = depth
                alive = staying
                if not alive:
                    break
            if end < depth + child.size:
                depth = end
                break
            depth = end
            node = child
        self.spans_visited += visited
        for owner in alive:
            found[owner] = depth
        return found

    def store(self, owner: int, content: Content, first: int, end: int) -> None:
        """`owner` holds one more copy of blocks [first, end) of `content`."""
        if first >= end:
            return
        node = self.root
        if first:
            node = self._ending_at(content, first)
            owners = node.owners
            if owner not in owners:
                self.refused += 1
                return
            if not node.children and len(owners) == 1 and owners[owner] == 1:
                node.size += end - first  # nobody else can tell
                node.content = content
                self.blocks[owner] += end - first
                return
        bs = self.block_size
        above = node
        added = 0
        at = first
        while at < end:
            key = content.key(at * bs, bs)
            child = node.children.get(key)
            if child is None:
                child = IndexSpan(node, key, content, at, end - at, {owner: 1})
                node.children[key] = child
                self.num_spans += 1
                added += end - at
                break
            stop = at + child.size
            if stop > end:
                stop = end
            count = agree_until(content, child.content, at * bs, stop * bs) // bs - at
            if count < child.size:
                child = self._split(child, count)
            owners = child.owners
            copies = owners.get(owner, 0)
            owners[owner] = copies + 1
            if not copies:
                added += count
            at += count
            node = child
        self.blocks[owner] = self.blocks.get(owner, 0) + added
        while node is not above:
            parent = node.parent
            assert parent is not None
            if len(node.children) == 1:
                self._merge(node)
            node = parent
        if len(above.children) == 1:
            self._merge(above)

    def remove(self, owner: int, content: Content, first: int, end: int) -> None:
        """`owner` holds one copy less of blocks [first, end) of `content`."""
        bs = self.block_size
        node = self.root
        touched: list[IndexSpan] = []
        at = 0
        while at < end:
            child = node.children.get(content.key(at * bs, bs))
            if child is None:
                break
            size = child.size
            stop = at + size
            if stop > end:
                stop = end
            if child.content is not content:
                stop = agree_until(content, child.content, at * bs, stop * bs) // bs
            if stop <= first:
                if stop < at + size:
                    break
                node = child
                at = stop
                continue
            if at < first:
                owners = child.owners
                if stop == at + size and not child.children and len(owners) == 1 and owners.get(owner) == 1:
                    child.size = first - at
                    self.blocks[owner] -= stop - first
                    self.unknown += end - stop
                    return
                self._split(child, first - at)
                at = first
            if stop < at + child.size:
                child = self._split(child, stop - at)
                touched.append(child)
                at = stop
                break
            touched.append(child)
            node = child
            at = stop
        self.unknown += end - max(at, first)
        if touched:
            above = touched[0].parent
            assert above is not None
            for span in reversed(touched):
                owners = span.owners
                if len(owners) == 1 and not span.children and above.owners and owners.get(owner) == 1:
                    parent = span.parent  # mostly: nobody else has it, and nothing is below
                    assert parent is not None
                    del parent.children[span.key]
                    owners.clear()
                    self.num_spans -= 1
                    self.blocks[owner] -= span.size
                else:
                    self._take_copy(owner, span)
            if len(above.children) == 1:
                self._merge(above)

    def drop(self, owner: int) -> None:
        """Forget everything that `owner` holds. O(spans)."""
        spans = list(self.root.children.values())
        for span in spans:
            spans += span.children.values()
        for span in reversed(spans):
            if span.owners.pop(owner, 0):
                self._tidy(span)
        self.blocks.pop(owner, None)

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
            self.blocks[owner] -= span.size
            for child in span.children.values():
                if owner in child.owners:
                    self._closed = False
        self._tidy(span)

    def _tidy(self, span: IndexSpan) -> None:
        """Unlink a span that nobody holds, or make one of two that nothing tells apart any more."""
        if span.owners or span.children:
            self._merge(span)
            return
        parent = span.parent
        assert parent is not None
        del parent.children[span.key]
        self.num_spans -= 1
        if not parent.owners and parent is not self.root:  # after lost events only
            self._tidy(parent)

    def _merge(self, span: IndexSpan) -> None:
        """If the same hold its only child, that becomes part of it."""
        children = span.children
        if len(children) != 1:
            return
        parent = span.parent
        if parent is None:
            return
        for child in children.values():
            if child.owners == span.owners:
                child.key = span.key
                child.depth = span.depth
                child.size += span.size
                child.parent = parent
                parent.children[span.key] = child
                self.num_spans -= 1

    def _ending_at(self, content: Content, blocks: int) -> IndexSpan:
        """The span that ends with the first `blocks` blocks of `content`; the root if they are not all known."""
        bs = self.block_size
        node = self.root
        at = 0
        while at < blocks:
            child = node.children.get(content.key(at * bs, bs))
            if child is None:
                return self.root
            stop = at + child.size
            if stop > blocks:
                stop = blocks
            if child.content is not content and agree_until(content, child.content, at * bs, stop * bs) < stop * bs:
                return self.root
            node = child if stop == at + child.size else self._split(child, stop - at)
            at = stop
        return node

    def _split(self, span: IndexSpan, blocks: int) -> IndexSpan:
        """Cut off the first `blocks` blocks; returns them as a new span, `span` is the rest."""
        parent = span.parent
        assert parent is not None
        upper = IndexSpan(parent, span.key, span.content, span.depth, blocks, dict(span.owners))
        parent.children[span.key] = upper
        span.parent = upper
        span.depth += blocks
        span.size -= blocks
        bs = self.block_size
        span.key = span.content.key(span.depth * bs, bs)
        upper.children[span.key] = span
        self.num_spans += 1
        return upper
