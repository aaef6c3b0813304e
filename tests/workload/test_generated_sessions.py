"""Conversations that grow, prefixes that groups share, lengths from files: what a generated load consists of."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from windtunnel import Config, simulate
from windtunnel.config.schema import SyntheticConfig
from windtunnel.errors import InputError
from windtunnel.workload.content import output_origin
from windtunnel.workload.length_files import read_lengths
from windtunnel.workload.session import Workload
from windtunnel.workload.synthetic import synthetic_workload


def generate(seed: int = 0, concurrency: int | None = 2, **fields: object) -> Workload:
    config = SyntheticConfig.model_validate({"isl": 100, "osl": 10, "requests": 3, **fields})
    return synthetic_workload(config, block_size=16, concurrency=concurrency, seed=seed)


def test_a_turn_that_accumulates_begins_with_the_prompt_and_the_output_before_it():
    workload = generate(requests=2, turns=3, accumulate=True)
    assert list(workload.input_tokens) == [100, 210, 320, 100, 210, 320]
    assert workload.prompt_runs(0) == [(0, 0, 100)]
    assert workload.prompt_runs(1) == [(0, 0, 100), (output_origin(0), 0, 10), (1, 0, 100)]
    assert workload.prompt_runs(2) == [*workload.prompt_runs(1), (output_origin(1), 0, 10), (2, 0, 100)]
    assert workload.prompt_runs(4) == [(3, 0, 100), (output_origin(3), 0, 10), (4, 0, 100)]
    assert workload.accumulates


def test_the_context_of_a_conversation_is_found_in_the_cache():
    config = Config.model_validate(
        {
            "workload": {
                "concurrency": 1,
                "synthetic": {"isl": 64, "osl": 65, "requests": 1, "turns": 4, "accumulate": True},
            },
            "engine": {"block_size": 64, "async_scheduling": False},
        }
    )
    hits = list(simulate(config).record.requests.hit_tokens)
    # the last token of an output has no KV yet: prompts of 64, 193, 322, 451 tokens begin with 128, 257, 386 known ones
    assert hits == [0, 128, 256, 384]


def test_a_prompt_holds_what_was_generated_not_what_was_asked_for():
    """A conversation that reaches the longest sequence generates less there, and its next turn quotes only that."""
    config = Config.model_validate(
        {
            "workload": {
                "concurrency": 1,
                "synthetic": {"isl": 40, "osl": 40, "requests": 1, "turns": 2, "accumulate": True},
            },
            "engine": {"block_size": 16, "max_model_len": 60, "async_scheduling": False},
        }
    )
    result = simulate(config)
    assert list(result.record.requests.output_tokens) == [20, 0]
    assert list(result.workload.input_tokens) == [40, 100]


def test_a_prefix_in_tokens_stands_before_the_prompt_and_is_not_part_of_its_length():
    workload = generate(turns=2, accumulate=True, prefix_tokens=37, prefix_groups=1)
    assert workload.prompt_runs(0) == [(0, 0, 37), (1, 0, 100)]
    assert workload.prompt_runs(1) == [(0, 0, 37), (1, 0, 100), (output_origin(0), 0, 10), (2, 0, 100)]
    assert workload.input_tokens[1] == 247


def test_each_group_has_its_own_length_of_prefix():
    workload = generate(requests=400, prefix_tokens="uniform:min=10,max=2000", prefix_groups=6)
    lengths: dict[int, set[int]] = {}
    for request in range(400):
        group, start, tokens = workload.prompt_runs(request)[0]
        lengths.setdefault(group, set()).add(tokens)
        assert start == 0
    assert sorted(lengths) == list(range(6))
    assert all(len(tokens) == 1 for tokens in lengths.values())
    assert len(set.union(*lengths.values())) > 1


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.5])
def test_groups_are_as_popular_as_zipf_says(exponent):
    workload = generate(requests=20_000, prefix_ratio=0.5, prefix_groups=10, prefix_zipf=exponent)
    counts = Counter(workload.prompt_runs(r)[0][0] for r in range(20_000))
    weights = np.arange(1, 11, dtype=float) ** -exponent
    expected = weights / weights.sum() * 20_000
    chi_squared = sum((counts[group] - expected[group]) ** 2 / expected[group] for group in range(10))
    assert chi_squared < 27.9  # 9 degrees of freedom, 0.1 %


@pytest.mark.parametrize(
    "prefix",
    [
        {},
        {"prefix_ratio": 0.3, "prefix_groups": 3},
        {"prefix_ratio": 1.0, "prefix_groups": 2},
        {"prefix_tokens": "uniform:min=1,max=90", "prefix_groups": 5},
    ],
)
def test_many_sessions_of_one_turn_are_what_they_are_one_by_one(prefix):
    at_once = generate(requests=90, isl="uniform:min=1,max=300", osl="geometric:mean=9", **prefix)
    one_by_one = Workload("synthetic")
    for r in range(90):
        one_by_one.add(at_once.prompt_runs(r), at_once.output_tokens[r], time_ms=at_once.time_ms[r])
    columns = ("input_tokens", "output_tokens", "session", "turn", "next_turn", "first_turn", "last_turn")
    for name in (*columns, "_runs_end", "_run_origin", "_run_delta", "_run_end"):
        assert getattr(at_once, name) == getattr(one_by_one, name), name


@pytest.mark.parametrize("field", ["isl", "osl"])
@pytest.mark.parametrize("turns", [1, 2])
def test_a_length_that_no_request_has_is_refused(field, turns):
    with pytest.raises(InputError, match=r"request 0: .*found 3000000000"):
        generate(turns=turns, **{field: 3_000_000_000})


def test_the_prefix_of_a_drawn_length_is_a_share_of_that_length():
    workload = generate(requests=50, isl="uniform:min=16,max=640", prefix_ratio=0.5, prefix_groups=1)
    for request in range(50):
        blocks = -(-workload.input_tokens[request] // 16)
        assert workload.prompt_runs(request)[0][2] == (blocks + 1) // 2 * 16


def test_every_number_has_a_stream_of_its_own():
    drawn = {"isl": "uniform:min=1,max=900", "osl": "geometric:mean=50", "turns": "geometric:mean=2", "requests": 60}
    grouped = {"prefix_ratio": 0.5, "prefix_groups": 9, "prefix_zipf": 1.0}
    one = generate(**drawn)
    other = generate(**drawn, **grouped, turn_delay_ms="exponential:mean=5")
    assert (one.input_tokens, one.output_tokens, one.turn) == (other.input_tokens, other.output_tokens, other.turn)
    fixed = generate(**{**drawn, "osl": 3})
    assert fixed.input_tokens == one.input_tokens
    assert generate(1, **drawn).input_tokens != one.input_tokens


def test_arrivals_before_a_duration_say_how_many_sessions_there_are():
    workload = generate(concurrency=None, requests=None, duration_s=50.0, rate=20.0)
    assert 850 < workload.num_sessions < 1150
    assert workload.time_ms[-1] < 50_000.0
    more = generate(concurrency=None, requests=None, duration_s=60.0, rate=20.0)
    assert more.time_ms[: workload.num_requests] == workload.time_ms


def test_burstiness_one_is_poisson():
    poisson, gamma = (generate(concurrency=None, rate=3.0, **more) for more in ({}, {"burstiness": 1.0}))
    assert poisson.time_ms == gamma.time_ms


def test_too_many_turns_are_refused():
    with pytest.raises(InputError, match=r"workload\.synthetic\.turns: drew .* requests, more than the 100,000,000"):
        generate(requests=300, turns="normal:mean=1000000,std=1")


# ------------------------------------------------------------------------------------------------ lengths of files


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input_length,output_length\n10,100\n20,200\n0,7\n30,\n40,400\n")
    return str(path)


def test_pairs_from_a_table_stay_together(table):
    workload = generate(requests=300, isl=None, osl=None, lengths=table)
    pairs = Counter(zip(workload.input_tokens, workload.output_tokens, strict=True))
    assert set(pairs) == {(10, 100), (20, 200), (40, 400)}
    assert all(70 < count < 130 for count in pairs.values())
    assert workload.observed_lengths == {table: (5, 3)}


def test_one_column_of_a_file_is_drawn_by_itself(table):
    workload = generate(requests=300, isl={"kind": "empirical", "path": table}, osl=f"empirical:path={table},max=150")
    assert set(workload.input_tokens) == {10, 20, 40}
    assert set(workload.output_tokens) == {100, 150}
    assert len(set(zip(workload.input_tokens, workload.output_tokens, strict=True))) == 6


def test_a_table_of_prompts_only(tmp_path):
    path = tmp_path / "prompts.csv.gz"
    path.write_bytes(gzip.compress(b"isl\n5\n7\n"))
    assert read_lengths(str(path)).input_tokens.tolist() == [5, 7]
    assert set(generate(isl=f"empirical:path={path}", requests=40).input_tokens) == {5, 7}
    with pytest.raises(InputError, match="has no column of output lengths"):
        generate(isl=None, osl=None, lengths=str(path))


def test_the_lengths_of_any_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n')
    workload = generate(isl=None, osl=None, lengths=str(path))
    assert list(zip(workload.input_tokens, workload.output_tokens, strict=True)) == [(600, 3)] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input_length,output_length\n0,5\n", "no row whose lengths are all at least 1"),
        ("input_length,isl\n1,5\n", "found 2 columns of input lengths, expected one"),
        ("input_length\nx\n", "found 'x', expected an integer"),
        ("input_length,output_length\n1\n", "found 1 cells, expected 2"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_lengths(str(path))


@pytest.mark.shared
def test_published_lengths():
    shared = Path(os.environ.get("WINDTUNNEL_SHARED") or Path(__file__).parents[3] / "shared")
    if not (shared / "traces").is_dir():
        pytest.fail(f"{shared} has no traces: set WINDTUNNEL_SHARED to the folder that holds them")
    file = read_lengths(str(shared / "traces" / "lengths_sharegpt_vicuna.csv"))
    assert (file.rows, file.rows - len(file.input_tokens)) == (81_494, 819)
    prompts = read_lengths(str(shared / "traces" / "lengths_swebench_lite.csv"))
    assert (prompts.rows, prompts.input_tokens.max(), prompts.output_tokens) == (300, 9138, None)
    assert prompts.input_tokens.mean() == pytest.approx(540.9, abs=0.05)
    conversation = read_lengths(str(shared / "traces" / "mooncake_conversation_trace.jsonl"))
    assert conversation.input_tokens.mean() == pytest.approx(12_035.1, abs=0.05)
