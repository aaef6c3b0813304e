"""`windtunnel run --engine sglang`: the same command, the same reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.cli import main


def report_of(folder: Path, *arguments: str) -> dict[str, object]:
    path = folder / "report.json"
    assert main(["run", *arguments, "--no-run-info", "--quiet", "--report", str(path)]) == 0
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_one_word_changes_the_engine_and_nothing_else(tmp_path: Path) -> None:
    reports = {name: report_of(tmp_path, "--engine", name) for name in ("vllm", "sglang")}
    vllm, sglang = reports["vllm"], reports["sglang"]
    assert vllm.keys() == sglang.keys()
    assert vllm["workload"] == sglang["workload"]
    summaries = [report["summary"] for report in (vllm, sglang)]
    assert isinstance(summaries[0], dict)
    assert isinstance(summaries[1], dict)
    assert summaries[0].keys() == summaries[1].keys()
    assert summaries[0]["completed_requests"] == summaries[1]["completed_requests"] > 0
    assert summaries[0]["total_output_tokens"] == summaries[1]["total_output_tokens"]
    assert summaries[0]["mean_ttft_ms"] != summaries[1]["mean_ttft_ms"]


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_single_passes_give_the_same_report(overlap: str, tmp_path: Path) -> None:
    arguments = ["--engine", "sglang", "--set", f"engine.overlap_schedule={overlap}", "--limit", "120"]
    arguments += ["--set", "engine.num_gpu_blocks=200000", "--slo", "ttft=2s"]
    sample = ["sample:mooncake-conversation", "--workers", "2"]
    fast = report_of(tmp_path, *sample, *arguments)
    slow = report_of(tmp_path, *sample, *arguments, "--stepwise")
    assert fast["summary"] == slow["summary"]


def test_what_is_no_field_of_the_engine_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--engine", "sglang", "--set", "engine.block_size=16"]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: error: --set engine.block_size: is a field of the vllm engine, but the engine is sglang\n"
    )


def test_the_table_names_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--isl", "64", "--osl", "4", "--requests", "3", "--rate", "1"]
    assert main(["run", "--engine", "sglang", *load]) == 0
    assert "sglang, 1 worker" in capsys.readouterr().out
