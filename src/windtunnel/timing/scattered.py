"""Decode prices between scattered measurements (batch, context, ms), none of them on a grid.

The shape comes from the physics of decoding, ms = a + b * batch + c * batch * context with nothing negative, fitted in
relative terms; how far each measurement is from that is interpolated between the points (radial basis functions
over the logarithms of batch and context), so that every measurement is met exactly. Beyond the points the distance
at the edge is held and the physics goes on.
Source of the trend: what serving planners fit to such sweeps; of the interpolation: Hardy's |r| kernel.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from windtunnel.timing.base import FloatArray

KNOTS_PER_OCTAVE = 4


class ScatteredDecodes:
    """A surface through measured decode passes.

    Args:
        batches, contexts, ms: requests in the batch, their mean context in tokens, and the duration of the pass; all
            above 0, of one length of at least 1, no two of the same place.
    """

    def __init__(self, batches: FloatArray, contexts: FloatArray, ms: FloatArray) -> None:
        self.trend = _nonnegative_fit(np.stack([np.ones_like(ms), batches, batches * contexts], axis=1), ms)
        self._low = np.array([np.log2(batches.min()), np.log2(contexts.min())])
        self._high = np.array([np.log2(batches.max()), np.log2(contexts.max())])
        self._places = np.stack([np.log2(batches), np.log2(contexts)], axis=1)
        self._weights, self._mean = _rbf_weights(self._places, np.log(ms / self._trend_ms(batches, contexts)))
        octave = np.arange(np.floor(self._low[1] * KNOTS_PER_OCTAVE), np.ceil(self._high[1] * KNOTS_PER_OCTAVE) + 1)
        self.knots: FloatArray = np.unique(np.concatenate([2.0 ** (octave / KNOTS_PER_OCTAVE), contexts]))

    def at(self, batch: int, contexts: FloatArray) -> FloatArray:
        """Durations in ms of passes of `batch` decodes at these mean contexts."""
        batches = np.full(len(contexts), float(batch))
        places = np.clip(np.stack([np.log2(batches), np.log2(contexts)], axis=1), self._low, self._high)
        distances = np.sqrt(((places[:, None, :] - self._places[None, :, :]) ** 2).sum(axis=2))
        ratio: FloatArray = np.exp(self._mean - distances @ self._weights)
        return ratio * self._trend_ms(batches, contexts)

    def _trend_ms(self, batches: FloatArray, contexts: FloatArray) -> FloatArray:
        a, b, c = self.trend
        result: FloatArray = a + b * batches + c * batches * contexts
        return result


def _nonnegative_fit(columns: FloatArray, ms: FloatArray) -> FloatArray:
    """Coefficients, none below 0, that fit best in relative terms: of few columns, so all subsets are tried."""
    weighted = columns / ms[:, None]
    best = np.zeros(columns.shape[1])
    least = np.inf
    for size in range(1, columns.shape[1] + 1):
        for subset in combinations(range(columns.shape[1]), size):
            chosen = weighted[:, subset]
            scale = np.linalg.norm(chosen, axis=0)
            fit = np.linalg.lstsq(chosen / scale, np.ones(len(ms)), rcond=None)[0] / scale
            error = float(((chosen @ fit - 1.0) ** 2).sum())
            if (fit >= 0.0).all() and error < least:
                least = error
                best = np.zeros(columns.shape[1])
                best[list(subset)] = fit
    return best


def _rbf_weights(places: FloatArray, values: FloatArray) -> tuple[FloatArray, float]:
    """Weights w, summing to 0, and a mean m with values = m - sum of w * distance at every place."""
    n = len(places)
    distances = np.sqrt(((places[:, None, :] - places[None, :, :]) ** 2).sum(axis=2))
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = -distances
    system[:n, n] = 1.0
    system[n, :n] = 1.0
    solution = np.linalg.solve(system, np.append(values, 0.0))
    return solution[:n], float(solution[n])
