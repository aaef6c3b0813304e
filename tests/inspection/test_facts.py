"""The facts of a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from windtunnel.inspection import TraceFacts, describe_trace
from windtunnel.workload.traces import load_trace


def facts_of(tmp_path: Path, *rows: dict[str, Any], max_model_len: int | None = None, **options: Any) -> TraceFacts:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return describe_trace(load_trace([path], **options), max_model_len)


def row(timestamp: float, tokens: int = 512, output: int = 1, **fields: Any) -> dict[str, Any]:
    ids = list(range(-(-tokens // 512)))
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids, **fields}


def test_arrivals_are_counted_by_instants(tmp_path: Path):
    arrivals = facts_of(tmp_path, row(0), row(0), row(3000), row(6000), row(6000), row(6000)).arrivals
    assert (arrivals.count, arrivals.stated, arrivals.instants, arrivals.most_at_once) == (6, 6, 3, 3)
    assert (arrivals.span_ms, arrivals.median_step_ms, arrivals.rate_per_s) == (6000.0, 3000.0, 1.0)
    assert arrivals.out_of_order == 0


def test_dispersion_is_the_variance_over_the_mean_of_counts_in_a_second(tmp_path: Path):
    arrivals = facts_of(tmp_path, row(0), row(100), row(200), row(2500)).arrivals
    counts = [3, 0, 1]
    mean = sum(counts) / 3
    assert arrivals.dispersion == pytest.approx(sum((count - mean) ** 2 for count in counts) / 3 / mean)


def test_one_instant_has_no_rate(tmp_path: Path):
    arrivals = facts_of(tmp_path, row(5), row(5)).arrivals
    assert (arrivals.span_ms, arrivals.rate_per_s, arrivals.dispersion, arrivals.gap_cv) == (0.0, 0.0, 0.0, 0.0)


def test_arrivals_that_are_missing_or_fall_are_counted(tmp_path: Path):
    first = {"input_length": 512, "output_length": 1, "hash_ids": [1]}
    arrivals = facts_of(tmp_path, first, row(50), row(20), row(40), row(60)).arrivals
    assert (arrivals.count, arrivals.stated, arrivals.out_of_order) == (5, 4, 2)


def test_a_span_of_years_is_counted_in_a_million_windows_at_most(tmp_path: Path):
    assert facts_of(tmp_path, row(0), row(1e15)).arrivals.dispersion > 0.0


def test_lengths_fall_into_bins_whose_bounds_double(tmp_path: Path):
    lengths = facts_of(tmp_path, *(row(0, tokens) for tokens in (1, 2, 3, 4, 7, 8, 600))).input_tokens
    assert lengths.histogram[:4] == [(1, 1, 1), (2, 3, 2), (4, 7, 2), (8, 15, 1)]
    assert lengths.histogram[-1] == (512, 1023, 1)
    assert sum(count for _, _, count in lengths.histogram) == 7
    assert lengths.statistics["median"] == 4.0


def test_zeros_are_in_no_bin(tmp_path: Path):
    lengths = facts_of(tmp_path, row(0, output=0), row(0, output=0), row(0, output=5)).output_tokens
    assert (lengths.zeros, lengths.histogram) == (2, [(4, 7, 1)])
    assert facts_of(tmp_path, row(0, output=0)).output_tokens.histogram == []


def test_turns_of_sessions(tmp_path: Path):
    facts = facts_of(tmp_path, row(0, session_id="s"), row(100, session_id="s"), row(400, session_id="s"), row(9))
    assert (facts.sessions, facts.multi_turn_sessions, facts.mean_turns, facts.max_turns) == (2, 1, 2.0, 3)
    assert facts.median_delay_ms == 200.0
    assert facts.arrivals.count == 2


def test_requests_that_wait_for_others(tmp_path: Path):
    facts = facts_of(tmp_path, row(0, request_id="a", wait_for=[]), row(0, request_id="b", wait_for=["a"], delay=7))
    assert (facts.waiting_requests, facts.arrivals.count, facts.median_delay_ms) == (1, 1, 7.0)


def test_prompts_that_reach_the_limit_and_outputs_that_do_not_fit(tmp_path: Path):
    rows = [row(0, 399, 1), row(0, 399, 2), row(0, 400, 1), row(0, 512, 9), row(0, 10, 390)]
    facts = facts_of(tmp_path, *rows, max_model_len=400)
    assert (facts.overlong_requests, facts.cut_short_requests, facts.longest_context_tokens) == (2, 1, 521)


def test_the_json_has_everything_and_adds_up(tmp_path: Path):
    document = facts_of(tmp_path, row(0), row(5), max_model_len=600).as_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["prefix_sharing"]["infinite_cache_hit_ratio"] == 0.5
    assert document["prefix_sharing"]["unique_blocks"] == 1
    assert document["loading"]["rows"] == document["loading"]["loaded_rows"] == 2
    assert document["requests"] == 2


@pytest.fixture(scope="module")
def traces() -> Path:
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("WINDTUNNEL_SHARED") or root.parent / "shared") / "traces"
    if not (folder / "MANIFEST.json").is_file():
        pytest.fail(f"{folder} has no MANIFEST.json: set WINDTUNNEL_SHARED to the folder that holds `traces`")
    return folder


@pytest.mark.shared
def test_public_traces_have_the_dispersion_and_sharing_of_their_manifest(traces: Path):
    manifest = json.loads((traces / "MANIFEST.json").read_text())
    compared = 0
    for name, known in manifest.items():
        if "span_s" not in known:
            continue
        facts = describe_trace(load_trace([traces / name]))
        assert facts.arrivals.span_ms / 1000 == pytest.approx(known["span_s"], abs=6e-4)
        if known["rows"] > 16:
            assert facts.arrivals.dispersion == pytest.approx(known["index_of_dispersion_1s"], abs=0.011), name
        if "prefix" in known:
            assert facts.sharing.blocks == known["prefix"]["blocks"]
            assert facts.sharing.blocks - facts.sharing.shared_blocks == known["prefix"]["unique"]
            assert round(facts.sharing.hit_ratio, 4) == known["prefix"]["prefix_hit_ratio_infinite_cache"]
        compared += 1
    assert compared == 17


@pytest.mark.shared
def test_the_conversation_trace_has_1180_instants_and_a_hit_rate_of_36_64_percent(traces: Path):
    facts = describe_trace(load_trace([traces / "mooncake_conversation_trace.jsonl"]), 32_768)
    assert facts.arrivals.instants == 1_180
    assert facts.arrivals.most_at_once == 28
    assert f"{facts.sharing.hit_ratio:.2%}" == "36.64%"
    assert facts.input_tokens.statistics["max"] == 126_195
    assert facts.overlong_requests == 829
    synthetic = describe_trace(load_trace([traces / "mooncake_synthetic_trace.jsonl"]))
    assert f"{synthetic.sharing.hit_ratio:.2%}" == "63.96%"
