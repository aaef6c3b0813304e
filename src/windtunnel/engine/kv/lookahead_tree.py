"""A prefix tree whose blocks are known by one more token than they hold.

vLLM 0.33 hashes a block together with the token after it when a draft model shares the cache: that model's KV of the
block's last position depends on it. So a block is found only by who goes on with the same token. Everything else is
as in `PrefixTree`.
"""

from __future__ import annotations

from windtunnel.engine.kv.prefix_tree import NOTHING_CACHED, Match, Node, PrefixTree
from windtunnel.workload.content import Content, agree_until


class LookaheadTree(PrefixTree):
    """Cached blocks by content and next token; whoever asks knows the token after each block that is asked for."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.key_tokens = block_size + 1

    def match(self, content: Content, limit_blocks: int) -> Match:
        path: list[Node] = []
        bs = self.block_size
        node = self.root
        depth = 0
        count = 0
        idle_blocks = 0
        while depth < limit_blocks:
            child = node.children.get(content.key(depth * bs, bs + 1))
            if child is None:
                break
            end = min(depth + child.size, limit_blocks)
            end = (agree_until(content, child.content, depth * bs, end * bs + 1) - 1) // bs
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
        bs = self.block_size
        key = content.key(first * bs, bs + 1)
        child = node.children.get(key)
        if child is None:
            child = Node(node, key, content, first, end - first)
            node.children[key] = child
            self.num_nodes += 1
            return child
        stop = min(first + child.size, end)
        count = (agree_until(content, child.content, first * bs, stop * bs + 1) - 1) // bs - first
        return self.split(child, count) if count < child.size else child
