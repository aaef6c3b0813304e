"""Every public trace beside the project loads, with the statistics that its manifest gives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace

pytestmark = pytest.mark.shared

FORMATS = {
    "apex_llama_creation_05.csv": "plain",
    "apex_llama_lmsys_05.csv": "plain",
    "apex_mistral_creation_05.csv": "plain",
    "apex_mistral_lmsys_05.csv": "plain",
    "azure_2023_code.csv": "azure",
    "azure_2023_conv.csv": "azure",
    "dynamo_mooncake_trace_1000.jsonl": "mooncake",
    "dynamo_mooncake_trace_tiny.jsonl": "mooncake",
    "dynamo_pi_request_trace.jsonl.gz": "dynamo",
    "dynamo_replay_mooncake_tiny.jsonl": "mooncake",
    "lengths_sharegpt_vicuna.csv": "plain",
    "lengths_swebench_lite.csv": "plain",
    "llmservingsim_example_trace.jsonl": "llmservingsim",
    "llmservingsim_sharegpt-llama-3.1-8b-300-sps10.jsonl": "llmservingsim",
    "llmservingsim_sharegpt-qwen3-32b-300-sps10.jsonl": "llmservingsim",
    "llmservingsim_workload_me2_01_mixed.jsonl": "llmservingsim",
    "mooncake_conversation_trace.jsonl": "mooncake",
    "mooncake_synthetic_trace.jsonl": "mooncake",
    "servegen_sample_deepseek_r1.csv": "plain",
    "servegen_sample_m_small.csv": "plain",
}
ZERO_ROWS = {"lengths_sharegpt_vicuna.csv": 745}


@pytest.fixture(scope="module")
def traces() -> Path:
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("WINDTUNNEL_SHARED") or root.parent / "shared") / "traces"
    if not (folder / "MANIFEST.json").is_file():
        pytest.fail(f"{folder} has no MANIFEST.json: set WINDTUNNEL_SHARED to the folder that holds `traces`")
    return folder


def facts(traces: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((traces / "MANIFEST.json").read_text())
    return found


def load(path: Path) -> Workload:
    options = {"missing_output_tokens": 0} if path.name == "lengths_swebench_lite.csv" else {}
    return load_trace([path], on_bad_row="skip", **options)  # type: ignore[arg-type]


def test_every_file_of_the_manifest_is_here(traces: Path):
    assert set(facts(traces)) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_trace_has_the_statistics_of_its_manifest(traces: Path, name: str):
    known = facts(traces)[name]
    workload = load(traces / name)
    loading = workload.loading
    assert loading is not None
    assert loading.format == FORMATS[name]
    assert loading.rows == known["rows"]
    assert loading.skipped_rows == ZERO_ROWS.get(name, 0)
    zeros = ZERO_ROWS.get(name, 0)
    for column, lengths in (("input", workload.input_tokens), ("output", workload.output_tokens)):
        if column not in known:
            continue
        values = np.array(lengths, dtype=np.float64)
        if zeros and column == "input":
            values = np.append(values, np.zeros(zeros))
        elif zeros:
            continue  # the outputs of rows without a prompt are not loaded
        assert round(float(values.mean()), 1) == known[column]["mean"]
        assert values.max() == known[column]["max"]
        assert np.count_nonzero(values == 0) == known[column]["zeros"]
        assert (
            sorted(values)[len(values) // 2 - 1 : len(values) // 2 + 1][0]
            <= known[column]["p50"]
            <= np.median(values) + (values.max() > np.median(values))
        )
    if "span_s" in known:
        assert max(workload.time_ms) / 1000 == pytest.approx(known["span_s"], abs=6e-4)


def test_the_agent_run_is_a_tree_of_five_sessions(traces: Path):
    workload = load(traces / "dynamo_pi_request_trace.jsonl.gz")
    assert (workload.num_requests, workload.num_sessions) == (17, 5)
    assert len(workload.roots()) == 2
    joined = next(request for request, waits in workload.dependencies.items() if len(waits) > 1)
    children = {workload.session_ids[workload.session[before]] for before in workload.dependencies[joined]}
    assert children == {"pi-qwen-noadm-agentic-20260519T035759Z:root", *(f"ea45d969:{n}" for n in (
        "scout:0", "scout:1", "reviewer:2"))}  # fmt: skip


def test_token_ids_become_a_few_runs_a_prompt(traces: Path):
    workload = load(traces / "llmservingsim_sharegpt-llama-3.1-8b-300-sps10.jsonl")
    num_runs = sum(len(workload.prompt_runs(request)) for request in range(300))
    assert sum(workload.input_tokens) == 257_239
    assert num_runs < 600


def test_token_ids_share_what_the_ids_share(traces: Path):
    path = traces / "llmservingsim_sharegpt-qwen3-32b-300-sps10.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    workload = load(path)
    for first in range(0, 300, 7):
        for second in range(first + 1, 300, 11):
            ids = [rows[request]["input_tok_ids"] for request in (first, second)]
            agree = next((i for i, (a, b) in enumerate(zip(*ids, strict=False)) if a != b), min(map(len, ids)))
            a, b = (workload.content(request, 0) for request in (first, second))
            if agree:
                assert a.key(0, agree) == b.key(0, agree)
            if agree < min(map(len, ids)):
                assert a.key(agree, 1) != b.key(agree, 1)
