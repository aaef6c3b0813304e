"""APEX's runs: which are usable, whose requests they had, and which policy stands in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from windtunnel import InputError
from windtunnel.validation.apex import FILE, _config, read_apex, replay_apex

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "validation"
FLAGS = {"gpu_memory_utilization": 0.97, "max_model_len": 24272}


def row(name: str, tp: int = 2, **change: Any) -> dict[str, Any]:
    return {
        "file": f"vllm/results/{name}.txt",
        "engine": "vllm",
        "model": "meta-llama/Llama-3.1-70B(-Instruct)",
        "tp": tp,
        "fp8": False,
        "flags": FLAGS,
        "requests": [[0.0, 300, 5], [40.0, 200, 9]],
        "usable": True,
        "ttft_mean_s": 0.05,
        "tpot_mean_s": 0.03,
        **change,
    }


def write(directory: Path, *rows: dict[str, Any]) -> Path:
    (directory / FILE).write_text(json.dumps({"runs": rows}))
    return directory


def test_only_usable_runs_of_vllm_are_read(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        row("a_validation_2TP"),
        row("b_validation_2TP", usable=False),
        row("c_validation_2TP", engine="sglang"),
    )
    (run,) = read_apex(directory)
    assert run.group == ("Llama-3.1-70B", "h100", "tp 2", "bf16")
    assert (run.ttft_ms, run.tpot_ms, run.workload) == (50.0, 30.0, "a")


def test_requests_that_were_not_recorded_are_those_of_the_parts_of_the_same_trace(tmp_path: Path) -> None:
    parts = [
        row(f"a_validation_4DP2TP_fp8_{part}", usable=False, requests=[[10.0 * part, 100 + part, 5]])
        for part in range(4)
    ]
    whole = [
        row(f"a_validation_{split}", tp, requests=None, fp8=True) for split, tp in (("8TP_fp8", 8), ("2DP4TP_fp8_1", 4))
    ]
    eight, half = read_apex(write(tmp_path, *parts, *whole))
    assert [request[1] for request in eight.requests] == [100, 101, 102, 103]
    assert [request[1] for request in half.requests] == [101, 103]
    assert eight.is_borrowed
    assert half.is_borrowed


def test_a_short_context_is_not_chunked_and_a_long_one_is(tmp_path: Path) -> None:
    chunked = row("b_validation_4TP", 4, flags={**FLAGS, "max_model_len": None})
    short, long = (_config(run) for run in read_apex(write(tmp_path, row("a_validation_2TP"), chunked)))
    assert short.engine.kind == "sglang"
    assert (short.engine.chunked_prefill_size, short.engine.max_prefill_tokens) == (-1, 24272)
    assert long.engine.kind == "vllm"
    assert long.engine.max_num_batched_tokens == 512


def test_a_run_is_replayed_as_an_open_loop(tmp_path: Path) -> None:
    (run,) = read_apex(write(tmp_path, row("a_validation_2TP")))
    found = {one.metric: one for one in replay_apex(run)}
    assert 25.0 < found["tpot"].predicted < 40.0
    assert found["ttft"].measured == 50.0
    assert [one.predicted for one in replay_apex(run)] == [one.predicted for one in found.values()]


def test_a_file_of_another_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_apex(tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(InputError, match="is not the file of APEX's runs"):
        read_apex(tmp_path)


@pytest.mark.shared
def test_all_69_usable_runs_are_read_and_what_is_missing_is_the_host() -> None:
    runs = read_apex(SHARED)
    assert len(runs) == 69
    assert sum(run.is_borrowed for run in runs) == 13
    # At light load a token takes some 3 ms longer than its kernels, however many GPUs share them.
    for name in ("lmsys_025_validation_4DP2TP_0", "lmsys_025_validation_2DP4TP_0", "lmsys_025_validation_8TP"):
        run = next(run for run in runs if run.file.endswith(f"llama_{name}.txt"))
        found = {one.metric: one for one in replay_apex(run)}
        assert 2.0 < found["tpot"].measured - found["tpot"].predicted < 4.0
