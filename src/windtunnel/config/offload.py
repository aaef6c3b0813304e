"""Fields of KV offload: the memory tiers behind an engine's GPU memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from windtunnel.config.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, RuleError, Section

Bandwidth = PositiveFloat | Literal["unlimited"]  # in 10**9 bytes/s


class TierConfig(Section):
    """One tier: how much it holds, and how fast it is."""

    num_blocks: NonNegativeInt | None = Field(default=None, description="capacity in KV blocks, or pages")
    size_gb: NonNegativeFloat | None = Field(default=None, description="capacity in 10^9 bytes, instead of blocks")
    scope: Literal["private", "shared"] = Field(
        default="private", description="one for each engine, or one for all, whose bandwidth they share too"
    )
    write_gb_per_s: Bandwidth = Field(default="unlimited", description="bandwidth into the tier in 10^9 bytes/s")
    read_gb_per_s: Bandwidth = Field(default="unlimited", description="bandwidth out of the tier in 10^9 bytes/s")
    latency_ms: NonNegativeFloat = Field(default=0.0, description="to the first byte of a transfer")

    @model_validator(mode="after")
    def _consistent(self) -> TierConfig:
        if self.num_blocks is not None and self.size_gb is not None:
            raise RuleError("give either {num_blocks} or {size_gb}, not both")
        return self

    def capacity_blocks(self, block_bytes: int, unlimited: int) -> int:
        """Capacity in blocks of so many bytes."""
        if self.num_blocks is not None:
            return self.num_blocks
        return unlimited if self.size_gb is None else int(self.size_gb * 1e9 / block_bytes)


class HostConfig(TierConfig):
    """Host memory, over PCIe."""

    write_gb_per_s: Bandwidth = Field(default=32.0, description="bandwidth from the GPU in 10^9 bytes/s")
    read_gb_per_s: Bandwidth = Field(default=32.0, description="bandwidth to the GPU in 10^9 bytes/s")

    @model_validator(mode="after")
    def _limited(self) -> HostConfig:
        if self.num_blocks is None and self.size_gb is None:
            raise RuleError("{num_blocks} or {size_gb} is needed: host memory is not unlimited")
        return self


class DiskConfig(TierConfig):
    """A local disk, or one that engines share."""

    write_gb_per_s: Bandwidth = Field(default=7.0, description="bandwidth from the host in 10^9 bytes/s")
    read_gb_per_s: Bandwidth = Field(default=7.0, description="bandwidth to the host in 10^9 bytes/s")
    latency_ms: NonNegativeFloat = Field(default=0.1, description="to the first byte of a transfer")

    @model_validator(mode="after")
    def _limited(self) -> DiskConfig:
        if self.num_blocks is None and self.size_gb is None:
            raise RuleError("{num_blocks} or {size_gb} is needed: a disk is not unlimited")
        return self


class ObjectStoreConfig(TierConfig):
    """An object store over the network; unlimited unless a capacity is given."""

    scope: Literal["private", "shared"] = Field(
        default="shared", description="one for each engine, or one for all, whose bandwidth they share too"
    )
    write_gb_per_s: Bandwidth = Field(default=4.0, description="bandwidth from the host in 10^9 bytes/s")
    read_gb_per_s: Bandwidth = Field(default=4.0, description="bandwidth to the host in 10^9 bytes/s")
    latency_ms: NonNegativeFloat = Field(default=10.0, description="to the first byte of a transfer")


class OffloadConfig(Section):
    """KV tiers behind GPU memory. Host memory comes first; disk and object store are read and written through it.

    Bytes and bandwidths are those of one GPU: all GPUs of an engine move their parts of a block at the same time.
    """

    kv_bytes_per_token: PositiveInt | None = Field(
        default=None, description="bytes of KV per token on one GPU; unless given, those of the model on that GPU"
    )
    write: Literal["through", "back"] = Field(
        default="through",
        description="store prompts when they are computed, or blocks when GPU memory evicts them",
    )
    host: HostConfig = Field(description="host memory")
    disk: DiskConfig | None = Field(default=None, description="disk")
    object_store: ObjectStoreConfig | None = Field(default=None, description="object store")
