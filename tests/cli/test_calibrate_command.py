"""`windtunnel calibrate`: what it writes is a configuration, what it is not sure of it says."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from windtunnel.cli import main

pytest.importorskip("scipy")

H200 = str(files("windtunnel.validation") / "data" / "dynamo-h200-llama-3.1-8b-fp8.json")
LLAMA = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "h200", "--dtype", "fp8"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_becomes_a_configuration_that_runs(capsys, place) -> None:
    assert main(["calibrate", H200, "-o", "timing.yaml", *LLAMA]) == 0
    shown = capsys.readouterr()
    assert "decode_scale" in shown.out
    assert "on groups that were held out" in shown.out
    text = (place / "timing.yaml").read_text()
    timing = yaml.safe_load(text)["timing"]
    assert (timing["kind"], timing["gpu"], timing["dtype"]) == ("roofline", "h200-sxm", "fp8")
    assert timing["decode_scale"] == pytest.approx(1.008, abs=0.02)
    assert timing["prefill_scale"] == pytest.approx(1.177, abs=0.03)
    assert "#   client_ms: 13" in text
    run = ["run", "--config", "timing.yaml", "--isl", "100", "--osl", "9", "--requests", "5", "--rate", "9"]
    assert main(run) == 0


def test_the_same_data_give_the_same_file(capsys, place) -> None:
    for name in ("a.yaml", "b.yaml"):
        assert main(["calibrate", H200, "-o", name, *LLAMA]) == 0
    assert (place / "a.yaml").read_bytes() == (place / "b.yaml").read_bytes()


def test_what_is_not_in_the_data_is_said(capsys, place) -> None:
    Path("log.csv").write_text("ms,decode_requests,decode_context_tokens\n6,4,4000\n6.5,4,8000\n")
    assert main(["calibrate", "log.csv", "-o", "-", *LLAMA]) == 0
    shown = capsys.readouterr()
    assert "windtunnel: warning: nothing in the data depends on prefill_scale: 1 is an assumption" in shown.err
    assert yaml.safe_load(shown.out)["timing"]["model"] == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", "-o", "t.yaml", *LLAMA], "none.json: cannot be read: No such file or directory"),
        ([H200, "-o", "t.yaml"], "'polynomial' has no kernels apart from an overhead"),
        ([H200, "-o", "t.yaml", "--model", "Llama-3.1-8X", "--gpu", "h200"], "which is no model of the catalog"),
        (["run.json", "-o", "run.json", *LLAMA], "-o: 'run.json'"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, capsys) -> None:
    Path("run.json").write_text(json.dumps({"mean_ttft_ms": 1}))
    assert main(["calibrate", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
