"""The prefix tree of a block cache: nodes are stretches of consecutive blocks, spans are their physical copies.

A node covers blocks [depth, depth + size) of any sequence through it and borrows that sequence's content, so
an edge has no labels of its own and splitting one copies nothing. Where a node ends is not observable: it is
split wherever a request leaves it, and grown in place where that is invisible. The rules of what is cached,
hit and evicted are vLLM's (kv/block_pool.py); this file only finds and splits.
"""

from __future__ import annotations

from windtunnel.workload.content import BlockKey, Content, agree_until


class Span:
    """One physical copy of all blocks of a node: they are filled, referenced and released together.

    Attributes:
        ref: block tables that hold it. At 0 it is in the free queue, its last block first.
        before, after: neighbours in the free queue.
        rest: what followed it before its last split; a block table that held both finds it here. It may
            dangle into evicted spans, which no block count reaches.
    """

    __slots__ = ("after", "before", "node", "ref", "rest")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.ref = 0
        self.before: Span = self
        self.after: Span = self
        self.rest: Span | None = None


class Node:
    """Consecutive blocks of the tree.

    Attributes:
        key: identity of its first block among the children of `parent`.
        depth, size: first block and number of blocks.
        copies: its spans in the order they were first cached; a hit takes the first.
    """

    __slots__ = ("children", "content", "copies", "depth", "key", "parent", "size")

    def __init__(self, parent: Node | None, key: BlockKey, content: Content, depth: int, size: int) -> None:
        self.parent = parent
        self.key = key
        self.content = content
        self.depth = depth
        self.size = size
        self.children: dict[BlockKey, Node] = {}
        self.copies: list[Span] = []


class Match:
    """The cached prefix of a content: the nodes on its path, the last one perhaps only in part.

    Attributes:
        blocks: length of the prefix.
        partial: blocks of the last node of `path` that belong to it.
        idle_blocks: those of its blocks that nobody holds, so that they sit in the free queue.
    """

    __slots__ = ("blocks", "idle_blocks", "partial", "path")

    def __init__(self, path: list[Node], blocks: int, partial: int, idle_blocks: int) -> None:
        self.path = path
        self.blocks = blocks
        self.partial = partial
        self.idle_blocks = idle_blocks


NOTHING_CACHED = Match([], 0, 0, 0)


class PrefixTree:
    """Cached blocks by content.

    Attributes:
        num_nodes, num_splits: for tests and benchmarks, which count work instead of time.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.key_tokens = block_size  # tokens that a block is known by
        self.root = Node(None, (), Content.of(()), 0, 0)
        self.num_nodes = 0
        self.num_splits = 0

    def match(self, content: Content, limit_blocks: int) -> Match:
        """The longest cached prefix of at most `limit_blocks` blocks; changes nothing."""
        path: list[Node] = []
        bs = self.block_size
        node = self.root
        depth = 0
        count = 0
        idle_blocks = 0
        while depth < limit_blocks:
            child = node.children.get(content.key(depth * bs, bs))
            if child is None:
                break
            end = depth + child.size
            if end > limit_blocks:
                end = limit_blocks
            if child.content is not content:
                end = agree_until(content, child.content, depth * bs, end * bs) // bs
            count = end - depth
            path.append(child)
            if child.copies[0].ref == 0:
                idle_blocks += count
            depth = end
            if count < child.size:
                break
            node = child
        return Match(path, depth, count, idle_blocks) if path else NOTHING_CACHED

    def child_for(self, node: Node, content: Content, first: int, end: int) -> Node:
        """The child of `node` that covers blocks from `first` on and agrees with `content` throughout.

        Split off an existing child at the end of the agreement (or at `end`), else new, with all blocks
        up to `end`.
        """
        bs = self.block_size
        key = content.key(first * bs, bs)
        child = node.children.get(key)
        if child is None:
            child = Node(node, key, content, first, end - first)
            node.children[key] = child
            self.num_nodes += 1
            return child
        stop = first + child.size
        if stop > end:
            stop = end
        count = agree_until(content, child.content, first * bs, stop * bs) // bs - first
        if count < child.size:
            return self.split(child, count)
        return child

    def split(self, node: Node, blocks: int) -> Node:
        """Cut off the first `blocks` blocks of `node`; returns the new upper node, `node` is the rest.

        Each copy keeps its Span for the upper part, so a table that holds it finds the lower one by `rest`.
        A queued copy's lower part goes right before its upper part: it is evicted first.
        """
        parent = node.parent
        assert parent is not None  # the root has no blocks to split
        self.num_splits += 1
        self.num_nodes += 1
        upper = Node(parent, node.key, node.content, node.depth, blocks)
        parent.children[node.key] = upper
        node.parent = upper
        node.depth += blocks
        node.size -= blocks
        bs = self.block_size
        node.key = node.content.key(node.depth * bs, self.key_tokens)
        upper.children[node.key] = node
        lower: list[Span] = []
        for head in node.copies:
            tail = Span(node)
            tail.ref = head.ref
            tail.rest = head.rest
            head.rest = tail
            head.node = upper
            if head.ref == 0:
                before = head.before
                tail.before = before
                tail.after = head
                before.after = tail
                head.before = tail
            lower.append(tail)
        upper.copies = node.copies
        node.copies = lower
        return upper

    def remove(self, node: Node) -> None:
        """Drop a node without copies. Its children went before it: some copy of a parent is always nearer the
        back of the queue than each child."""
        assert not node.children
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        self.num_nodes -= 1
