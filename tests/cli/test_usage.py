"""What `windtunnel` says when it is called wrongly, or for its own sake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windtunnel import __version__
from windtunnel.cli import main


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--wokers", "3"], "unknown option '--wokers': did you mean '--workers'?"),
        (["run", "--block-size", "3"], "unknown option '--block-size': did you mean '--trace-block-size'?"),
        (["run", "--zzzzzzzzzz"], "unknown option '--zzzzzzzzzz': 'windtunnel run --help' lists the valid ones"),
        (["rum"], "unknown command 'rum': did you mean 'run'?"),
        (
            ["trace.jsonl"],
            "unknown command 'trace.jsonl': expected one of 'calibrate', 'convert', 'inspect', 'run', 'validate'",
        ),
        (["--verson"], "unknown option '--verson': did you mean '--version'?"),
        (["run", "--rate"], "option '--rate' requires an argument"),
        (["run", "--stepwise=no"], "option '--stepwise' does not take a value"),
        (
            ["run", "--set", "engine.blok_size=3"],
            "--set engine.blok_size: unknown field: did you mean 'engine.block_size'?",
        ),
        (["run", "--set", "engine=3"], "--set engine: is a section, expected one of its fields, such as engine.kind"),
        (
            ["run", "--workers", "2", "--set", "cluster.workers=3"],
            "--workers 2 and --set cluster.workers=3 contradict each other",
        ),
        (
            ["run", "t.jsonl", "--isl", "3"],
            "give either TRACE or --isl, not both: a load is read from traces, synthetic, or mixed of classes",
        ),
        (["run", "--isl", "3"], "--osl and --requests are missing: --isl needs them"),
        (
            ["run", "--rate", "3", "--interval-ms", "3", "--isl", "1", "--osl", "1", "--requests", "1"],
            "give either --rate or --interval-ms, not both",
        ),
        (["run", "--slo", "tfft=500ms"], "--slo: unknown limit 'tfft': did you mean 'ttft'?"),
        (["run", "--engine", "orca"], "--engine: found 'orca', expected 'vllm' or 'sglang'"),
        (["run", "--format", "moncake"], "--format: unknown trace format 'moncake'; did you mean 'mooncake'?"),
        (["run", "--router", "nowhere:at_all"], "--router: 'nowhere:at_all': there is no module 'nowhere' to import"),
        (
            ["run", "--set", "timing.kind=os:path"],
            "--set timing.kind: 'os:path' is no timing model: it has no method price_pass_ms",
        ),
        (
            ["run", "--trace-block-size", "99999999"],
            "--trace-block-size: found 99999999, expected from 1 to 1048576 tokens",
        ),
        (["run", "none.jsonl"], "none.jsonl: no such file"),
        (["run", "--config", "none.yaml"], "none.yaml: no such file, expected a configuration in YAML or JSON"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"windtunnel: error: {message}\n"
    assert captured.out == ""


def test_each_mistake_in_a_file_is_a_line_of_its_own(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("engine:\n  blok_size: 3\nseed: -1\n")
    assert main(["run", "--config", "c.yaml"]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: error: c.yaml:2: engine.blok_size: unknown field: did you mean 'engine.block_size'?\n"
        "windtunnel: error: c.yaml:3: seed: found -1, expected an integer of at least 0\n"
    )


def test_an_option_of_the_file_that_a_trace_reader_refuses_is_placed_there(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("workload:\n  format: moncake\n")
    assert main(["run", "--config", "c.yaml"]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: error: c.yaml:2: workload.format: unknown trace format 'moncake'; did you mean 'mooncake'?\n"
    )


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"windtunnel {__version__}\n"


def test_without_arguments_help_is_shown(capsys):
    assert main([]) == 0
    captured = capsys.readouterr()
    assert "Usage: windtunnel" in captured.out
    assert "run" in captured.out
    assert captured.err == ""


def test_help_groups_the_options_and_says_nothing_of_shells(capsys):
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for panel in ("Workload from traces", "Synthetic workload", "Any workload", "Deployment", "Simulation", "Output"):
        assert panel in text
    assert "completion" not in text
    assert "Prompt tokens of each request." in text
    assert "[error]" in text


def test_module_and_command_are_the_same_program():
    found = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "--wokers"], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 2
    assert found.stderr == "windtunnel: error: unknown option '--wokers': did you mean '--workers'?\n"
