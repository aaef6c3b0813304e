"""Makes the tiers that a configuration describes: those of each engine, and those that engines share."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.config.offload import OffloadConfig, TierConfig
from windtunnel.engine.kv.haulage import Clock, Haulage
from windtunnel.engine.kv.level import Level
from windtunnel.engine.kv.link import Link
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.kv.tier import UNLIMITED_BLOCKS, Tier
from windtunnel.record.columns import OffloadCounts, TierCounts

INFINITE = float("inf")


class Levels:
    """The tiers of all engines with one configuration.

    Attributes:
        made: all levels so far, those of the first engine first.
        offloads: what each engine sees of them, in the order of the engines.
        is_apart: no engine sees what another one does.
    """

    def __init__(
        self,
        config: OffloadConfig,
        block_size: int,
        kv_bytes_per_token: int,
        clock: Clock,
        make_alarm: Callable[[Callable[[], None]], Callable[[float], None]],
    ) -> None:
        """`make_alarm` returns what sets an alarm, given what it calls when it rings."""
        self.made: list[Level] = []
        self.offloads: list[Offload] = []
        self._config = config
        self._block_size = block_size
        self._block_bytes = block_size * kv_bytes_per_token
        self._clock = clock
        self._make_alarm = make_alarm
        tiers = (config.host, config.disk, config.object_store)
        self.is_apart = all(tier is None or tier.scope == "private" for tier in tiers)
        self._haulage = self._new_haulage()
        self._shared: dict[str, Level] = {}

    def for_engine(self) -> Offload:
        """The tiers of one more engine."""
        config = self._config
        if self.is_apart and self.offloads:  # engines that share nothing need not be looked at together
            self._haulage = self._new_haulage()
        levels = [self._level("host", config.host)]
        if config.disk is not None:
            levels.append(self._level("disk", config.disk))
        if config.object_store is not None:
            levels.append(self._level("object_store", config.object_store))
        offload = Offload(levels, self._block_bytes, config.write == "back", self._haulage)
        self.offloads.append(offload)
        return offload

    def counts(self, now_ms: float) -> OffloadCounts:
        """What has happened up to a time, which is not before anything that did, for the record."""
        bs = self._block_size
        counts = OffloadCounts()
        tiers: dict[str, TierCounts] = {}
        for offload in self.offloads:
            offload.haulage.catch_up(now_ms)
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

    def _new_haulage(self) -> Haulage:
        haulage = Haulage(self._clock)
        haulage.set_alarm = self._make_alarm(haulage.ring)
        return haulage

    def _level(self, name: str, config: TierConfig) -> Level:
        if name in self._shared:
            return self._shared[name]
        tier = Tier(config.capacity_blocks(self._block_bytes, UNLIMITED_BLOCKS), self._block_size)
        writes = self._haulage.add(Link(_gb_per_s(config.write_gb_per_s), config.latency_ms))
        reads = self._haulage.add(Link(_gb_per_s(config.read_gb_per_s), config.latency_ms))
        level = Level(name, tier, writes, reads)
        self.made.append(level)
        if config.scope == "shared":
            self._shared[name] = level
        return level


def _gb_per_s(bandwidth: float | str) -> float:
    return INFINITE if isinstance(bandwidth, str) else bandwidth
