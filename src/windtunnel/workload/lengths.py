"""Lengths, numbers of turns and delays that differ from request to request: draws from distributions.

Decides how a `Distribution` becomes numbers. A number beyond a bound becomes that bound, as in GuideLLM's and the
Dynamo simulator's generators; lengths and counts are rounded to the nearest whole number and at least 1. Every call
takes as many draws of its stream as it gives numbers, or more, but only of its own stream.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log, log1p, sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windtunnel.config.distribution import Distribution
from windtunnel.errors import InputError
from windtunnel.workload.session import MAX_TOKENS

IntColumn: TypeAlias = npt.NDArray[np.int64]
FloatColumn: TypeAlias = npt.NDArray[np.float64]
Generator: TypeAlias = np.random.RandomState


def draw_counts(
    value: int | Distribution,
    count: int,
    rng: Generator,
    *,
    field: str,
    observed: Callable[[str], IntColumn] | None = None,
) -> IntColumn:
    """`count` whole numbers of at least 1.

    Args:
        value: the one number that all are, for which nothing is drawn, or what they are drawn from.
        rng: the stream.
        field: where the value stands in the configuration, for errors.
        observed: the lengths in the file of an empirical distribution.

    Raises:
        InputError: a number is larger than any length may be, or a file cannot be read.
    """
    if not isinstance(value, Distribution):
        return np.full(count, value, dtype=np.int64)
    low = max(1, ceil(value.min or 0.0))
    high = MAX_TOKENS if value.max is None else min(MAX_TOKENS, floor(value.max))
    if high < low:
        raise InputError(f"found no whole number from {low} to {value.max:g}", field=field)
    if value.kind == "uniform":
        return np.minimum(low + (rng.random_sample(count) * (high - low + 1)).astype(np.int64), high)
    if value.kind == "empirical":
        assert observed is not None
        assert value.path is not None
        lengths = observed(value.path)
        drawn = lengths[pick(len(lengths), count, rng)]
        return np.clip(drawn, low, high)
    numbers = _draw(value, count, rng)
    if value.max is None and numbers.max(initial=0.0) > MAX_TOKENS:
        raise InputError(f"drew {numbers.max():g}, expected at most {MAX_TOKENS}: give a max", field=field)
    return np.rint(np.clip(numbers, low, high)).astype(np.int64)


def draw_delays_ms(value: float | Distribution, count: int, rng: Generator) -> FloatColumn:
    """`count` delays in ms, of at least 0; arguments as for `draw_counts`."""
    if not isinstance(value, Distribution):
        return np.full(count, value, dtype=np.float64)
    if value.kind == "uniform":
        low, high = value.min or 0.0, value.max or 0.0
        return low + rng.random_sample(count) * (high - low)
    return np.clip(_draw(value, count, rng), value.min or 0.0, value.max)


def pick(size: int, count: int, rng: Generator) -> IntColumn:
    """`count` places in a list of `size`, each as likely as any other."""
    return np.minimum((rng.random_sample(count) * size).astype(np.int64), size - 1)


def _draw(value: Distribution, count: int, rng: Generator) -> FloatColumn:
    mean = value.mean or 0.0
    match value.kind:
        case "normal":
            return rng.normal(mean, value.std or 0.0, count)
        case "lognormal":
            if value.median is not None:
                return rng.lognormal(log(value.median), value.sigma or 0.0, count)
            variance = log1p(((value.std or 0.0) / mean) ** 2)  # of the logarithm
            return rng.lognormal(log(mean) - variance / 2.0, sqrt(variance), count)
        case "exponential":
            return rng.exponential(mean, count)
        case "geometric":
            return rng.geometric(1.0 / mean, count).astype(np.float64)
    raise AssertionError(value.kind)
