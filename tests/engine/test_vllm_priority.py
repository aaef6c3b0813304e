"""Priorities from a trace to the batch: who is admitted first, and who gives up blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from strategies import FlatTiming
from windtunnel import Config, simulate
from windtunnel.config.schema import VllmConfig

SIX_BLOCKS = {"kind": "vllm", "block_size": 4, "num_gpu_blocks": 6, "max_num_seqs": 8}


def admissions(tmp_path: Path, priorities: list[int | None], **engine: object) -> tuple[list[float], list[int]]:
    """First admissions (ms) and preemptions of requests of 8 and 8 tokens that arrive at once; a pass takes 1 ms."""
    rows = [
        {"timestamp": 0, "input_length": 8, "output_length": 8, "hash_ids": [2 * n, 2 * n + 1], "priority": priority}
        for n, priority in enumerate(priorities)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config.model_validate(
        {"engine": {**SIX_BLOCKS, **engine}, "workload": {"path": [str(trace)], "trace_block_size": 4}}
    )
    requests = simulate(config, timing=FlatTiming()).record.requests
    return list(requests.first_admit_ms), list(requests.preemptions)


def test_the_largest_priority_is_admitted_first_and_equals_in_order(tmp_path: Path) -> None:
    admitted, _ = admissions(tmp_path, [None, 2, 2, -1], scheduling_policy="priority", max_num_seqs=1)
    assert [admitted.index(at) for at in sorted(admitted)] == [1, 2, 0, 3]


def test_the_smallest_priority_is_preempted_wherever_it_stands(tmp_path: Path) -> None:
    assert admissions(tmp_path, [0, 1], scheduling_policy="priority")[1] == [1, 0]
    assert admissions(tmp_path, [1, 0], scheduling_policy="priority")[1] == [0, 1]


def test_first_come_first_served_does_not_look_at_priorities(tmp_path: Path) -> None:
    assert admissions(tmp_path, [0, 1])[1] == [0, 1]


@pytest.mark.parametrize(
    ("option", "value", "release"),
    [("watermark", 0.1, "0.20"), ("watermark", 0.1, "0.11"), ("scheduler_reserve_full_isl", False, "0.11")],
)
def test_an_option_that_a_release_does_not_have_is_refused(option: str, value: object, release: str) -> None:
    with pytest.raises(ValidationError, match="has no effect with behaviour"):
        VllmConfig.model_validate({option: value, "behaviour": release})


def test_an_unquoted_release_in_yaml_is_read_as_one() -> None:
    assert VllmConfig.model_validate({"behaviour": 0.2}).behaviour == "0.20"
