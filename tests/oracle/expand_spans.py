"""Writes out a pool of spans block by block, so that it can be compared with one that keeps single blocks.

Where the tree's nodes begin and end is not observable, so nothing here depends on it. While it walks, it checks
what must hold between the tree, the copies and the free queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from windtunnel.engine.kv.block_pool import BlockPool
from windtunnel.engine.kv.prefix_tree import Node
from windtunnel.workload.content import Content

ChainOf: TypeAlias = Callable[[Content, int], list[int]]  # hashes of at least the first n blocks of a content


def queued_hashes(pool: BlockPool, chain_of: ChainOf) -> list[int]:
    """Hashes of the free blocks that have one, the next to be evicted first."""
    hashes: list[int] = []
    unhashed = 0
    span = pool.queue.after
    while span is not pool.queue:
        node = span.node
        assert span.ref == 0
        assert span in node.copies
        assert span.before.after is span
        if node.parent is pool.unhashed:
            unhashed += node.size
        else:
            hashes += reversed(chain_of(node.content, node.depth + node.size)[node.depth : node.depth + node.size])
        span = span.after
    assert len(hashes) == pool.free_blocks - pool.blank - unhashed
    return hashes


def cached_copies(pool: BlockPool, chain_of: ChainOf) -> dict[int, list[int]]:
    """By hash, how often each copy of a block is held, the copy that a hit takes first."""
    copies: dict[int, list[int]] = {}
    nodes: list[Node] = [pool.tree.root]
    visited = 0
    while nodes:
        node = nodes.pop()
        for key, child in node.children.items():
            assert child.parent is node
            assert child.key == key == child.content.key(child.depth * pool.block_size, pool.tree.key_tokens)
            assert child.depth == node.depth + node.size
            assert child.size > 0
            assert child.copies
            assert all(span.node is child for span in child.copies)
            for block_hash in chain_of(child.content, child.depth + child.size)[child.depth :][: child.size]:
                assert block_hash not in copies
                copies[block_hash] = [span.ref for span in child.copies]
            nodes.append(child)
            visited += 1
    assert visited + len(pool.unhashed.children) == pool.tree.num_nodes
    return dict(sorted(copies.items()))
