"""`windtunnel validate`: tables and JSON of errors, and the mistakes of its users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.cli import main


def test_a_section_in_tables(capsys) -> None:
    assert main(["validate", "--only", "sweep", "--timing", "roofline"]) == 0
    shown = capsys.readouterr().out
    assert "38 points" in shown
    assert "roofline" in shown
    assert "Two real runs of the same differ by a median of 0.8 % in TPOT and 3.5 % in TTFT." in shown


def test_the_same_in_json(capsys) -> None:
    assert main(["validate", "--only", "sweep", "--only", "shared-prefix", "--timing", "roofline", "--json"]) == 0
    sweep, shared = json.loads(capsys.readouterr().out)["sections"]
    (row,) = sweep["rows"]
    assert (row["priced_by"], row["count"]) == ("roofline", 38)
    assert row["mean"] < 0.06
    assert abs(shared["rows"][0]["error"]) < 0.12


def test_real_runs_without_layer_times_are_priced_by_the_roofline(capsys) -> None:
    assert main(["validate", "--only", "runs", "--json"]) == 0
    (section,) = json.loads(capsys.readouterr().out)["sections"]
    assert {row["priced_by"] for row in section["rows"]} == {"roofline"}
    assert len(section["rows"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sweeps"], "--only: found 'sweeps'; did you mean 'sweep'?"),
        (["--timing", "roof"], "--timing: found 'roof'; did you mean 'roofline'?"),
        (["--data", "nowhere"], "--data: no such directory of measurements"),
        (["--only", "silicon"], "--only: silicon needs --data: these measurements do not ship with the package"),
        (["--sample", "-1"], "--sample: found -1, expected at least 0 rows"),
        (
            ["--data", ".", "--only", "silicon", "--timing", "roofline"],
            "aiconfigurator_silicon_sample.json: cannot be read",
        ),
        (["--data", ".", "--only", "points"], "no files of points"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["validate", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
