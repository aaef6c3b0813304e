"""Service levels: the limits that make a completed request a good one."""

from __future__ import annotations

from pydantic import Field

from windtunnel.config.section import NonNegativeFloat, Section


class SloConfig(Section):
    """Limits that make a completed request a good one; each that is given must hold (<=)."""

    ttft_ms: NonNegativeFloat | None = Field(default=None, description="time to the first token")
    itl_ms: NonNegativeFloat | None = Field(
        default=None, description="mean gap of a request: (E2E - TTFT) / (tokens - 1)"
    )
    e2e_ms: NonNegativeFloat | None = Field(default=None, description="time to the last token")

    @property
    def is_empty(self) -> bool:
        """Whether no limit is given."""
        return self.ttft_ms is None and self.itl_ms is None and self.e2e_ms is None
