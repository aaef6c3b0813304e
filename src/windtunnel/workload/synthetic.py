"""Generated load: sessions of turns with drawn lengths, whose prompts share a group's prefix, as far as asked for.

Decides the content of every request from a configuration and a seed. Turns that do not accumulate have a unique tail
each after the prefix of their session's group; the prompt of a turn that accumulates is the prompt before it, what
was generated for that, and new tokens. Rules: those of the public replayer that scenarios 20-24 of the parity tests
come from; the draws are ours, since that peer's generator is not portable.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import floor, nan

import numpy as np

from windtunnel.config.schema import ArrivalConfig, SyntheticConfig
from windtunnel.config.synthetic import MAX_SYNTHETIC_REQUESTS, GeneratedLoad
from windtunnel.errors import InputError
from windtunnel.workload.arrival_choice import ArrivalChoice
from windtunnel.workload.content import Run, output_origin
from windtunnel.workload.length_files import LengthFile, read_lengths
from windtunnel.workload.lengths import FloatColumn, IntColumn, draw_counts, draw_delays_ms, pick
from windtunnel.workload.loading import ObservedLengths
from windtunnel.workload.prefix_groups import draw_groups
from windtunnel.workload.session import MAX_TIME_MS, Workload
from windtunnel.workload.streams import Streams


def synthetic_workload(
    config: SyntheticConfig,
    *,
    block_size: int,
    concurrency: int | None = None,
    arrival: ArrivalConfig | None = None,
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
        arrival: when sessions begin, if neither `config.rate` nor `config.interval_ms` says so.
        seed: of the whole simulation; arrivals, lengths and group draws are separate streams of it.
        speedup: divides arrival times and turn delays.

    Raises:
        InputError: not exactly one of `config.rate`, `config.interval_ms`, `arrival` and `concurrency` is given,
            times are too large, or a file cannot be used.
    """
    if (config.rate, config.interval_ms, arrival, concurrency).count(None) != 3:
        message = "give exactly one of rate, interval_ms, arrival and concurrency"
        raise InputError(message, field="workload.synthetic")
    streams = Streams(seed)
    workload = Workload("synthetic")
    arrival_ms: array[float] | None = None
    if concurrency is None:
        choice = ArrivalChoice(config, arrival, streams, field="workload.arrival")
        arrival_ms = choice.times_ms(config.requests, config.duration_s, field="workload.synthetic")
    add_sessions(workload, config, arrival_ms, streams, block_size=block_size, speedup=speedup)
    return workload


def add_sessions(
    workload: Workload,
    config: GeneratedLoad,
    arrival_ms: Sequence[float] | None,
    streams: Streams,
    *,
    block_size: int,
    speedup: float = 1.0,
    first_origin: int = 0,
    field: str = "workload.synthetic",
) -> int:
    """Append the sessions of one kind of client.

    Args:
        workload: where to.
        config: what they are.
        arrival_ms: when each session begins; None for `config.requests` sessions of a closed loop.
        streams: where the draws come from.
        block_size, speedup: as for `synthetic_workload`.
        first_origin: the first content origin that is free.
        field: the section of the configuration, for errors.

    Returns:
        The first content origin that is free now.

    Raises:
        InputError: there are too many requests, times are too large, or a file cannot be used.
    """
    num_sessions = (config.requests or 0) if arrival_ms is None else len(arrival_ms)
    turns = draw_counts(config.turns, num_sessions, streams.generator("turns"), field=f"{field}.turns")
    num_requests = int(turns.sum())
    if num_requests > MAX_SYNTHETIC_REQUESTS:
        raise InputError(
            f"drew {num_requests:,} requests, more than the {MAX_SYNTHETIC_REQUESTS:,} that fit in memory",
            field=f"{field}.turns",
        )
    delays_ms = draw_delays_ms(config.turn_delay_ms, num_requests - num_sessions, streams.generator("turn-delays"))
    delays_ms = delays_ms / speedup
    latest_ms = max(delays_ms.max(initial=0.0), 0.0 if not arrival_ms else arrival_ms[-1] / speedup)
    if not latest_ms < MAX_TIME_MS:
        message = f"found arrivals or delays up to {latest_ms:g} ms, expected less than {MAX_TIME_MS:g}"
        raise InputError(message, field=field)
    isl, osl = _draw_lengths(workload, config, num_requests, streams, field)
    groups = draw_groups(config.prefix_groups, config.prefix_zipf, num_sessions, streams)
    group_tokens: IntColumn | None = None
    if config.prefix_tokens is not None:
        rng = streams.generator("prefix-lengths")
        group_tokens = draw_counts(config.prefix_tokens, config.prefix_groups, rng, field=f"{field}.prefix_tokens")
    workload.accumulates = workload.accumulates or config.accumulate

    prefixes = _Prefixes(config.prefix_ratio, block_size, group_tokens)
    own_origin = first_origin + config.prefix_groups
    if num_requests == num_sessions:
        times_ms = np.full(num_sessions, nan) if arrival_ms is None else np.array(arrival_ms) / speedup
        _add_single_turns(workload, isl, osl, times_ms, groups, prefixes, first_origin, own_origin)
        return own_origin + num_requests
    delays = iter(delays_ms.tolist())
    lengths = zip(isl.tolist(), osl.tolist(), strict=True)
    for number, (group, num_turns) in enumerate(zip(groups.tolist(), turns.tolist(), strict=True)):
        session: int | None = None
        time_ms = nan if arrival_ms is None else arrival_ms[number] / speedup
        runs: list[Run] = []
        for turn in range(num_turns):
            prompt, output = next(lengths)
            if turn == 0 or not config.accumulate:
                prefix, own = prefixes.of(prompt, group)
                runs = [(first_origin + group, 0, prefix)] if prefix else []
            else:
                own = prompt
            if own:
                runs.append((own_origin, 0, own))
            own_origin += 1
            request = workload.add(runs, output, session=session, time_ms=time_ms)
            if turn + 1 < num_turns:
                session = workload.session[request]
                time_ms = next(delays)
                if config.accumulate:
                    runs.append((output_origin(request), 0, output))
    return own_origin


