"""Makes the tiers that a configuration describes: those of each engine, and those that engines share."""

from __future__ import annotations

from windtunnel.config.offload import OffloadConfig, TierConfig
from windtunnel.engine.kv.link import Link
from windtunnel.engine.kv.offload import Level, Offload, Traffic
from windtunnel.engine.kv.tier import UNLIMITED_BLOCKS, Tier
from windtunnel.record.columns import OffloadCounts, TierCounts

INFINITE = float("inf")


class Levels:
    """The tiers of all engines with one configuration.

    Attributes:
        made: all levels so far, those of the first engine first.
        offloads: what each engine sees of them, in the order of the engines.
    """

    def __init__(self, config: OffloadConfig, block_size: int, kv_bytes_per_token: int, traffic: Traffic) -> None:
        self.made: list[Level] = []
        self.offloads: list[Offload] = []
        self._config = config
        self._block_size = block_size
        self._block_bytes = block_size * kv_bytes_per_token
        self._traffic = traffic
        self._shared: dict[str, Level] = {}

    def for_engine(self) -> Offload:
        """The tiers of one more engine."""
        config = self._config
        levels = [self._level("host", config.host)]
        if config.disk is not None:
            levels.append(self._level("disk", config.disk))
        if config.object_store is not None:
            levels.append(self._level("object_store", config.object_store))
        offload = Offload(levels, self._block_bytes, config.write == "back", self._traffic)
        self.offloads.append(offload)
        return offload

    def counts(self) -> OffloadCounts:
        """What has happened so far, for the record."""
        bs = self._block_size
        counts = OffloadCounts()
        tiers: dict[str, TierCounts] = {}
        for offload in self.offloads:
            offload.catch_up()
        for level in self.made:
            tier = tiers.get(level.name)
            if tier is None:
                tier = tiers[level.name] = TierCounts(level.name)
                counts.tiers.append(tier)
            tier.hit_tokens += level.hit_blocks * bs
            tier.stored_tokens += level.stored_blocks * bs
            tier.evicted_tokens += level.tier.evicted_blocks * bs
            tier.dropped_tokens += level.tier.dropped_blocks * bs
            tier.written_bytes += level.writes.carried_bytes
            tier.read_bytes += level.reads.carried_bytes
            tier.write_busy_ms += level.writes.busy_ms
            tier.read_busy_ms += level.reads.busy_ms
        for offload in self.offloads:
            counts.lookups += offload.lookups
            counts.lookup_tokens += offload.lookup_blocks * bs
            counts.waits += offload.waits
            counts.fallbacks += offload.fallbacks
            counts.cancelled += offload.cancelled
            for number, blocks in offload.restored.items():
                counts.restored_tokens[number] = [count * bs for count in blocks]
        return counts

    def _level(self, name: str, config: TierConfig) -> Level:
        if name in self._shared:
            return self._shared[name]
        tier = Tier(config.capacity_blocks(self._block_bytes, UNLIMITED_BLOCKS), self._block_size)
        writes = Link(_gb_per_s(config.write_gb_per_s), config.latency_ms)
        reads = Link(_gb_per_s(config.read_gb_per_s), config.latency_ms)
        level = Level(name, tier, writes, reads, config.scope == "shared")
        self.made.append(level)
        if config.scope == "shared":
            self._shared[name] = level
        return level


def _gb_per_s(bandwidth: float | str) -> float:
    return INFINITE if isinstance(bandwidth, str) else bandwidth
