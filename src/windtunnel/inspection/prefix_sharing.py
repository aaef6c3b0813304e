"""How much of its prompts a cache without limits would serve, from their content alone.

A token is shared if an earlier request of the trace, its output included, began with everything up to and including
it. The sum over all requests does not depend on their order: it is what the prompts have in total less what they have
that is different. It knows no engine: real caches forget, and share whole blocks only.
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.workload.content import Content
from windtunnel.workload.session import Workload


class PrefixSharing(NamedTuple):
    """Blocks of all prompts, the partial ones at their ends included.

    Attributes:
        block_size: tokens per block.
        blocks: blocks of all prompts.
        shared_blocks: blocks that an earlier request had behind the same beginning.
    """

    block_size: int
    blocks: int
    shared_blocks: int

    @property
    def hit_ratio(self) -> float:
        """Share of the blocks that a cache without limits would serve."""
        return self.shared_blocks / self.blocks if self.blocks else 0.0


class _Edge:
    """A run of content from where its node ends to `end`, and what may follow it by (origin, delta)."""

    __slots__ = ("children", "end")

    def __init__(self, end: int, children: dict[tuple[int, int], _Edge]) -> None:
        self.end = end
        self.children = children


def prefix_sharing(workload: Workload, block_size: int) -> PrefixSharing:
    """Count the shared blocks of a workload; a cost of a few steps for each run of a prompt."""
    root: dict[tuple[int, int], _Edge] = {}
    blocks = 0
    shared_blocks = 0
    for request in range(workload.num_requests):
        tokens = workload.input_tokens[request]
        known = min(_insert(root, workload.content(request, workload.output_tokens[request])), tokens)
        blocks += -(-tokens // block_size)
        shared_blocks += -(-tokens // block_size) if known == tokens else known // block_size
    return PrefixSharing(block_size, blocks, shared_blocks)


def _insert(node: dict[tuple[int, int], _Edge], content: Content) -> int:
    """Add a content to the tree; returns how many of its tokens were there already."""
    known = 0
    place = 0
    num_runs = len(content.ends)
    while place < num_runs:
        key = (content.origins[place], content.deltas[place])
        end = content.ends[place]
        edge = node.get(key)
        if edge is None:
            break
        if end < edge.end:  # cut the edge where this content leaves it
            edge.children = {key: _Edge(edge.end, edge.children)}
            edge.end = end
        known = edge.end
        node = edge.children
        place += known == end
    for rest in range(place, num_runs):
        edge = _Edge(content.ends[rest], {})
        node[(content.origins[rest], content.deltas[rest])] = edge
        node = edge.children
    return known
