"""Every format reads its fixture: which requests, sessions, lengths, times and dependencies its rows mean."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputError
from windtunnel.workload.content import output_origin
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import FORMATS, load_trace

FIXTURES = Path(__file__).parent / "fixtures"
NAMED_ONLY = {"mooncake_delta.jsonl": "mooncake-delta", "vllm_timed_trace.jsonl": "vllm-timed-trace"}
OPTIONS: dict[str, dict[str, Any]] = {
    "servegen_hash.jsonl": {"missing_output_tokens": 6},
    "aiperf_multi.jsonl": {"missing_output_tokens": 6},
    "mooncake_delta.jsonl": {"format": "mooncake-delta"},
    "vllm_timed_trace.jsonl": {"format": "vllm-timed-trace"},
}

# File: format, sessions, prompt lengths, output lengths, times in ms (arrivals of roots, else delays).
EXPECTED: dict[str, tuple[str, list[int], list[int], list[int], list[float]]] = {
    "mooncake.jsonl": ("mooncake", [0, 1, 2, 1], [1200, 1400, 500, 2000], [50, 8, 1, 20], [0, 3000, 3000, 6000]),
    "mooncake_delta.jsonl": ("mooncake-delta", [0, 1, 0, 0], [1000, 512, 1094, 1116], [64, 10, 2, 5], [0, 50, 250, 50]),
    "agentic_mooncake.jsonl": (
        "agentic-mooncake",
        [0, 1, 2, 0],
        [512, 513, 512, 512],
        [3, 3, 2, 1],
        [100, 50, 110, 0],
    ),
    "applied_compute_agentic.jsonl": (
        "applied-compute-agentic",
        [0, 0, 0, 1],
        [100, 140, 200, 320],
        [10, 20, 5, 2],
        [0, 500, 1250, 0],
    ),
    "dynamo.jsonl": ("dynamo", [0, 1], [200, 100], [3, 3], [0, 1000]),
    "dynamo_agentic.jsonl": ("dynamo", [0, 1, 0], [2, 3, 4], [5, 5, 5], [0, 100, 200]),
    "azure_2023.csv": ("azure", [0, 1, 2], [4808, 3180, 110], [10, 8, 27], [0, 52, 20_576_020.0401]),
    "azure_2024.csv": ("azure", [0, 1, 2], [2162, 2399, 76], [5, 6, 15], [0, 7.405, 990.07]),
    "burstgpt_v1.csv": ("burstgpt", [0, 1, 2], [472, 1087, 417], [18, 230, 0], [0, 40_000, 113_000]),
    "burstgpt_v3.csv": ("burstgpt", [0, 0, 0, 1], [472, 1087, 1400, 417], [18, 230, 12, 276], [0, 37_500, 0, 113_000]),
    "bailian.jsonl": (
        "bailian",
        [0, 0, 0, 0, 1],
        [47, 60, 50, 64, 16],
        [400, 132, 7, 9, 1],
        [0, 1500, 10_000, 10_000, 500],
    ),
    "servegen_hash.jsonl": ("servegen", [0, 1, 2], [31, 48, 30], [6, 6, 6], [0, 0, 0]),
    "servegen_stat.jsonl": ("servegen", [0, 1], [61, 54], [2370, 2031], [0, 0]),
    "vidur.csv": ("vidur", [0, 1, 2], [374, 396, 879], [44, 109, 55], [0, 4314.579, 4545.5]),
    "llmservingsim.jsonl": (
        "llmservingsim",
        [0, 1, 2, 3],
        [4, 5, 8, 27],
        [3, 2, 1, 16],
        [0, 1, 301.012144, 401.012144],
    ),
    "llmservingsim_agentic.jsonl": ("llmservingsim", [0, 0, 1], [1472, 1582, 128], [133, 125, 512], [0, 127.348767, 1]),
    "sharegpt.json": ("sharegpt", [0, 0, 1], [21, 31, 11], [7, 3, 7], [0, 0, 0]),
    "vllm_timed_trace.jsonl": ("vllm-timed-trace", [0, 1], [40, 48], [2, 3], [0, 2500]),
    "vllm_bench.json": ("vllm-bench", [0, 1, 2], [1024, 64, 512], [16, 9, 0], [0, 750, 1200]),
    "aiperf_single.jsonl": ("aiperf", [0, 1, 2], [11, 4, 4], [20, 4, 9], [0, 1500, 250]),
    "aiperf_multi.jsonl": ("aiperf", [0, 0, 1, 1], [6, 22, 3, 11], [12, 3, 6, 6], [1000, 3000, 0, 700]),
    "openai_log.jsonl": ("openai-log", [0, 1, 2, 3], [68, 12, 22, 256], [25, 7, 2, 128], [0, 1500, 4000, 250]),
    "plain.csv": ("plain", [0, 1, 0], [100, 200, 150], [10, 20, 5], [0, 1000, 1500]),
    "plain.jsonl": ("plain", [0, 1], [10, 20], [1, 2], [2, 0]),
}


def load(name: str, **options: Any) -> Workload:
    return load_trace([FIXTURES / name], **{**OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fixture_means_these_requests(name: str):
    workload = load(name)
    format, session, input_tokens, output_tokens, time_ms = EXPECTED[name]
    assert workload.loading is not None
    assert workload.loading.format == format
    assert list(workload.session) == session
    assert list(workload.input_tokens) == input_tokens
    assert list(workload.output_tokens) == output_tokens
    assert list(workload.time_ms) == pytest.approx(time_ms, abs=1e-6)


def test_every_format_has_a_fixture_and_every_fixture_an_expectation():
    assert {path.name for path in FIXTURES.iterdir()} == set(EXPECTED)
    assert {expected[0] for expected in EXPECTED.values()} == set(FORMATS)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_counts_of_rows_add_up(name: str):
    loading = load(name).loading
    assert loading is not None
    data = (FIXTURES / name).read_text()
    rows = len(data.splitlines()) - name.endswith(".csv")
    if name == "vllm_bench.json":
        rows = json.loads(data)["num_prompts"]
    if name == "sharegpt.json":
        rows = len(json.loads(data))
    assert loading.rows == loading.loaded_rows == rows
    assert loading.skipped == {}


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - set(NAMED_ONLY)))
def test_a_fixture_is_recognised_by_what_is_in_it(name: str, tmp_path: Path):
    copy = tmp_path / "nameless"
    copy.write_bytes((FIXTURES / name).read_bytes())
    loading = load_trace([copy], **OPTIONS.get(name, {})).loading
    assert loading is not None
    assert loading.format == EXPECTED[name][0]


@pytest.mark.parametrize("name", EXPECTED)
def test_compressed_is_the_same(name: str, tmp_path: Path):
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress((FIXTURES / name).read_bytes()))
    assert list(load_trace([packed], **OPTIONS.get(name, {})).time_ms) == list(load(name).time_ms)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_pipe_is_the_same(name: str):
    reader, writer = os.pipe()
    os.write(writer, (FIXTURES / name).read_bytes())
    os.close(writer)
    piped = load_trace([f"/dev/fd/{reader}"], **{"format": EXPECTED[name][0], **OPTIONS.get(name, {})})
    os.close(reader)
    assert list(piped.time_ms) == list(load(name).time_ms)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_limit_reads_the_first_rows_only(name: str):
    limited = load(name, limit=2)
    assert limited.loading is not None
    assert limited.loading.rows == 2
    assert limited.num_requests <= load(name).num_requests


@pytest.mark.parametrize("name", ["mooncake.jsonl", "bailian.jsonl", "burstgpt_v3.csv", "plain.csv", "vidur.csv"])
def test_a_speedup_divides_arrivals_and_delays(name: str):
    assert list(load(name, speedup=2.0).time_ms) == [time_ms / 2 for time_ms in load(name).time_ms]


def test_a_timed_trace_is_not_taken_for_one_of_mooncake():
    with pytest.raises(InputError) as caught:
        load_trace([FIXTURES / "vllm_timed_trace.jsonl"])
    assert "looks like mooncake (" in str(caught.value)
    assert " and vllm-timed-trace (" in str(caught.value)
    assert str(caught.value).endswith("name the right one with `format`")


def test_a_block_size_that_is_given_makes_it_one_of_mooncake():
    workload = load_trace([FIXTURES / "vllm_timed_trace.jsonl"], block_size=16)
    assert list(workload.time_ms) == [0.0, 2.5]


def test_a_delta_is_a_mooncake_trace_unless_it_is_named():
    loading = load_trace([FIXTURES / "mooncake_delta.jsonl"]).loading
    assert loading is not None
    assert loading.format == "mooncake"


@pytest.mark.parametrize("alias", ["mooncake_delta", "agentic_mooncake", "applied_compute_agentic", "qwen-bailian"])
def test_an_alias_is_a_name(alias: str):
    name = {"mooncake_delta": "mooncake_delta", "qwen-bailian": "bailian"}.get(alias, alias)
    assert load_trace([FIXTURES / f"{name}.jsonl"], format=alias).num_requests


def test_the_prompt_of_a_delta_holds_the_turns_and_outputs_before_it():
    workload = load("mooncake_delta.jsonl")
    assert workload.prompt_runs(2) == [(0, 512, 1000), (output_origin(0), 0, 64), (0, 3 * 512, 30)]
    assert workload.prompt_runs(3) == [*workload.prompt_runs(2), (output_origin(2), 0, 2), (0, 4 * 512, 20)]
    assert workload.accumulates


def test_dependencies_are_those_of_the_rows():
    assert load("agentic_mooncake.jsonl").dependencies == {0: (), 1: (0,), 2: (), 3: (1, 2)}
    assert load("dynamo_agentic.jsonl").dependencies == {0: (), 1: (0,), 2: (0, 1)}
    assert load("dynamo.jsonl").dependencies == {}


def test_the_first_of_several_chats_continues_and_the_others_branch_off():
    workload = load("bailian.jsonl")
    assert workload.next_turn[0] == 1
    assert workload.dependencies == {2: (0,), 3: (1,)}
    assert list(workload.roots()) == [0, 4]


def test_block_hashes_of_16_tokens_share_a_prefix():
    first, second = (load("bailian.jsonl").content(request, 0) for request in (0, 1))
    assert first.key(0, 47) == second.key(0, 47)


def test_embedded_64_bit_hashes_are_equal_where_they_are_equal():
    workload = load("dynamo.jsonl")
    assert workload.content(0, 0).key(0, 64) == workload.content(1, 0).key(0, 64)
    assert workload.content(0, 0).key(64, 36) != workload.content(1, 0).key(64, 36)


def test_turns_of_an_agent_begin_with_the_prompt_before():
    workload = load("applied_compute_agentic.jsonl")
    assert workload.content(1, 0).key(0, 100) == workload.content(0, 0).key(0, 100)
    assert workload.content(3, 0).key(0, 100) != workload.content(0, 0).key(0, 100)


def test_token_ids_share_exactly_their_common_prefixes():
    workload = load("llmservingsim.jsonl")
    prompts = [workload.content(request, 0) for request in range(4)]
    assert prompts[0].key(0, 2) == prompts[1].key(0, 2)
    assert prompts[0].key(2, 1) != prompts[1].key(2, 1)
    assert workload.prompt_runs(2)[-2:] == [(output_origin(0), 0, 3), (0, 9, 1)]
    assert prompts[3].key(0, 1) not in [prompt.key(0, 1) for prompt in prompts[:3]]


def test_prompts_of_lengths_only_share_nothing():
    for name in ("azure_2023.csv", "burstgpt_v3.csv", "vidur.csv", "vllm_bench.json", "openai_log.jsonl", "plain.csv"):
        workload = load(name)
        origins = [workload.prompt_runs(request)[0][0] for request in range(workload.num_requests)]
        assert len(set(origins)) == len(origins), name


def test_equal_texts_are_equal_content():
    workload = load("sharegpt.json")
    assert workload.content(0, 0).key(0, 7) == workload.content(2, 0).key(0, 7)
    assert workload.prompt_runs(1)[:3] == [*workload.prompt_runs(0), (output_origin(0), 0, 7)]


@pytest.mark.parametrize("name", ["applied_compute_agentic.jsonl"])
def test_sessions_without_arrivals_need_a_closed_loop(name: str):
    assert load(name).needs_concurrency


def test_a_benchmark_without_start_times_needs_a_closed_loop(tmp_path: Path):
    result = json.loads((FIXTURES / "vllm_bench.json").read_text())
    del result["start_times"]
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert load_trace([path]).needs_concurrency == "the result has no start_times"


def test_sessions_of_one_group_share_the_blocks_asked_for(tmp_path: Path):
    row = json.loads((FIXTURES / "applied_compute_agentic.jsonl").read_text().splitlines()[1])
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([json.dumps(row)] * 4))
    workload = load_trace([path], block_size=64, prefix_ratio=0.5, prefix_groups=2)
    assert [workload.prompt_runs(request)[0] for request in range(4)] == [(0, 0, 192), (1, 0, 192)] * 2
    assert len({workload.prompt_runs(request)[1] for request in range(4)}) == 4


def names(read: Callable[[Workload], list[str]], name: str) -> list[str]:
    return read(load(name))


@pytest.mark.parametrize(
    ("name", "requests", "sessions"),
    [
        ("mooncake.jsonl", ["0", "1", "2", "late"], ["0", "chat-1", "2"]),
        ("agentic_mooncake.jsonl", ["r1", "r2", "r3", "r4"], ["root", "child", "2"]),
        ("dynamo_agentic.jsonl", ["parent-1", "child-1", "parent-2"], ["root", "child"]),
        ("bailian.jsonl", ["55", "159", "160", "161", "162"], ["55", "162"]),
        ("burstgpt_v3.csv", [], ["3f6c", "3"]),
        ("openai_log.jsonl", ["chatcmpl-1", "resp-2", "job-3", "req_4"], []),
        ("plain.jsonl", ["first", "second"], []),
        ("sharegpt.json", [], ["QWJhYvA_0", "i6IyJda_0"]),
    ],
)
def test_requests_and_sessions_keep_their_names(name: str, requests: list[str], sessions: list[str]):
    workload = load(name)
    assert workload.request_ids == requests
    assert workload.session_ids == sessions


def test_a_request_without_arrival_is_known_to_have_none(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n')
    assert list(load_trace([path]).time_ms) == [0.0]
    assert not math.isnan(load_trace([path]).time_ms[0])
