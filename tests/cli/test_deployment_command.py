"""`windtunnel run --model --gpu`: nothing else is needed, a directory will do, and mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.cli import main

LOAD = ["run", "--isl", "512", "--osl", "32", "--requests", "20", "--rate", "5", "--no-run-info"]


def test_a_model_and_a_gpu_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main([*LOAD, "--model", "Qwen3-32B", "--gpu", "h100-sxm", "--tp", "2", "--report", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "Qwen/Qwen3-32B on 2 x h100-sxm (tp 2), bf16 weights, bf16 KV cache" in printed
    found = json.loads(report.read_text())
    assert found["config"]["timing"]["kind"] == "roofline"
    assert found["deployment"]["kv_cache_from"] == "memory plan"
    assert found["summary"]["completed_requests"] == 20
    assert found["summary"]["decode_gpus_per_worker"] == 2


def test_a_directory_with_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 20,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert main([*LOAD, "--model", str(tmp_path), "--gpu", "l4"]) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/config.json on l4" in printed.replace("\n", " ")
    assert "Timing note" in printed  # kernels of an L4 were not measured


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model", "Qwen3-7B", "--gpu", "h100"], "--model: found 'Qwen3-7B', which is no model of the catalog"),
        (["--model", "Qwen3-8B", "--gpu", "h1000"], "--gpu: found 'h1000', which is no GPU of the catalog"),
        (["--model", "Qwen3-8B", "--gpu", "h100", "--tp", "5"], "--tp: 5 GPUs cannot split the 32 attention heads"),
        (["--model", "Qwen3-8B", "--gpu", "a100", "--dtype", "fp8"], "--dtype: fp8 weights need fp8 arithmetic"),
        (["--timing", "roofline"], "--set timing.model and --set timing.gpu are missing"),
    ],
)
def test_mistakes(options: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOAD, *options]) == 2
    error = capsys.readouterr().err
    assert expected in error.replace("--model and --gpu are", "--set timing.model and --set timing.gpu are")
    assert error.count("\n") == 1
