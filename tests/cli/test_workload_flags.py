"""Flags of generated loads, mixed loads and traces at other times: what they set, and mistakes in one line."""

from __future__ import annotations

import json

import pytest
import yaml

from windtunnel.cli import main

MIX = """\
workload:
  classes:
    chat: {isl: 300, osl: 20, turns: 3, accumulate: true, requests: 10, rate: 5, slo: {ttft_ms: 200}}
    code: {isl: 'normal:mean=900,std=100', osl: 5, requests: 20, rate: 9, burstiness: 0.5}
    batch: {isl: 2000, osl: 30, requests: 6, concurrency: 2}
engine: {async_scheduling: false}
"""


@pytest.fixture
def mix(tmp_path):
    path = tmp_path / "mix.yaml"
    path.write_text(MIX)
    return path


def config_of(capsys, *arguments):
    assert main(["run", *arguments, "--print-config"]) == 0
    return yaml.safe_load(capsys.readouterr().out)["workload"]


def test_flags_of_a_generated_load(capsys):
    workload = config_of(
        capsys,
        *("--isl", "lognormal:mean=500,std=300", "--osl", "9", "--duration-s", "5", "--rate", "4"),
        *("--burstiness", "0.5", "--turns", "geometric:mean=2", "--turn-delay-ms", "exponential:mean=9"),
        *("--accumulate", "--prefix-tokens", "30", "--prefix-groups", "4", "--prefix-zipf", "1.1"),
    )
    synthetic = workload["synthetic"]
    assert synthetic["isl"]["kind"] == "lognormal"
    assert (synthetic["burstiness"], synthetic["accumulate"], synthetic["prefix_zipf"]) == (0.5, True, 1.1)
    assert (synthetic["turn_delay_ms"]["mean"], synthetic["duration_s"]) == (9, 5)


def test_flags_of_a_closed_loop_and_of_an_arrival_process(capsys):
    load = ("--isl", "5", "--osl", "5", "--requests", "5", "--turns", "2")
    workload = config_of(capsys, *load, "--concurrency", "3", "--concurrency-by", "request")
    assert (workload["concurrency"], workload["concurrency_by"]) == (3, "request")
    arrival = config_of(capsys, *load, "--arrival", "step:rates=[1, 2],step_s=5")["arrival"]
    assert (arrival["kind"], arrival["rates"]) == ("step", [1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--isl 9 --osl 9 --requests 9 --rate 1 --arrival poisson:rate=1", "give either --rate or --arrival, not both"),
        ("--isl 9 --osl 9 --requests 9 --concurrency 1 --burstiness 2", "--burstiness has no effect without --rate"),
        ("--isl nromal:mean=5 --osl 9 --requests 9 --rate 1", "--isl: found 'nromal', expected 'uniform' or 'normal'"),
        (
            "--isl 9 --osl 9 --requests 9 --arrival gama:rate=1",
            "--arrival: found 'gama', expected 'constant', 'poisson'",
        ),
        ("--isl 9 --osl 9 --requests 9 --arrival no.mod:x", "--arrival: 'no.mod:x': there is no module 'no' to import"),
        ("--isl 9 --osl 9 --rate 1e7 --duration-s 1e6", "--duration-s: more than 100,000,000 arrivals are to be"),
        (
            "--isl 9 --osl 9 --duration-s 100 --arrival ramp:start_rate=0,end_rate=1e12,ramp_s=50",
            "--duration-s: more than 100,000,000 arrivals are to be expected",
        ),
        ("--lengths /no/such.csv --rate 1 --requests 3", "/no/such.csv: no such file"),
        ("--slo chat:ttft=1s", "--slo chat:ttft: unknown class 'chat': the load has no classes of clients"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert main(["run", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"windtunnel: error: {message}")
    assert error.count("\n") == 1


def test_a_mixed_load_in_tables_report_and_requests(mix, tmp_path, capsys):
    files = (tmp_path / "report.json", tmp_path / "requests.jsonl")
    arguments = ["--config", str(mix), "--report", str(files[0]), "--requests-out", str(files[1]), "--no-run-info"]
    assert main(["run", *arguments]) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[-3:]] == ["chat", "code", "batch"]
    report = json.loads(files[0].read_text())
    classes = report["summary"]["classes"]
    assert {name: one["num_requests"] for name, one in classes.items()} == {"chat": 30, "code": 20, "batch": 6}
    assert report["summary"]["goodput_completed_requests"] == sum(
        one["goodput_completed_requests"] for one in classes.values()
    )
    records = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert sorted({record["class"] for record in records}) == ["batch", "chat", "code"]
    good = [r for r in records if r["class"] == "chat" and r["ttft_ms"] <= 200]
    assert classes["chat"]["goodput_completed_requests"] == len(good)


def test_the_limit_of_one_class_from_the_command_line(mix, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--config", str(mix), "--report", str(report), "--quiet"]
    assert main(["run", *arguments, "--slo", "chat:ttft=0ms", "--slo", "batch:e2e=1h"]) == 2
    assert main(["run", *arguments, "--slo", "chat:ttft=0ms", "--slo", "batch:e2e=900s"]) == 0
    classes = json.loads(report.read_text())["summary"]["classes"]
    assert [one["goodput_completed_requests"] for one in classes.values()] == [0, 20, 6]


def test_a_printed_mix_is_the_same_mix(mix, tmp_path, capsys):
    assert main(["run", "--config", str(mix), "--print-config"]) == 0
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out)
    reports = []
    for path in (mix, again):
        assert main(["run", "--config", str(path), "--quiet", "--no-run-info", "--report", "-"]) == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1]
