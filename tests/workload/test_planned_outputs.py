"""Outputs whose tokens a trace states are the same content where their tokens are the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from conversion.meaning import written
from windtunnel import Config, Workload, simulate
from windtunnel.conversion import slice_workload
from windtunnel.workload.content import Content, agree_until, output_origin
from windtunnel.workload.traces import load_trace

DELTA_ROWS = [
    {"session_id": session, "input_length": tokens, "output_length": 64, "hash_ids": ids, "output_token_ids": output}
    for session in ("s", "t")
    for tokens, ids, output in ((64, [1], list(range(64))), (16, [2], list(range(100, 164))))
]


def load(path: Path, rows: list[dict[str, Any]], **options: Any) -> Workload:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_trace(path, block_size=64, **options)


def alike(workload: Workload, a: int, b: int) -> int:
    """How many tokens two requests have in common from the beginning of their prompts on, outputs included."""
    one, other = (workload.content(request, workload.output_tokens[request]) for request in (a, b))
    return agree_until(one, other, 0, min(one.length, other.length))


def row(ids: list[int] | None, *, hashes: list[int] | None = None, **more: Any) -> dict[str, Any]:
    output = {} if ids is None else {"output_token_ids": ids}
    return {"input_length": 60, "output_length": 4, "hash_ids": hashes or [1], **output, **more}


def test_equal_ids_behind_equal_prompts_are_equal_content(tmp_path: Path) -> None:
    workload = load(
        tmp_path / "t.jsonl",
        [row([5, 6, 7, 8]), row([5, 6, 7, 8]), row([5, 6, 9, 9]), row([4, 5, 6, 7]), row(None), row([5, 6, 9, 9])],
    )
    assert [alike(workload, 0, other) for other in range(1, 6)] == [64, 62, 60, 60, 62]
    assert alike(workload, 2, 5) == 64
    assert alike(workload, 3, 4) == 60


def test_outputs_that_begin_like_no_other_cost_nothing(tmp_path: Path) -> None:
    workload = load(tmp_path / "t.jsonl", [row([5, 6, 7, 8]), row([6, 6, 7, 8]), row(None)])
    assert workload.planned is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("change", "expected"), [(0, [0, 112, 48, 128]), (1000, [0, 112, 48, 112])])
def test_a_session_hits_what_another_has_generated(
    tmp_path: Path, engine: str, change: int, expected: list[int]
) -> None:
    rows = [
        {**row, "output_token_ids": [i + change * (row["session_id"] == "t") for i in row["output_token_ids"]]}
        for row in DELTA_ROWS
    ]
    workload = load(tmp_path / "t.jsonl", rows, format="mooncake-delta")
    size = {"page_size": 16} if engine == "sglang" else {"block_size": 16}
    config = {"engine": {"kind": engine, **size}, "workload": {"concurrency": 1}}
    result = simulate(Config.model_validate(config), workload=workload)
    assert list(result.record.requests.hit_tokens) == expected


def test_a_row_of_token_ids_hits_an_output_that_is_read_after_it(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    texts = [(0, [1, 2, 3, 4, 5, 6, 7], [8]), (1, [1, 2, 3], [4, 5, 9]), (2, [1, 2, 3], [4, 5, 9, 9])]
    path.write_text(
        "".join(
            json.dumps({"arrival_time_ns": at, "input_toks": len(prompt), "output_toks": len(output)}
                       | {"input_tok_ids": prompt, "output_tok_ids": output}) + "\n"
            for at, prompt, output in texts
        )
    )  # fmt: skip
    workload = load_trace(path)
    assert [alike(workload, *pair) for pair in ((0, 1), (0, 2), (1, 2))] == [5, 5, 6]


def test_a_prompt_that_quotes_its_own_output_and_goes_on_in_it_is_one_content() -> None:
    workload = Workload()
    workload.add([(1, 0, 10)], 8)
    workload.plan(workload.add([(1, 0, 10)], 8), [(output_origin(0), 0, 8)])
    workload.plan(workload.add([(1, 0, 10), (output_origin(1), 0, 3)], 5), [(output_origin(0), 3, 5)])
    first, second, third = (workload.content(request, workload.output_tokens[request]) for request in range(3))
    assert first.runs() == second.runs() == third.runs()
    assert isinstance(third, Content)
    assert third.sources == second.sources != []


def random_workload(seed: int) -> Workload:
    """Short prompts, mostly equal, and outputs that part somewhere; some prompts quote what others generate."""
    dice = random.Random(seed)
    workload = Workload()
    for request in range(24):
        first = dice.randrange(request) if request else 0
        own = output_origin(request)
        output = dice.randint(1, 40)
        prompt = [(dice.choice((1, 1, 1, 2)), 0, 40)]
        if request and dice.random() < 0.3:
            prompt.append((output_origin(first), 0, dice.randint(1, workload.output_tokens[first])))
        workload.add(prompt, output, time_ms=dice.randint(0, 300))
        if request and dice.random() < 0.7:
            common = min(output, dice.randint(1, workload.output_tokens[first]))
            workload.plan(
                request, [(output_origin(first), 0, common), (own, common, output - common)][: 1 + (common < output)]
            )
    return workload  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "deployment",
    [
        {"engine": {"kind": "vllm", "block_size": 4, "num_gpu_blocks": 60}},
        {"engine": {"kind": "vllm", "block_size": 4, "num_gpu_blocks": 60, "async_scheduling": False},
         "cluster": {"workers": 3, "router": {"kind": "kv"}}},
        {"engine": {"kind": "sglang", "page_size": 4, "num_gpu_blocks": 80},
         "cluster": {"workers": 2, "router": {"kind": "kv"}}},
        {"engine": {"kind": "vllm", "block_size": 4, "num_gpu_blocks": 60, "async_scheduling": False},
         "cluster": {"prefill_workers": 1, "decode_workers": 2}},
    ],
    ids=["vllm", "vllm-kv-router", "sglang-kv-router", "split"],
)  # fmt: skip
def test_runs_and_single_passes_are_the_same_where_outputs_are_equal(seed: int, deployment: dict[str, Any]) -> None:
    workload = random_workload(seed)
    assert workload.planned is not None
    records = []
    for fast_forward in (True, False):
        data = {**deployment, "engine": {**deployment["engine"], "fast_forward": fast_forward}}
        record = simulate(Config.model_validate(data), workload=workload).record
        columns = {name: repr(list(value)) for name, value in vars(record.requests).items() if hasattr(value, "append")}
        records.append((columns, [list(passes.end_ms) for passes in record.passes]))
    assert records[0] == records[1]


def test_what_requests_generate_and_how_urgent_they_are_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        row([5, 6, 7, 8], timestamp=0, priority=2),
        row([5, 6, 9, 9], timestamp=1, strict_priority=1),
        row(None, timestamp=2, policy_class="bulk"),
        row([5, 6, 9, 9], timestamp=3),
    ]
    workload = load(path, rows)
    assert written(workload, "mooncake", path, block_size=64) == []
    back = load_trace(path, block_size=64)
    assert (back.priorities, back.urgency) == (workload.priorities, workload.urgency)
    assert [alike(back, a, b) for a in range(4) for b in range(a)] == [
        alike(workload, a, b) for a in range(4) for b in range(a)
    ]
    losses = written(workload, "vidur", path)
    assert {(loss.count, loss.things) for loss in losses if "which" in loss.message} == {
        (3, "requests"),
        (3, "outputs"),
    }


def test_a_part_of_a_trace_keeps_them_under_new_numbers(tmp_path: Path) -> None:
    rows = [
        row([5, 6, 7, 8], timestamp=0),
        row([5, 6, 7, 8], timestamp=10, strict_priority=1),
        row([5, 6, 7, 8], timestamp=11, priority=3),
        row([5, 6, 7, 8], timestamp=12, hashes=[7, 8], input_length=100),
    ]
    part = slice_workload(load(tmp_path / "t.jsonl", rows), start_ms=5.0)
    assert alike(part, 0, 1) == 64
    assert (part.priorities, set(part.urgency)) == ({1: 3}, {0, 1})
    kept = load(tmp_path / "t.jsonl", rows[::-1], on_overlong="drop", max_model_len=80)
    assert alike(kept, 0, 1) == alike(kept, 1, 2) == 64
    assert (kept.priorities, set(kept.urgency)) == ({0: 3}, {0, 1})


def test_a_text_that_quotes_a_request_that_is_left_out_keeps_its_length(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    long, answer = list(range(1, 30)), [50, 51, 52]
    path.write_text(
        "".join(
            json.dumps({"arrival_time_ns": 0, "input_toks": len(prompt), "output_toks": 3, "input_tok_ids": prompt,
                        "output_tok_ids": answer}) + "\n"
            for prompt in (long, [*long[:5]], [*long[:5], *answer, 9])
        )
    )  # fmt: skip
    workload = load_trace(path, on_overlong="drop", max_model_len=20)
    assert list(workload.input_tokens) == [5, 9]
    assert alike(workload, 0, 1) == 8
