"""Fields of a cluster beyond its workers and router: what KV crosses between workers.

They say what there is and never how it behaves (cluster/).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from windtunnel.config.section import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, RuleError, Section


class TransferConfig(Section):
    """How KV gets from a worker that prefills to one that decodes; without a bandwidth it takes `latency_ms`."""

    latency_ms: NonNegativeFloat = Field(default=0.0, description="from the start of a transfer to its first byte")
    bandwidth_gb_per_s: PositiveFloat | None = Field(
        default=None, description="of each worker's network interface, in each direction; GB are 10^9 bytes"
    )
    fabric_bandwidth_gb_per_s: PositiveFloat | None = Field(
        default=None, description="what all transfers of the cluster get together"
    )
    kv_bytes_per_token: PositiveInt | None = Field(
        default=None, description="KV of one token; unless given, that of timing.model"
    )
    bytes: Literal["full_prompt", "destination_missing"] = Field(
        default="full_prompt", description="what is sent: the whole prompt, or what the destination has not cached"
    )
    shared: Flag = Field(
        default=True, description="transfers share the bandwidth; false gives each all of it, however many there are"
    )

    @model_validator(mode="after")
    def _consistent(self) -> TransferConfig:
        if self.bandwidth_gb_per_s is None and self.fabric_bandwidth_gb_per_s is None:
            for name in ("kv_bytes_per_token", "bytes", "shared"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise RuleError(f"{{{name}}} has no effect without {{bandwidth_gb_per_s}}: bytes take no time")
        return self
