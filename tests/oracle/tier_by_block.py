"""A tier that handles blocks one by one: a table of blocks by all their tokens, and a list of those that may go."""

from __future__ import annotations

from windtunnel.workload.content import Content

Lineage = tuple[tuple[int, int], ...]  # the tokens up to the end of a block, as (origin, offset)


def lineages(content: Content, block_size: int) -> list[Lineage]:
    """Of the full blocks of a content, in order."""
    tokens: list[tuple[int, int]] = []
    for origin, start, length in content.runs():
        tokens += [(origin, start + i) for i in range(length)]
    return [tuple(tokens[: end * block_size]) for end in range(1, len(tokens) // block_size + 1)]


class TierByBlock:
    """See `Tier` for what each call means."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.state: dict[Lineage, str] = {}
        self.pins: dict[Lineage, int] = {}
        self.idle: list[Lineage] = []  # the first goes next
        self.evicted_blocks = 0
        self.dropped_blocks = 0

    def _use(self, block: Lineage) -> None:
        if block in self.idle:
            self.idle.remove(block)
        if self.state.get(block) == "resident" and not self.pins.get(block, 0):
            self.idle.append(block)

    def pin(self, content: Content, first: int, end: int) -> None:
        for block in lineages(content, self.block_size)[first:end]:
            self.pins[block] = self.pins.get(block, 0) + 1
            self._use(block)

    def unpin(self, content: Content, first: int, end: int) -> None:
        for block in reversed(lineages(content, self.block_size)[first:end]):
            self.pins[block] -= 1
            if not self.pins[block]:
                self._use(block)

    def reserve(self, content: Content, first: int, end: int) -> list[int]:
        wanted = list(enumerate(lineages(content, self.block_size)))[first:end]
        own = {block for _, block in wanted}
        taken = []
        for place, block in wanted:
            if block in self.state:
                continue
            victims = [other for other in self.idle if other not in own]
            if len(self.state) >= self.num_blocks and victims:
                self.idle.remove(victims[0])
                del self.state[victims[0]]
                self.evicted_blocks += 1
            if len(self.state) < self.num_blocks:
                self.state[block] = "filling"
                taken.append(place)
            else:
                self.dropped_blocks += 1
        for _, block in reversed(wanted):
            if block in self.idle:
                self._use(block)
        return taken

    def fill(self, content: Content, first: int, end: int) -> None:
        for block in reversed(lineages(content, self.block_size)[first:end]):
            assert self.state[block] == "filling"
            self.state[block] = "resident"
            self._use(block)

    def states(self, content: Content, first: int, limit: int) -> list[tuple[str, bool]]:
        """State of each block of [first, limit), and whether it may go."""
        found = lineages(content, self.block_size)[first:limit]
        return [(self.state.get(block, "absent"), block in self.idle) for block in found]
