"""The public Mooncake traces in full, against their published statistics."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace

pytestmark = pytest.mark.shared

FILES = [
    "mooncake_conversation_trace.jsonl",
    "mooncake_synthetic_trace.jsonl",
    "dynamo_mooncake_trace_1000.jsonl",
    "dynamo_replay_mooncake_tiny.jsonl",
]


@pytest.fixture(scope="module")
def traces() -> Path:
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("WINDTUNNEL_SHARED") or root.parent / "shared") / "traces"
    if not (folder / "MANIFEST.json").is_file():
        pytest.fail(f"{folder} has no MANIFEST.json: set WINDTUNNEL_SHARED to the folder that holds `traces`")
    return folder


def mean(values: object) -> float:
    numbers = list(values)  # type: ignore[call-overload]
    return sum(numbers) / len(numbers)


def blocks(workload: Workload, request: int, size: int = 512) -> list[int]:
    """The hash ids of a prompt, from its runs."""
    return [start // size + i for _, start, length in workload.prompt_runs(request) for i in range(-(-length // size))]


@pytest.mark.parametrize("name", FILES)
def test_lengths_and_span_are_those_of_the_manifest(traces: Path, name: str):
    facts = json.loads((traces / "MANIFEST.json").read_text())[name]
    workload = load_trace([str(traces / name)])
    assert workload.num_requests == workload.num_sessions == facts["rows"]
    assert round(mean(workload.input_tokens), 1) == facts["input"]["mean"]
    assert round(mean(workload.output_tokens), 1) == facts["output"]["mean"]
    assert max(workload.input_tokens) == facts["input"]["max"]
    assert max(workload.output_tokens) == facts["output"]["max"]
    assert min(workload.time_ms) == 0.0
    assert round(max(workload.time_ms) / 1000, 3) == facts["span_s"]


@pytest.mark.parametrize("name", FILES)
def test_every_block_of_every_prompt_is_the_one_of_the_file(traces: Path, name: str):
    facts = json.loads((traces / "MANIFEST.json").read_text())[name]["prefix"]
    path = traces / name
    workload = load_trace([str(path)])
    unique: set[int] = set()
    hits = 0
    with path.open() as lines:
        for request, line in enumerate(lines):
            row = json.loads(line)
            found = blocks(workload, request)
            assert found == row["hash_ids"]
            assert len(found) == -(-row["input_length"] // 512)
            assert workload.input_tokens[request] == row["input_length"]
            hits += next((i for i, block in enumerate(found) if block not in unique), len(found))
            unique.update(found)
    total = sum(-(-tokens // 512) for tokens in workload.input_tokens)
    assert total == facts["blocks"]
    assert len(unique) == facts["unique"]
    assert round(hits / total, 4) == facts["prefix_hit_ratio_infinite_cache"]


def test_the_conversation_trace_arrives_at_1180_instants(traces: Path):
    workload = load_trace([str(traces / "mooncake_conversation_trace.jsonl")])
    assert workload.num_requests == 12_031
    assert sum(workload.input_tokens) == 144_793_823
    assert len(set(workload.time_ms)) == 1_180
    driver = Driver(workload)
    instants = 0
    released: list[int] = []
    while not driver.exhausted:
        now_ms = driver.next_ready_ms()
        sent = driver.release(now_ms)
        instants += 1
        released += sent
        for request in sent:
            driver.finished(request, now_ms)
    assert instants == 1_180
    assert released == list(range(12_031))


def test_the_packaged_sample_is_the_beginning_of_the_conversation_trace(traces: Path):
    sample = Path(__file__).resolve().parents[2] / "src/windtunnel/data/mooncake_conversation_sample.jsonl"
    data = sample.read_bytes()
    assert (traces / "mooncake_conversation_trace.jsonl").read_bytes().startswith(data)
