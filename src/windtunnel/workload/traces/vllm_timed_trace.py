"""The `vllm-timed-trace` format: what `vllm bench serve --dataset-name timed_trace` replays.

Rows have the names of Mooncake rows, but times are in seconds (`--timed-trace-sec-multiplier 1`, its default) and a
hash id stands for 16 tokens (`--timed-trace-chunk-hash-size 16`, its default). Source: vLLM 0.33,
vllm/benchmarks/datasets (TimedTraceDataset) and its tests; PR #39795. Nothing states the unit, so it has to be named:
a file whose hash ids fit 16 tokens and not 512 is reported as ambiguous.
"""

from __future__ import annotations

import json

from windtunnel.workload.traces.mooncake import BLOCK_SIZE, FOREIGN_NAMES, Mooncake
from windtunnel.workload.traces.rows import Head

TIMED_TRACE_BLOCK_SIZE = 16


class VllmTimedTrace(Mooncake):
    """Reader of the format."""

    name = "vllm-timed-trace"
    aliases = ("timed_trace", "vllm_timed_trace")
    row = "a row of mooncake with seconds and hash ids of 16 tokens"
    block_size: int | None = TIMED_TRACE_BLOCK_SIZE
    ms_per_unit = 1000.0

    def recognises(self, head: Head) -> bool:
        """Whether the hash ids of the first rows fit blocks of 16 tokens and not the 512 of Mooncake, unasked."""
        if (
            head.block_size is not None
            or not head.first.startswith(b"{")
            or "hash_ids" not in head.names
            or FOREIGN_NAMES & head.names
        ):
            return False
        fits = {TIMED_TRACE_BLOCK_SIZE: True, BLOCK_SIZE: True}
        for text in head.rows[:-1] or head.rows:
            try:
                row = json.loads(text)
                tokens, blocks = row["input_length"], len(row["hash_ids"])
            except (ValueError, TypeError, KeyError, RecursionError):
                return False
            if not isinstance(tokens, int):
                return False
            for size in fits:
                fits[size] &= blocks == -(-tokens // size)
        return fits[TIMED_TRACE_BLOCK_SIZE] and not fits[BLOCK_SIZE]
