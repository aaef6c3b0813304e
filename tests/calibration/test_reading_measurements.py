"""Measurements as people have them become observations, or one line that says what is wrong."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel import InputError
from windtunnel.calibration import Benchmark, read_observations

H200 = str(files("windtunnel.validation") / "data" / "dynamo-h200-llama-3.1-8b-fp8.json")

VLLM = {
    "backend": "vllm",
    "max_concurrency": 16,
    "completed": 80,
    "total_input_tokens": 80_000,
    "total_output_tokens": 16_000,
    "mean_ttft_ms": 120.5,
    "mean_tpot_ms": 9.25,
}
AIPERF = {
    "request_count": {"unit": "requests", "avg": 80.0},
    "time_to_first_token": {"unit": "ms", "avg": 120.5, "p50": 90.0},
    "inter_token_latency": {"unit": "ms", "avg": 9.25},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "input_config": {"loadgen": {"concurrency": 16}},
}
GUIDELLM_RUN = {
    "config": {"strategy": {"type_": "concurrent", "streams": 16}},
    "metrics": {
        "request_totals": {"successful": 80, "errored": 0},
        "prompt_token_count": {"successful": {"mean": 1000.0}},
        "output_token_count": {"successful": {"mean": 200.0}},
        "time_to_first_token_ms": {"successful": {"mean": 120.5}},
        "inter_token_latency_ms": {"successful": {"mean": 9.25}},
        "time_per_output_token_ms": {"successful": {"mean": 9.8}},
    },
}


def write(directory: Path, content: object, name: str = "data.json") -> str:
    path = directory / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("document", [VLLM, AIPERF, {"benchmarks": [GUIDELLM_RUN]}, [VLLM]], ids=str)
def test_three_tools_say_the_same(document: Any, tmp_path: Path) -> None:
    (found,) = read_observations([write(tmp_path, document)]).benchmarks
    assert (found.concurrency, found.requests, found.input_tokens, found.output_tokens) == (16, 80, 1000.0, 200.0)
    assert (found.ttft_ms, found.tpot_ms) == (120.5, 9.25)


def test_lengths_of_single_requests_are_kept(tmp_path: Path) -> None:
    document = {**VLLM, "input_lens": [900, 1100], "output_lens": [150, 250]}
    (found,) = read_observations([write(tmp_path, document)]).benchmarks
    assert isinstance(found, Benchmark)
    assert (found.input_lengths, found.output_lengths) == ((900, 1100), (150, 250))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**VLLM, "max_concurrency": None}, "max_concurrency: found None, expected how many requests were in flight"),
        ({**VLLM, "completed": 0}, "completed: found 0, expected a number above 0"),
        ({**VLLM, "mean_tpot_ms": -1.0}, "mean_tpot_ms: found -1.0, expected a number above 0"),
        ({**AIPERF, "input_config": {}}, "input_config.loadgen.concurrency: found None"),
        ({"benchmarks": [{"metrics": 1}]}, "benchmark 0: expected an object with metrics"),
        ({"benchmarks": [{**GUIDELLM_RUN, "config": {"strategy": {"type_": "poisson"}}}]}, "config.strategy.streams"),
        ({"latency": 1}, "found latency; expected a result of vllm bench serve (mean_ttft_ms), AIPerf"),
        ([], "is an empty list, expected benchmark results"),
        ({"benchmarks": []}, "holds no measurement of a pass or a benchmark"),
    ],
)
def test_a_result_that_cannot_be_fitted_is_one_line(document: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_observations([write(tmp_path, document)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


CSV = """ms,decode_requests,decode_context_tokens,prefill_tokens,prefill_context_tokens,prefill_requests
8.5,4,4000,0,0,0
40.0,4,4004,1000,500,2
30.0,0,0,700,,
"""


def test_a_pass_log_in_csv(tmp_path: Path) -> None:
    decode, mixed, prompt = read_observations([write(tmp_path, CSV, "log.csv")]).passes
    assert (decode.ms, decode.shape.num_decodes, decode.shape.decode_context_tokens) == (8.5, 4, 4000)
    assert (mixed.shape.chunk_tokens, mixed.shape.chunk_starts) == ([500, 500], [250, 250])
    assert (prompt.shape.chunk_tokens, prompt.shape.chunk_starts) == ([700], [0])
    assert decode.place.endswith("log.csv:2")


def test_a_pass_log_in_json_lines(tmp_path: Path) -> None:
    rows = [{"ms": 8.5, "decode_requests": 4, "decode_context_tokens": 4000}, {"ms": 30, "prefill_tokens": 700}]
    found = read_observations([write(tmp_path, "\n".join(json.dumps(row) for row in rows), "log.jsonl")])
    assert [one.ms for one in found.passes] == [8.5, 30.0]


def test_dynamos_forward_pass_metrics(tmp_path: Path) -> None:
    scheduled = {
        "num_prefill_requests": 1,
        "sum_prefill_tokens": 300,
        "sum_prefill_kv_tokens": 100,
        "num_decode_requests": 3,
        "sum_decode_kv_tokens": 2400,
    }
    rows = [
        {"version": 1, "worker_id": "w", "wall_time": 0.0125, "scheduled": scheduled, "queued": {}},
        {"version": 1, "worker_id": "w", "wall_time": 0.0, "scheduled": {}},
        {"version": 1, "worker_id": "w", "wall_time": 0.002, "scheduled": {}},
    ]
    found = read_observations([write(tmp_path, "\n".join(json.dumps(row) for row in rows), "fpm.jsonl")])
    (one,) = found.passes
    assert (one.ms, one.shape.num_decodes, one.shape.chunk_starts, one.shape.chunk_tokens) == (12.5, 3, [100], [300])
    assert found.skipped == {"heartbeats": 1, "passes without requests": 1}


def test_a_sweep_of_a_planner(tmp_path: Path) -> None:
    found = read_observations([H200])
    clients = [one for one in found.passes if one.is_client_time]
    assert (len(found.passes), len(clients)) == (56, 17)
    assert len({one.group for one in found.passes if not one.is_client_time}) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty, expected measurements"),
        ("time,decode_requests\n3,1\n", "data.csv:2: has no column ms; expected one of"),
        ("decode_request\n3\n", "has no column ms; did you mean 'decode_requests'?"),
        ("ms,decode_requests,decode_context_tokens\nfast,1,9\n", "data.csv:2: ms: found 'fast', expected a number"),
        ("ms,decode_requests,decode_context_tokens\n0,1,9\n", "data.csv:2: ms: found 0, expected more than 0 ms"),
        ("ms,decode_requests,decode_context_tokens\n3,4,2\n", "4 decodes cannot have 2 tokens of context"),
        ("ms,decode_requests,decode_context_tokens\n3,4,0\n", "4 decodes cannot have 0 tokens of context"),
        ('{"ms": 1, "prefill_tokens": 9}\n{', "data.csv:2: not JSON"),
        ("ms,prefill_tokens\n3,-1\n", "prefill_tokens: found '-1', expected a number of at least 0"),
    ],
)
def test_a_log_that_makes_no_sense_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_observations([write(tmp_path, content, "data.csv")])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fitted_grid_is_no_measurement(tmp_path: Path) -> None:
    grid = tmp_path / "mocker"
    grid.mkdir()
    np.savez(grid / "x.npz", a=np.ones(2))
    with pytest.raises(InputError, match="expected selected_prefill_interpolation"):
        read_observations([str(grid)])
    with pytest.raises(InputError, match="cannot be read"):
        read_observations([str(tmp_path / "none")])