def _add_single_turns(
    workload: Workload,
    isl: IntColumn,
    osl: IntColumn,
    times_ms: FloatColumn,
    groups: IntColumn,
    prefixes: _Prefixes,
    first_origin: int,
    own_origin: int,
) -> None:
    """Append sessions of one turn, as columns: what `Workload.add` would do for each, many times as fast."""
    prefix, own = prefixes.of_all(isl, groups)
    lengths = prefix + own
    origins = np.stack((first_origin + groups, own_origin + np.arange(len(isl), dtype=np.int64)), axis=1)
    deltas = np.stack((np.zeros_like(prefix), -prefix), axis=1)
    ends = np.stack((prefix, lengths), axis=1)
    is_run = np.stack((prefix > 0, own > 0), axis=1)
    workload.extend(lengths, osl, times_ms, is_run.sum(axis=1), (origins[is_run], deltas[is_run], ends[is_run]))


class _Prefixes:
    """How many tokens at the beginning of a prompt are those of its group, and how many are its own.

    Args:
        ratio: share of the blocks of a prompt, halves rounded up (away from zero).
        block_size: tokens of a block.
        group_tokens: length of each group's prefix, which stands in front of the prompt, instead of a share of it.
    """

    def __init__(self, ratio: float, block_size: int, group_tokens: IntColumn | None) -> None:
        self._ratio = ratio
        self._block_size = block_size
        self._group_tokens = group_tokens

    def of(self, isl: int, group: int) -> tuple[int, int]:
        """Of one prompt."""
        if self._group_tokens is not None:
            return int(self._group_tokens[group]), isl
        share = -(-isl // self._block_size) * self._ratio
        whole = floor(share)
        blocks = whole + (share - whole >= 0.5)  # adding 0.5 first would round 0.49999999999999994 up
        prefix = min(blocks * self._block_size, isl)
        return prefix, isl - prefix

    def of_all(self, isl: IntColumn, groups: IntColumn) -> tuple[IntColumn, IntColumn]:
        """Of many prompts."""
        if self._group_tokens is not None:
            return self._group_tokens[groups], isl
        different, place = np.unique(isl, return_inverse=True)
        prefix = np.array([self.of(length, 0)[0] for length in different.tolist()], dtype=np.int64)[place]
        return prefix, isl - prefix


def _draw_lengths(
    workload: Workload, config: GeneratedLoad, count: int, streams: Streams, field: str
) -> tuple[IntColumn, IntColumn]:
    """Prompt and output lengths of all requests."""
    if config.lengths is not None:
        file = _observed(workload, config.lengths)
        rows = pick(len(file.input_tokens), count, streams.generator("lengths"))
        return file.input_tokens[rows], file.outputs()[rows]
    assert config.isl is not None
    assert config.osl is not None
    return (
        draw_counts(
            config.isl,
            count,
            streams.generator("input-lengths"),
            field=f"{field}.isl",
            observed=lambda path: _observed(workload, path).input_tokens,
        ),
        draw_counts(
            config.osl,
            count,
            streams.generator("output-lengths"),
            field=f"{field}.osl",
            observed=lambda path: _observed(workload, path).outputs(),
        ),
    )


def _observed(workload: Workload, path: str) -> LengthFile:
    file = read_lengths(path)
    workload.observed_lengths[path] = ObservedLengths(file.rows, len(file.input_tokens))
    return file
