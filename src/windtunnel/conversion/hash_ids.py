"""Prompts as block hash ids: which number each block of a prompt gets, whatever the prompts were made of.

Decides the ids, so that two blocks have the same id exactly when they hold the same tokens; the last block of a prompt
may be partial, and has the id of a block that begins with it. Where the prompts came from hash ids of blocks that are a
multiple of those asked for, and nothing is to be renumbered, they are those ids again. Else ids count from 0 in the
order in which they appear. Two prompts that part inside a block have different ids there; what they share of it is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from windtunnel.workload.content import Run

Piece = tuple[int, int, int]  # origin, start, length


class HashIds:
    """Ids for prompts that are known in advance.

    Attributes:
        keeps_blocks: every block of every prompt is a block of the source, or lies inside one: nothing is lost.
    """

    def __init__(self, prompts: Callable[[], Iterable[Sequence[Run]]], block_size: int, *, renumber: bool) -> None:
        """
        Args:
            prompts: gives the runs of all prompts that ids will be asked for.
            block_size: tokens a hash id stands for.
            renumber: ids count from 0, whatever they were.
        """
        self.block_size = block_size
        self.keeps_blocks = all(_is_aligned(runs, block_size) for runs in prompts())
        self._keeps_ids = self.keeps_blocks and not renumber
        self._number: dict[int | tuple[Piece, ...], int] = {}
        # by beginnings of blocks, without the length of their last piece: the block in which that piece is longest
        self._longest: dict[tuple[object, ...], tuple[int, int, tuple[Piece, ...]]] = {}
        if not self.keeps_blocks:
            for runs in prompts():
                for block in self._blocks(runs):
                    self._learn(block)

    def ids(self, runs: Sequence[Run]) -> list[int]:
        """The ids of one of the prompts."""
        size = self.block_size
        number = self._number
        if self.keeps_blocks:
            ids = [block for _, start, length in runs for block in range(start // size, -(-(start + length) // size))]
            return ids if self._keeps_ids else [number.setdefault(block, len(number)) for block in ids]
        return [number.setdefault(self._whole(block), len(number)) for block in self._blocks(runs)]

    def _blocks(self, runs: Sequence[Run]) -> Iterable[tuple[Piece, ...]]:
        pieces: list[Piece] = []
        room = self.block_size
        for origin, start, length in runs:
            while length:
                taken = min(length, room)
                pieces.append((origin, start, taken))
                start += taken
                length -= taken
                room -= taken
                if not room:
                    yield tuple(pieces)
                    pieces = []
                    room = self.block_size
        if pieces:
            yield tuple(pieces)

    def _learn(self, block: tuple[Piece, ...]) -> None:
        tokens = sum(length for _, _, length in block)
        for place, (origin, start, length) in enumerate(block):
            key = (*block[:place], origin, start)
            known = self._longest.get(key)
            if known is None or known[:2] < (length, tokens):
                self._longest[key] = (length, tokens, block)

    def _whole(self, block: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """The block that a partial one is the beginning of, as far as there is one."""
        while sum(length for _, _, length in block) < self.block_size:
            origin, start, _ = block[-1]
            longer = self._longest[(*block[:-1], origin, start)][2]
            if longer == block:
                break
            block = longer
        return block


def _is_aligned(runs: Sequence[Run], size: int) -> bool:
    """Whether the runs are whole blocks of origin 0, the last one perhaps cut."""
    last = len(runs) - 1
    return all(
        origin == 0 and start % size == 0 and (length % size == 0 or place == last)
        for place, (origin, start, length) in enumerate(runs)
    )
