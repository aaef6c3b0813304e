"""Writes `vllm-timed-trace` rows: those of `mooncake` with seconds and blocks of 16 tokens."""

from __future__ import annotations

from windtunnel.conversion.writers.mooncake import MooncakeWriter
from windtunnel.workload.traces.vllm_timed_trace import TIMED_TRACE_BLOCK_SIZE


class VllmTimedTraceWriter(MooncakeWriter):
    """Writer of the format."""

    name = "vllm-timed-trace"
    block_size: int | None = TIMED_TRACE_BLOCK_SIZE
    ms_per_unit = 1000.0
