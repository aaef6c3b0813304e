"""The part of the summary that says what KV tiers did, for simulations that have any."""

from __future__ import annotations

import numpy as np

from windtunnel.record.columns import OffloadCounts, Record
from windtunnel.report.distribution import describe


def offload_facts(record: Record, offload: OffloadCounts) -> dict[str, int | float]:
    """What KV offload did, over all requests; ratios are shares of the tokens that admissions asked the tiers for."""
    transfer_ms = np.asarray(record.requests.transfer_ms, dtype=np.float64)
    statistics = describe(transfer_ms[transfer_ms > 0.0])
    facts: dict[str, int | float] = {
        "offload_lookups": offload.lookups,
        "offload_lookup_tokens": offload.lookup_tokens,
        "offload_waits": offload.waits,
        "offload_fallbacks": offload.fallbacks,
        "offload_cancelled": offload.cancelled,
        "restored_requests": len(offload.restored_tokens),
        "restored_tokens": sum(map(sum, offload.restored_tokens.values())),
    }
    for statistic in ("mean", "median", "p90", "max"):
        facts[f"{statistic}_transfer_ms"] = statistics[statistic]
    for tier in offload.tiers:
        facts[f"{tier.name}_hit_tokens"] = tier.hit_tokens
        facts[f"{tier.name}_hit_ratio"] = tier.hit_tokens / max(offload.lookup_tokens, 1)
        facts[f"{tier.name}_stored_tokens"] = tier.stored_tokens
        facts[f"{tier.name}_evicted_tokens"] = tier.evicted_tokens
        facts[f"{tier.name}_dropped_tokens"] = tier.dropped_tokens
        facts[f"{tier.name}_written_bytes"] = tier.written_bytes
        facts[f"{tier.name}_read_bytes"] = tier.read_bytes
        facts[f"{tier.name}_write_busy_ms"] = tier.write_busy_ms
        facts[f"{tier.name}_read_busy_ms"] = tier.read_busy_ms
    return facts
