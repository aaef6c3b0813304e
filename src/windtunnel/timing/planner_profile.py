"""A sweep of a real deployment as Dynamo's planner records it: single prompts, and decodes at several loads.

It stores no batch sizes: a decode point is a share of the KV cache at a mean context, so the batch is their quotient.
The times are what a client saw. They contain the engine's and the host's overhead, so nothing is added to them; the
prompt's also contain the client and HTTP.
Source: the arrays of `selected_{prefill,decode}_interpolation/raw_data.npz` and their JSON twins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.decode_curve import DecodeCurve, linear_curve
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.mixed_pass import mixed_pass_ms
from windtunnel.timing.prefill_line import PrefillLine
from windtunnel.timing.scattered import ScatteredDecodes
from windtunnel.timing.tabulated import FLOOR_MS

PREFILL_ARRAYS = ("prefill_isl", "prefill_ttft")
DECODE_ARRAYS = ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens")
FASTER_BY = 0.95  # a pass this much shorter than one of fewer decodes is no noise


class PlannerProfile:
    """Prices passes from such a sweep.

    Args:
        arrays: prefill_isl (tokens) and prefill_ttft (ms), of one length; x_kv_usage (share of the cache),
            y_context_length (mean tokens) and z_itl (ms), of one length; max_kv_tokens, one number.
        source: where they came from, for errors.

    Raises:
        InputError: the arrays make no sense.
    """

    def __init__(self, arrays: Mapping[str, FloatArray], source: str) -> None:
        lengths, ttfts = _columns(arrays, PREFILL_ARRAYS, source)
        usage, contexts, itl = _columns(arrays, DECODE_ARRAYS[:3], source)
        capacity = arrays["max_kv_tokens"]
        if capacity.size != 1 or not capacity.ravel()[0] >= 1:
            raise InputError("expected one number of at least 1", source=source, field="max_kv_tokens")
        if len(np.unique(lengths)) < 2:
            raise InputError("expected at least 2 different lengths", source=source, field="prefill_isl")
        self.prompt_tokens, self.prompt_ms = _means_by(lengths, ttfts)
        self.prefill = PrefillLine(self.prompt_tokens, self.prompt_ms)
        batches = np.maximum(np.rint(usage * capacity.ravel()[0] / contexts), 1.0)
        batches, contexts, itl = _one_at_a_place(batches, contexts, itl)
        kept = _before_the_engine_was_full(batches, contexts, itl)
        self.batches, self.contexts, self.itl_ms = batches[kept], contexts[kept], itl[kept]
        self.decodes = ScatteredDecodes(self.batches, self.contexts, self.itl_ms)
        self.smallest_pass_ms = float(self.decodes.at(1, self.contexts.min(keepdims=True))[0])
        self.measured = MeasuredRange(
            decodes=(int(self.batches.min()), int(self.batches.max())),
            context_tokens=(float(self.contexts.min()), float(self.contexts.max())),
            pass_tokens=(int(lengths.min()), int(lengths.max())),
        )
        self.notes = []
        if not kept.all():
            dropped = ", ".join(f"{int(b)} at {c:g}" for b, c in zip(batches[~kept], contexts[~kept], strict=True))
            self.notes.append(
                f"{source}: left out decodes that more requests did not slow down: the engine ran fewer ({dropped})"
            )

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        """Linear between the contexts that were measured and some in between; a longer one never costs less."""
        knots = self.decodes.knots
        prices = np.maximum.accumulate(self.decodes.at(num_decodes, knots))
        return linear_curve(knots * num_decodes, prices, FLOOR_MS)

    def price_prompts_ms(self, shape: PassShape, decode_ms: float) -> float:
        prompts_ms = max(self.prefill.price_ms(shape.chunk_starts, shape.chunk_tokens), FLOOR_MS)
        if not shape.num_decodes:
            return prompts_ms
        return mixed_pass_ms(prompts_ms, decode_ms, self.smallest_pass_ms)


def _columns(arrays: Mapping[str, FloatArray], names: tuple[str, ...], source: str) -> list[FloatArray]:
    """The arrays of these names, checked: one axis, one length, everything finite and above 0."""
    columns = [arrays[name] for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.ndim != 1 or len(column) != len(columns[0]) or not len(column):
            raise InputError(
                f"found shape {column.shape}, expected one axis as long as {names[0]}: {columns[0].shape}",
                source=source,
                field=name,
            )
        if not (np.isfinite(column).all() and (column > 0).all()):
            bad = int(np.flatnonzero(~(np.isfinite(column) & (column > 0)))[0])
            raise InputError(f"entry {bad} is {column[bad]:g}, expected a number above 0", source=source, field=name)
    return columns


def _means_by(keys: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The distinct keys in order, and the mean of the values of each."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(inverse, weights=values) / np.bincount(inverse)


def _one_at_a_place(
    batches: FloatArray, contexts: FloatArray, itl: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The points by context and batch; where several are at one place, their mean."""
    places, inverse = np.unique(np.stack([contexts, batches], axis=1), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    return places[:, 1], places[:, 0], np.bincount(inverse, weights=itl) / np.bincount(inverse)


def _before_the_engine_was_full(batches: FloatArray, contexts: FloatArray, itl: FloatArray) -> NDArray[np.bool_]:
    """Which points to believe: at one context more decodes take longer.

    Where they do not, the engine's own limit of running requests was below the load, and the batch that was really
    computed is unknown. The first point at the limit cannot be told from the others, and stays.
    """
    kept = np.ones(len(itl), dtype=np.bool_)
    for context in np.unique(contexts):
        rows = np.flatnonzero(contexts == context)
        slowest = np.maximum.accumulate(itl[rows])
        kept[rows[1:]] = np.logical_and.accumulate(itl[rows[1:]] >= slowest[:-1] * FASTER_BY)
    return kept
