"""What sessions have in common: groups with the same beginning of every prompt, some more popular than others.

Decides how long the prefix of each group is and which group a session belongs to. The k-th group has a weight of
k^-s: Zipf's law over a finite number of groups (Breslau et al., Web Caching and Zipf-like Distributions, INFOCOM
1999); s = 0 is uniform. Tenants with a system prompt each, shared documents and tool definitions are such groups.
"""

from __future__ import annotations

import numpy as np

from windtunnel.workload.lengths import IntColumn
from windtunnel.workload.streams import Streams


def draw_groups(num_groups: int, exponent: float, sessions: int, streams: Streams) -> IntColumn:
    """The group of each session, from 0, the most popular one, on.

    Args:
        num_groups: number of groups; with 0 every session is in group 0.
        exponent: how fast popularity falls.
        sessions: number of sessions.
        streams: where the draws come from.
    """
    draws = streams.generator("prefix-groups").random_sample(sessions)
    if not exponent:
        return (draws * num_groups).astype(np.int64)
    ends = np.cumsum([float(rank) ** -exponent for rank in range(1, num_groups + 1)])
    groups: IntColumn = np.searchsorted(ends, draws * ends[-1], side="right").astype(np.int64)
    return np.minimum(groups, num_groups - 1)
