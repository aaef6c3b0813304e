"""Which tokens a sequence holds, as runs, without the tokens.

A run is (origin, start, length): `length` consecutive tokens of an endless stream called `origin`, from
offset `start` on. Two runs hold the same tokens exactly when origin and offsets agree. Inside a sequence a
run is kept as (origin, delta, end) with delta = start - position, so two sequences that agree before
position t agree at t exactly when their (origin, delta) agree there.

Prompts use origins >= 0. The output that request i will generate is the origin `output_origin(i)` < 0, so a
prompt that quotes it (the next turn of a conversation) names it before it exists.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

from windtunnel.errors import InputError

Run: TypeAlias = tuple[int, int, int]  # origin, start, length in tokens
BlockKey: TypeAlias = tuple[int, ...]

NO_SOURCES: list[int] = []  # shared by the contents that quote nobody; never changed


def quoted_outputs(origins: list[int]) -> list[int]:
    """The output origins among these, each once."""
    if not origins or min(origins) >= 0:
        return NO_SOURCES
    return list(dict.fromkeys(origin for origin in origins if origin < 0))


def output_origin(request_index: int) -> int:
    """Origin of the tokens that request number `request_index` (0-based) generates."""
    return -1 - request_index


class Content:
    """An immutable token sequence as a canonical list of runs: neighbours that continue each other are one.

    Attributes:
        length: number of tokens.
        origins, deltas, ends: the runs, in canonical form; nobody changes them.
        sources: output origins (of other requests) among the runs of the prompt.
    """

    __slots__ = ("deltas", "ends", "length", "origins", "sources")

    def __init__(self, origins: list[int], deltas: list[int], ends: list[int], length: int, sources: list[int]) -> None:
        """Takes the canonical runs as they are; `Content.of` builds them from any."""
        self.origins = origins
        self.deltas = deltas
        self.ends = ends
        self.length = length
        self.sources = sources

    @classmethod
    def of(cls, runs: Sequence[Run], output: Run | None = None) -> Content:
        """`runs` is the prompt; `output` is this request's own future output, which is no source."""
        origins: list[int] = []
        deltas: list[int] = []
        ends: list[int] = []
        at = 0
        for origin, start, length in runs:
            if length <= 0:
                if length < 0:
                    raise InputError(f"found a run of {length} tokens, expected at least 0", field="runs")
                continue
            delta = start - at
            at += length
            if origins and origins[-1] == origin and deltas[-1] == delta:
                ends[-1] = at
            else:
                origins.append(origin)
                deltas.append(delta)
                ends.append(at)
        sources = quoted_outputs(origins)
        if output is not None and output[2] > 0:
            origins.append(output[0])
            deltas.append(output[1] - at)
            at += output[2]
            ends.append(at)
        return cls(origins, deltas, ends, at, sources)

    def key(self, at: int, size: int) -> BlockKey:
        """Identity of the `size` tokens at position `at`, among contents that agree before `at`."""
        ends = self.ends
        i = bisect_right(ends, at)
        stop = at + size
        if ends[i] >= stop:
            return (self.origins[i], self.deltas[i])
        parts: list[int] = []
        while ends[i] < stop:
            parts.append(self.origins[i])
            parts.append(self.deltas[i])
            parts.append(ends[i])
            i += 1
        parts.append(self.origins[i])
        parts.append(self.deltas[i])
        return tuple(parts)

    def runs(self) -> list[Run]:
        """The runs as (origin, start, length)."""
        at = 0
        result: list[Run] = []
        for origin, delta, end in zip(self.origins, self.deltas, self.ends, strict=True):
            result.append((origin, delta + at, end - at))
            at = end
        return result


def agree_until(a: Content, b: Content, at: int, limit: int) -> int:
    """First position in [at, limit) where `a` and `b` differ, else `limit`; they must agree before `at`."""
    if a is b or at >= limit:
        return limit
    a_ends = a.ends
    b_ends = b.ends
    i = bisect_right(a_ends, at)
    j = bisect_right(b_ends, at)
    while at < limit:
        if a.origins[i] != b.origins[j] or a.deltas[i] != b.deltas[j]:
            return at
        a_end = a_ends[i]
        b_end = b_ends[j]
        if a_end <= b_end:
            at = a_end
            i += 1
            if a_end == b_end:
                j += 1
        else:
            at = b_end
            j += 1
    return limit
