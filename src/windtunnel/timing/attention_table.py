"""Attention of one layer as it was measured: prompts, decodes, and both in one launch.

A launch with both costs more than two of them: kernels that split long contexts of decodes for speed do not when
prompts are with them. So a mixed one is the sum of its parts plus what the measurements of mixed launches have on top.
Between measurements prompts are linear in the area of the causal triangle that they fill, all else in its own axis.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from windtunnel.timing.base import FloatArray

Rows = list[tuple[int, int, int, int, float]]  # prompt tokens, tokens before them, decodes, their context, time


class AttentionTable:
    """Prices the attention of a pass in one layer, in the unit of the measurements.

    Args:
        rows: (prompt tokens, cached tokens before them, decodes, mean context of those, time). A launch without
            prompts has 0 for both of theirs, one without decodes likewise.

    Raises:
        ValueError: there is no launch of prompts alone, or none of decodes alone; says which.
    """

    def __init__(self, rows: Rows) -> None:
        prompts: dict[int, dict[int, float]] = {}
        decodes: dict[int, dict[int, float]] = {}
        mixed: dict[int, dict[int, dict[int, dict[int, float]]]] = {}
        for tokens, cached, batch, context, time in rows:
            if not batch:
                prompts.setdefault(cached, {})[tokens] = time
            elif not tokens:
                decodes.setdefault(batch, {})[context] = time
            else:
                mixed.setdefault(tokens, {}).setdefault(batch, {}).setdefault(cached, {})[context] = time
        if not prompts or not decodes:
            raise ValueError(f"no launch of {'decodes' if prompts else 'prompts'} alone")
        # By cached tokens: area of the causal triangle at each number of tokens, and the time.
        self._prompts = [
            (cached, [t * (t + 2.0 * cached) for t in sorted(times)], [times[t] for t in sorted(times)])
            for cached, times in sorted(prompts.items())
        ]
        self._decode_batches = sorted(decodes)
        self.contexts: FloatArray = np.array(sorted({c for times in decodes.values() for c in times}), dtype=np.float64)
        self._decodes = np.array([_line(decodes[batch], self.contexts) for batch in self._decode_batches])
        self.floor = min(min(times) for _, _, times in self._prompts)
        # By prompt tokens, then decodes: the grid of what a mixed launch costs on top of its parts.
        self._extra: list[tuple[int, list[tuple[int, _Grid]]]] = [
            (tokens, [(batch, self._grid(tokens, batch, grid)) for batch, grid in sorted(by_batch.items())])
            for tokens, by_batch in sorted(mixed.items())
        ]
        self.most_decodes = self._decode_batches[-1]
        self.most_tokens = max(t for times in prompts.values() for t in times)

    def decodes_at(self, batch: int) -> FloatArray:
        """Time of launches of `batch` decodes at each of `contexts`, their mean."""
        batches = self._decode_batches
        if len(batches) == 1:
            only: FloatArray = self._decodes[0]
            return only
        i = min(max(bisect_right(batches, batch) - 1, 0), len(batches) - 2)
        share = (batch - batches[i]) / (batches[i + 1] - batches[i])
        if batch < batches[0]:
            share = 0.0
        line: FloatArray = self._decodes[i] + share * (self._decodes[i + 1] - self._decodes[i])
        return line

    def prompt(self, tokens: int, cached: int) -> float:
        """Time of a launch for one prompt that computes `tokens` tokens after `cached` ones."""
        area = tokens * (tokens + 2.0 * cached)
        lines = self._prompts
        if len(lines) == 1:
            return _at(lines[0][1], lines[0][2], area)
        i = min(max(bisect_right(lines, cached, key=lambda line: line[0]) - 1, 0), len(lines) - 2)
        (low, _, _), (high, _, _) = lines[i], lines[i + 1]
        share = (cached - low) / (high - low)
        # Of each line its own area, so that both are asked about as many tokens.
        below = _at(lines[i][1], lines[i][2], tokens * (tokens + 2.0 * low))
        above = _at(lines[i + 1][1], lines[i + 1][2], tokens * (tokens + 2.0 * high))
        return max(below + share * (above - below), self.floor)

    def extra(self, tokens: int, cached: float, batch: int, context: float) -> float:
        """What a launch of both costs on top of one of the prompts and one of the decodes; below 0 if it saves."""
        slices = self._extra
        if not slices:
            return 0.0
        i, j, share = _bracket([tokens_ for tokens_, _ in slices], tokens)
        below = _of_batch(slices[i][1], cached, batch, context)
        above = _of_batch(slices[j][1], cached, batch, context) if share else below
        return below + share * (above - below)

    def _grid(self, tokens: int, batch: int, times: dict[int, dict[int, float]]) -> _Grid:
        decodes = self.decodes_at(batch)
        cached = sorted(times)
        contexts = sorted(set.intersection(*(set(row) for row in times.values())))
        alone = np.interp(contexts, self.contexts, decodes).tolist()
        extra = [
            [times[c][k] - self.prompt(tokens, c) - a for k, a in zip(contexts, alone, strict=True)] for c in cached
        ]
        return _Grid(cached, contexts, extra)


class _Grid:
    """Values over cached tokens and context, bilinear, held at the edges of the first and drawn on along the second."""

    __slots__ = ("cached", "contexts", "values")

    def __init__(self, cached: list[int], contexts: list[int], values: list[list[float]]) -> None:
        self.cached = cached
        self.contexts = contexts
        self.values = values

    def at(self, cached: float, context: float) -> float:
        i, j, share = _bracket(self.cached, cached)
        below = _at(self.contexts, self.values[i], context)
        if not share:
            return below
        return below + share * (_at(self.contexts, self.values[j], context) - below)


def _of_batch(grids: list[tuple[int, _Grid]], cached: float, batch: int, context: float) -> float:
    batches = [b for b, _ in grids]
    if batch > batches[-1]:  # in proportion
        return grids[-1][1].at(cached, context) * batch / batches[-1]
    i, j, share = _bracket(batches, batch)
    below = grids[i][1].at(cached, context)
    return below + share * (grids[j][1].at(cached, context) - below) if share else below


def _bracket(axis: list[int], x: float) -> tuple[int, int, float]:
    """The entries around x and how far it is between them; outside, the last one."""
    j = bisect_right(axis, x)
    if j == 0:
        return 0, 0, 0.0
    if j == len(axis):
        return j - 1, j - 1, 0.0
    return j - 1, j, (x - axis[j - 1]) / (axis[j] - axis[j - 1])


def _at(xs: list[float] | list[int], ys: list[float], x: float) -> float:
    """Linear through points, and beyond them along the outer pieces."""
    if len(xs) == 1:
        return ys[0]
    i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return ys[i] + (x - xs[i]) * (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])


def _line(times: dict[int, float], contexts: FloatArray) -> FloatArray:
    known = sorted(times)
    line: FloatArray = np.interp(contexts, np.array(known, dtype=np.float64), [times[c] for c in known])
    return line
