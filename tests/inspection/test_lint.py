"""What is said to be suspicious about a trace, and what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.cli import main
from windtunnel.inspection.unread import unread_names
from windtunnel.workload.traces import FORMATS
from workload.test_format_fixtures import EXPECTED, FIXTURES


def inspected(path: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["inspect", str(path), "--json", *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def findings(tmp_path: Path, capsys):
    """The findings about a file with this text: name -> (level, count, of)."""

    def inspect(text: str, *arguments: str) -> dict[str, tuple[str, int, int]]:
        path = tmp_path / "trace"
        path.write_text(text)
        found = inspected(path, *arguments, capsys=capsys)["lint"]
        return {f["name"]: (f["level"], f["count"], f["of"]) for f in found}

    return inspect


def mooncake(*rows: dict[str, Any]) -> str:
    usual = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    return "".join(json.dumps({**usual, **row}) + "\n" for row in rows)


def table(times: list[float], unit: str = "ms") -> str:
    return f"arrival_{unit},input,output\n" + "".join(f"{time},5,5\n" for time in times)


def test_a_trace_as_it_should_be_has_nothing_to_say(findings):
    assert findings(mooncake(*({"timestamp": 700 * n} for n in range(20)))) == {}


@pytest.mark.parametrize(
    ("times", "unit"),
    [([n / 2 for n in range(50)], "ms"), ([n * 500 for n in range(50)], "s"), ([n * 500 for n in range(50)], "ns")],
)
def test_rates_that_nobody_has_make_the_unit_suspicious(findings, times: list[float], unit: str):
    assert findings(table(times, unit)) == {"unit of times": ("warning", 50, 50)}


def test_rates_that_somebody_has_do_not(findings):
    assert findings(table([n * 500 for n in range(50)], "ms")) == {}
    assert findings(table([n * 2 for n in range(50)], "ms")) == {}


def test_arrivals_that_all_collapse_to_one_instant(findings):
    assert findings(table([7] * 12)) == {"unit of times": ("warning", 12, 12)}


def test_a_block_size_that_does_not_fit_the_lengths(findings):
    rows = [{"timestamp": 900 * n, "input_length": 40 + n, "hash_ids": [n, n + 1, n + 2]} for n in range(8)]
    found = findings(mooncake(*rows), "--format", "mooncake")
    assert found == {"block size": ("warning", 8, 8), "surplus hash ids": ("warning", 8, 8)}
    short = [{"timestamp": 900 * n, "input_length": 4096, "hash_ids": list(range(8))} for n in range(8)]
    found = findings(mooncake(*short), "--trace-block-size", "16")
    assert found == {"too few hash ids": ("error", 8, 8), "block size": ("warning", 8, 8)}


def test_the_block_size_that_would_fit_is_named(tmp_path: Path, capsys):
    path = tmp_path / "trace"
    path.write_text(mooncake(*({"input_length": 4096, "hash_ids": list(range(8))} for _ in range(3))))
    found = inspected(path, "--trace-block-size", "64", capsys=capsys)["lint"]
    (message,) = [finding["message"] for finding in found if finding["name"] == "block size"]
    assert message.endswith("is the block size 512 rather than 64 (--trace-block-size 512)?")


def test_zero_tokens(findings):
    found = findings("Timestamp,Request tokens,Response tokens\n5,0,0\n6,5,0\n7,5,5\n8,0,3\n")
    assert found == {"no input tokens": ("error", 2, 4), "no output tokens": ("warning", 1, 2)}


def test_overlong_prompts_and_outputs(findings):
    rows = [{"timestamp": 1000 * n, "input_length": 100 * (n + 1)} for n in range(5)]
    found = findings(mooncake(*rows), "--max-model-len", "400")
    assert found == {"overlong prompt": ("warning", 2, 5)}
    rows[0]["output_length"] = 350
    assert findings(mooncake(*rows), "--max-model-len", "400")["output cut short"] == ("note", 1, 5)


def test_missing_and_falling_arrivals(findings):
    found = findings("arrival_s,input,output\n5,1,1\n,1,1\n3,1,1\n9,1,1\n")
    assert found == {"missing arrivals": ("warning", 1, 4), "decreasing arrivals": ("note", 2, 4)}
    assert findings("input,output\n1,1\n1,1\n") == {"missing arrivals": ("warning", 2, 2)}


def test_quantised_arrivals(findings):
    found = findings(table([3000 * (n // 4) for n in range(40)]))
    assert found == {"quantised arrivals": ("note", 30, 40)}


def test_ids_that_are_there_twice(findings):
    rows = [{"timestamp": 900 * n, "request_id": name} for n, name in enumerate("abab")]
    assert findings(mooncake(*rows)) == {"repeated request id": ("warning", 2, 4)}
    agentic = [{"request_id": name, "wait_for": []} for name in "aba"]
    assert findings(mooncake(*agentic)) == {"request id seen before": ("error", 1, 3)}


def test_circles_and_unknown_dependencies(findings):
    waits = {"a": [], "b": ["c"], "c": ["b"], "d": ["c"], "e": ["x"], "f": ["e"], "g": ["a"]}
    text = mooncake(*({"request_id": name, "wait_for": names} for name, names in waits.items()))
    found = findings(text)
    assert found["waits for itself in a circle"] == ("error", 3, 7)
    assert found["waits for an unknown request"] == ("error", 2, 7)


def test_unread_columns(findings):
    found = findings("arrival_s,input,output,model,user\n1,1,1,x,y\n2,1,1,x,y\n")
    assert found == {"unread column": ("note", 2, 2)}
    assert findings(mooncake({"type": "chat"}, {"timestamp": 500})) == {"unread column": ("note", 1, 2)}


def test_what_is_below_an_unread_member_is_not_listed_too(tmp_path: Path):
    path = tmp_path / "trace"
    path.write_text(mooncake({"meta": {"a": 1, "hash_ids": [{"b": 2}]}, "hash_ids": [1]}) + "oops\n")
    assert unread_names([str(path)], FORMATS["mooncake"].fields) == ({"meta": 1}, 2)


def test_output_lengths_that_are_not_stated(findings):
    found = findings((FIXTURES / "servegen_hash.jsonl").read_text())
    assert found["missing output length"] == ("error", 3, 3)


@pytest.mark.parametrize("name", EXPECTED)
def test_counts_of_every_fixture_add_up(name: str, tmp_path: Path, capsys):
    path = tmp_path / "trace"
    text = (FIXTURES / name).read_text()
    broken = text if name.endswith(".json") else text + "\n\noops\n"
    path.write_text(broken)
    document = inspected(path, "--format", EXPECTED[name][0], capsys=capsys)
    loading = document["loading"]
    assert loading["rows"] == loading["loaded_rows"] + loading["skipped_rows"]
    assert loading["skipped_rows"] == sum(loading["skipped"].values()) == (not name.endswith(".json"))
    assert sum(f["count"] for f in document["lint"] if f["name"] in loading["skipped"]) == loading["skipped_rows"]
    for column in ("input_tokens", "output_tokens"):
        bins = sum(part["requests"] for part in document[column]["histogram"])
        assert bins + document[column]["zeros"] == document["requests"]
    for finding in document["lint"]:
        assert 0 < finding["count"] <= finding["of"]
