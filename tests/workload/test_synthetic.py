"""What a generated load consists of."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from windtunnel.config.schema import SyntheticConfig
from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.synthetic import synthetic_workload


def generate(block_size: int = 64, concurrency: int | None = None, seed: int = 0, **fields: object) -> Workload:
    config = SyntheticConfig(**{"isl": 1000, "osl": 3, "requests": 6, **fields})
    return synthetic_workload(config, block_size=block_size, concurrency=concurrency, seed=seed)


def test_lengths_and_counts_are_as_configured():
    workload = generate(interval_ms=100.0)
    assert list(workload.input_tokens) == [1000] * 6
    assert list(workload.output_tokens) == [3] * 6
    assert (workload.num_sessions, workload.source) == (6, "synthetic")


def test_constant_arrivals():
    assert list(generate(interval_ms=100.0).time_ms) == [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]


def test_poisson_arrivals_start_at_zero_and_depend_on_the_seed():
    a, b, c = (generate(rate=10.0, seed=seed).time_ms for seed in (0, 0, 1))
    assert a[0] == 0.0
    assert a == b
    assert a != c


def test_in_a_closed_loop_first_turns_have_no_time():
    assert all(math.isnan(time) for time in generate(concurrency=2).time_ms)


def test_without_prefix_no_two_requests_share_content():
    workload = generate(interval_ms=0.0)
    assert [workload.prompt_runs(r) for r in range(6)] == [[(r, 0, 1000)] for r in range(6)]


def test_turns_have_their_delay_and_their_own_content():
    workload = generate(concurrency=1, requests=2, turns=3, turn_delay_ms=100.0)
    assert list(workload.session) == [0, 0, 0, 1, 1, 1]
    assert list(workload.turn) == [0, 1, 2, 0, 1, 2]
    assert [time for time in workload.time_ms if not math.isnan(time)] == [100.0] * 4
    assert [workload.prompt_runs(r) for r in range(6)] == [[(r, 0, 1000)] for r in range(6)]


def test_a_group_prefix_comes_first_and_counts_whole_blocks():
    workload = generate(interval_ms=0.0, prefix_ratio=0.5, prefix_groups=1)
    assert [workload.prompt_runs(r) for r in range(3)] == [[(0, 0, 512), (1 + r, 0, 488)] for r in range(3)]


def test_a_prefix_of_everything_leaves_no_unique_part():
    workload = generate(interval_ms=0.0, prefix_ratio=1.0, prefix_groups=1)
    assert workload.prompt_runs(0) == workload.prompt_runs(5) == [(0, 0, 1000)]


def test_a_prefix_smaller_than_half_a_block_is_none():
    workload = generate(interval_ms=0.0, prefix_ratio=0.03, prefix_groups=1)
    assert workload.prompt_runs(0) == [(1, 0, 1000)]


@pytest.mark.parametrize(
    ("blocks", "ratio", "prefix_blocks"),
    [
        (5, 0.5, 3),
        (7, 0.5, 4),
        (3, 0.5, 2),
        (1, 0.5, 1),
        (1, 0.49999999999999994, 0),
        (10, 0.24, 2),
        (10, 0.25, 3),
        (4, 0.9, 4),
    ],
)
def test_halves_of_blocks_round_away_from_zero(blocks: int, ratio: float, prefix_blocks: int):
    workload = generate(16, interval_ms=0.0, isl=16 * blocks, prefix_ratio=ratio, prefix_groups=1)
    origin, _, length = workload.prompt_runs(0)[0]
    assert (length if origin == 0 else 0) == 16 * prefix_blocks


def test_sessions_keep_their_group_through_their_turns():
    workload = generate(concurrency=1, requests=40, turns=3, prefix_ratio=0.5, prefix_groups=5)
    groups = [workload.prompt_runs(r)[0][0] for r in range(120)]
    assert all(len(set(groups[3 * s : 3 * s + 3])) == 1 for s in range(40))
    assert [workload.prompt_runs(r)[1] for r in range(120)] == [(5 + r, 0, 488) for r in range(120)]


def test_groups_are_drawn_uniformly():
    workload = generate(concurrency=1, requests=8000, prefix_ratio=0.5, prefix_groups=8)
    counts = Counter(workload.prompt_runs(r)[0][0] for r in range(8000))
    assert sorted(counts) == list(range(8))
    assert all(880 < count < 1120 for count in counts.values())


def test_the_arrival_process_does_not_move_the_group_draws():
    runs = [
        [w.prompt_runs(r) for r in range(50)]
        for w in (
            generate(requests=50, prefix_ratio=0.5, prefix_groups=4, rate=5.0),
            generate(requests=50, prefix_ratio=0.5, prefix_groups=4, interval_ms=5.0),
            generate(requests=50, prefix_ratio=0.5, prefix_groups=4, concurrency=5),
        )
    ]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(("concurrency", "fields"), [(None, {}), (2, {"rate": 1.0}), (2, {"interval_ms": 0.0})])
def test_exactly_one_way_of_sending_is_needed(concurrency: int | None, fields: dict[str, float]):
    with pytest.raises(InputError) as caught:
        generate(concurrency=concurrency, **fields)
    assert str(caught.value) == "workload.synthetic: give exactly one of rate, interval_ms, arrival and concurrency"


def test_times_beyond_what_milliseconds_can_tell_apart_are_refused():
    config = SyntheticConfig(isl=8, osl=8, requests=3, interval_ms=1e308)
    with pytest.raises(InputError, match="expected less than 9"):
        synthetic_workload(config, block_size=16, speedup=1e-3)
