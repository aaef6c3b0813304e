"""Generated load: sessions of equal turns whose prompts share a group's prefix, as far as asked for.

Decides the content and arrival of every request from a `SyntheticConfig` and a seed. Turns do not accumulate
history: each has its own unique tail after the prefix of its session's group. Rules: those of the public replayer
that scenarios 20-24 of the parity tests come from; the draws are ours, since that peer's generator is not portable.
"""

from __future__ import annotations

from math import floor, nan

from windtunnel.config.schema import SyntheticConfig
from windtunnel.errors import InputError
from windtunnel.workload.arrivals import ArrivalProcess, Constant, Poisson
from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload
from windtunnel.workload.streams import named_stream

MAX_TIME_MS = 2.0**53  # beyond, milliseconds are no longer told apart


def synthetic_workload(
    config: SyntheticConfig,
    *,
    block_size: int,
    concurrency: int | None = None,
    seed: int = 0,
    speedup: float = 1.0,
) -> Workload:
    """Build the requests of a generated load, session by session.

    Prefix group g is the content origin g, and request r has the origin `prefix_groups + r` to itself.

    Args:
        config: lengths, counts, arrivals and sharing.
        block_size: tokens per block of the engine that is to serve them; `prefix_ratio` counts its blocks.
        concurrency: sessions in flight at once in a closed loop, where first turns have no arrival time (NaN);
            None for an open loop.
        seed: of the whole simulation; arrivals and group draws are separate streams of it.
        speedup: divides arrival times and turn delays.

    Raises:
        InputError: not exactly one of `config.rate`, `config.interval_ms` and `concurrency` is given, or times are
            too large.
    """
    arrivals = _arrival_process(config, concurrency, seed)
    arrival_ms = None if arrivals is None else arrivals.times_ms(config.requests)
    latest_ms = 0.0 if not arrival_ms else arrival_ms[-1] / speedup
    if not max(latest_ms, config.turn_delay_ms / speedup) < MAX_TIME_MS:
        raise InputError(
            f"found arrivals or delays up to {max(latest_ms, config.turn_delay_ms / speedup):g} ms, "
            f"expected less than {MAX_TIME_MS:g}",
            field="workload.synthetic",
        )
    prefix_tokens = min(_prefix_blocks(config, block_size) * block_size, config.isl)
    draw_group = named_stream(seed, "prefix-groups").random
    workload = Workload("synthetic")
    for number in range(config.requests):
        group = int(draw_group() * config.prefix_groups)
        session: int | None = None
        time_ms = nan if arrival_ms is None else arrival_ms[number] / speedup
        for _ in range(config.turns):
            unique_origin = config.prefix_groups + workload.num_requests
            runs: list[Run] = []
            if prefix_tokens:
                runs.append((group, 0, prefix_tokens))
            if prefix_tokens < config.isl:
                runs.append((unique_origin, 0, config.isl - prefix_tokens))
            workload.add(runs, config.osl, session=session, time_ms=time_ms)
            session = number
            time_ms = config.turn_delay_ms / speedup
    return workload


def _arrival_process(config: SyntheticConfig, concurrency: int | None, seed: int) -> ArrivalProcess | None:
    if (config.rate, config.interval_ms, concurrency).count(None) != 2:
        raise InputError("give exactly one of rate, interval_ms and concurrency", field="workload.synthetic")
    if config.rate is not None:
        return Poisson(config.rate, named_stream(seed, "arrival-times"))
    if config.interval_ms is not None:
        return Constant(config.interval_ms)
    return None


def _prefix_blocks(config: SyntheticConfig, block_size: int) -> int:
    """`prefix_ratio` of a prompt's blocks, halves rounded up (away from zero)."""
    share = -(-config.isl // block_size) * config.prefix_ratio
    whole = floor(share)
    return whole + (share - whole >= 0.5)  # adding 0.5 first would round 0.49999999999999994 up
