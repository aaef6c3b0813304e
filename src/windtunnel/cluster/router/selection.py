"""How a router picks one of several workers from what each would cost."""

from __future__ import annotations

from math import exp
from random import Random

import numpy as np
import numpy.typing as npt


def choose(costs: npt.NDArray[np.float64], temperature: float, stream: Random, tie_break_random: bool) -> int:
    """The place of the worker that is chosen, among at least one.

    At temperature 0 the cheapest; of several the first, or a draw. Above, p ~ exp(-(cost - min) / ((max - min) *
    temperature)), after Dynamo's router: the gap between two workers does not matter, only their order.
    """
    if temperature:
        return _draw(costs.tolist(), temperature, stream)
    place = int(costs.argmin())
    if tie_break_random:
        equal = (costs == costs[place]).nonzero()[0]
        if len(equal) > 1:
            place = int(equal[int(stream.random() * len(equal))])
    return place


def _draw(costs: list[float], temperature: float, stream: Random) -> int:
    least = min(costs)
    spread = (max(costs) - least) * temperature
    if not spread:
        return int(stream.random() * len(costs))
    weights = [exp((least - cost) / spread) for cost in costs]
    mark = stream.random() * sum(weights)
    reached = 0.0
    for place, weight in enumerate(weights):
        reached += weight
        if mark < reached:
            return place
    return len(costs) - 1
