"""The requests that a configuration describes."""

from __future__ import annotations

from windtunnel.config.schema import Config
from windtunnel.errors import InputError
from windtunnel.workload.mixture import mixed_workload
from windtunnel.workload.retiming import retime
from windtunnel.workload.session import Workload
from windtunnel.workload.synthetic import synthetic_workload
from windtunnel.workload.traces import load_trace


def load_workload(config: Config) -> Workload:
    """The requests that a configuration describes.

    Raises:
        InputError: there is none, or a trace cannot be read.
    """
    wanted = config.workload
    if wanted.synthetic is not None:
        return synthetic_workload(
            wanted.synthetic,
            block_size=config.engine.tokens_per_block,
            concurrency=wanted.concurrency,
            arrival=wanted.arrival,
            seed=config.seed,
            speedup=wanted.speedup,
        )
    if wanted.classes:
        block_size = config.engine.tokens_per_block
        return mixed_workload(wanted.classes, block_size=block_size, seed=config.seed, speedup=wanted.speedup)
    if not wanted.path:
        raise InputError("no workload: give trace files or a synthetic load", field="workload.path")
    workload = load_trace(
        wanted.path,
        format=wanted.format,
        block_size=wanted.trace_block_size,
        limit=wanted.limit,
        speedup=wanted.speedup,
        spread=wanted.spread,
        on_bad_row=wanted.on_bad_row,
        on_hash_mismatch=wanted.on_hash_mismatch,
        on_overlong=wanted.on_overlong,
        max_model_len=config.engine.max_sequence_tokens,
        missing_output_tokens=wanted.missing_output_tokens,
        time_unit=wanted.time_unit,
        prefix_ratio=wanted.trace_prefix_ratio,
        prefix_groups=wanted.trace_prefix_groups,
    )
    if wanted.arrival is not None:
        retime(workload, wanted.arrival, seed=config.seed, speedup=wanted.speedup)
    return workload
