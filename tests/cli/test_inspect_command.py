"""`windtunnel inspect`: what it prints, and the mistakes of its users."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windtunnel.cli import main


def test_the_sample_in_tables(capsys):
    assert main(["inspect", "sample:mooncake-conversation", "--max-model-len", "32768"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sample:mooncake-conversation | mooncake"
    assert "Rows             394 = 394 loaded + 0 left out" in lines
    assert "Requests         394 = 394 with an arrival + 0 without + 0 that follow others" in lines
    assert "Below 32,768     394 prompts = 359 below + 35 that reach it" in lines
    assert any(line.startswith("Input tokens") for line in lines)
    assert max(len(line) for line in lines) <= 120


def test_bars_are_as_long_as_their_counts(capsys):
    assert main(["inspect", "sample:mooncake-conversation"]) == 0
    text = capsys.readouterr().out.partition("Output tokens")[2]
    bars = [line for line in text.splitlines() if "█" in line]
    lengths = {int(line.split()[1].replace(",", "")): line.count("█") for line in bars}
    assert max(lengths.values()) == 50
    assert [lengths[count] for count in sorted(lengths)] == sorted(lengths.values())


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_a_narrow_terminal_cuts_no_number(width: str, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    assert main(["inspect", "sample:mooncake-conversation"]) == 0
    text = capsys.readouterr().out
    assert "5,529,311" not in text
    assert "13,934 blocks" in " ".join(text.split()) or "blocks of 512 tokens" in " ".join(text.split())


def test_json_is_one_value(capsys):
    assert main(["inspect", "sample:mooncake-conversation", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["arrivals"]["count"] == document["requests"] == 394
    assert {finding["name"] for finding in document["lint"]} == {"quantised arrivals"}


def test_several_files_are_one_trace(tmp_path: Path, capsys):
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"arrival_s,input,output\n{number},3,4\n")
        paths.append(str(path))
    assert main(["inspect", *paths, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["requests"], document["arrivals"]["span_ms"]) == (2, 1000.0)


def test_a_pipe_is_read_once_if_its_format_is_named(capsys):
    reader, writer = os.pipe()
    os.write(writer, b"arrival_s,input,output\n1,3,4\n")
    os.close(writer)
    assert main(["inspect", f"/dev/fd/{reader}", "--format", "plain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 1
    os.close(reader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv"], "none.csv: no such file"),
        (["t.csv", "--format", "plian"], "--format: unknown trace format 'plian'; did you mean 'plain'?"),
        (["t.csv", "--time-unit", "m"], "--time-unit: found 'm'; did you mean 'ms'?"),
        (["t.csv", "--max-model-len", "0"], "--max-model-len: found 0, expected at least 1 token"),
        (["t.csv"], "t.csv:1: arrival: states no unit: call the column arrival_s, arrival_ms, arrival_us or "
         "arrival_ns, or give time_unit"),
        (["t.csv", "--limit", "x"], "invalid value for '--limit': 'x' is not a valid int range"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("arrival,input,output\n1,2,3\n")
    assert main(["inspect", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("windtunnel: error: ")
    if "--limit" not in arguments:
        assert captured.err == f"windtunnel: error: {message}\n"
    assert captured.err.count("\n") == 1
