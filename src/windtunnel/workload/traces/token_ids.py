"""Token ids as content: prompts that begin with the same ids get the same runs as far as they agree.

Decides which numbers stand for the tokens of a prompt, from a tree of everything that was read before. What is new in a
prompt becomes one run of origin 0, whatever its ids are; what it has in common with an earlier prompt, or with an
earlier prompt and the output that followed it, are the runs of that one. Outputs are given runs likewise. So a cache
hits exactly the real shared prefixes, at a few numbers a prompt. Equal ids behind different prefixes are different
runs: no prefix cache could use them either.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from windtunnel.workload.content import Run, output_origin

_ID_BYTES = 4


class _Node:
    """A stretch of ids, and what may follow it by first id."""

    __slots__ = ("children", "ids", "origin", "start")

    def __init__(self, ids: bytes, origin: int, start: int) -> None:
        self.ids = ids
        self.origin = origin
        self.start = start
        self.children: dict[bytes, _Node] = {}


class TokenTree:
    """Gives out runs for token ids. It holds every distinct stretch once, until it is dropped after loading."""

    def __init__(self) -> None:
        self._root = _Node(b"", 0, 0)
        self._fresh = 0  # first offset of origin 0 that is not given out

    def prompt(self, ids: Sequence[int]) -> list[Run]:
        """The runs of a prompt.

        Args:
            ids: from 0 to 2**32 - 1, at least one.
        """
        packed = array("I", ids).tobytes()
        runs = self._insert(packed, 0, self._fresh, len(packed))
        self._fresh += len(ids)
        return runs

    def output(self, prompt_ids: Sequence[int], output_ids: Sequence[int], request: int) -> list[Run]:
        """The runs of what request number `request` generates behind its prompt, which was given runs.

        Without ids of the prompt, outputs are compared with each other alone.
        """
        packed = array("I", prompt_ids).tobytes() + array("I", output_ids).tobytes()
        runs = self._insert(packed, output_origin(request), 0, len(prompt_ids) * _ID_BYTES)
        return _from(runs, len(prompt_ids))

    def _insert(self, packed: bytes, origin: int, start: int, output_at: int) -> list[Run]:
        """Walk along known ids and hang the rest below them, as ids of `origin` from `start` on.

        `output_at` is the byte from which on the rest counts from `start`; a prompt's rest does from where it begins.
        """
        node = self._root
        at = 0
        runs: list[Run] = []
        while at < len(packed):
            child = node.children.get(packed[at : at + _ID_BYTES])
            if child is None:
                first = start + max(0, at - output_at) // _ID_BYTES
                node.children[packed[at : at + _ID_BYTES]] = _Node(packed[at:], origin, first)
                runs.append((origin, first, (len(packed) - at) // _ID_BYTES))
                break
            common = _common_bytes(child.ids, packed, at)
            if common < len(child.ids):
                _split(child, common)
            runs.append((child.origin, child.start, common // _ID_BYTES))
            at += common
            node = child
        return runs


def _from(runs: list[Run], at: int) -> list[Run]:
    """The runs from a position on."""
    found: list[Run] = []
    for origin, start, length in runs:
        skipped = min(at, length)
        if skipped < length:
            found.append((origin, start + skipped, length - skipped))
        at -= skipped
    return found


def _common_bytes(ids: bytes, packed: bytes, at: int) -> int:
    """How many bytes of `ids`, in whole ids, `packed` has from `at` on; at least one id."""
    low, high = _ID_BYTES, min(len(ids), len(packed) - at)
    if packed[at : at + high] == ids[:high]:
        return high
    while high - low > _ID_BYTES:  # the first `low` bytes agree, the first `high` do not
        middle = (low + high) // 2 // _ID_BYTES * _ID_BYTES
        if packed[at + low : at + middle] == ids[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _split(node: _Node, keep: int) -> None:
    """Cut a node after `keep` bytes; what was below it is below the second part."""
    rest = _Node(node.ids[keep:], node.origin, node.start + keep // _ID_BYTES)
    rest.children = node.children
    node.children = {rest.ids[:_ID_BYTES]: rest}
    node.ids = node.ids[:keep]
