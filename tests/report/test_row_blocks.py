"""A report that is made block by block is the report that is made at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel import Config, simulate
from windtunnel.report import row_blocks
from windtunnel.report.distribution import describe
from windtunnel.report.document import build_report
from windtunnel.report.requests import request_records
from windtunnel.report.row_blocks import Samples

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "preemptions": {"engine": {"num_gpu_blocks": 60, "block_size": 16}},
    "speculation": {
        "engine": {
            "speculation": {"method": "ngram", "num_speculative_tokens": 2, "accepted_tokens": [2, 0, 1]},
            "num_gpu_blocks": 80,
            "block_size": 16,
        }
    },
    "split": {"cluster": {"prefill_workers": 1, "decode_workers": 2}},
}


def agrees(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(agrees(a[key], b[key]) for key in a)
    return math.isclose(a, b, rel_tol=1e-12) if isinstance(a, float) else a == b


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_blocks_of_any_size_make_the_same_report(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {
        "a": {"isl": 300, "osl": "uniform:min=1,max=200", "rate": 9.0, "requests": 40, "slo": {"ttft_ms": 90.0}},
        "b": {"isl": 80, "osl": 30, "turns": 2, "rate": 5.0, "requests": 15},
    }
    data = {
        **DEPLOYMENTS[name],
        "workload": {"classes": classes},
        "output": {"run_info": False},
        "slo": {"itl_ms": 7.0},
    }
    data["max_time_s"] = 5.0
    result = simulate(Config.model_validate(data))
    report, records = build_report(result), list(request_records(result))
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", rows)
    assert agrees(build_report(result), report)
    assert list(request_records(result)) == records
    assert json.dumps(report)


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.lists(st.floats(-1e9, 1e9) | st.just(2.5), max_size=30), max_size=6))
def test_samples_in_parts_have_the_statistics_of_the_whole(parts: list[list[float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windtunnel.disk_columns.ROWS_IN_MEMORY", 20)
        samples = Samples()
        for part in parts:
            samples.add(np.array(part, dtype=np.float64))
    whole = np.array([value for part in parts for value in part], dtype=np.float64)
    assert len(samples) == len(whole)
    assert describe(samples) == describe(whole)


def test_a_report_gives_back_what_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"workload": {"synthetic": {"isl": 9, "osl": 2, "requests": 50, "rate": 100.0}}}
    result = simulate(Config.model_validate(config))
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 10)
    given_back = 0

    def count() -> None:
        nonlocal given_back
        given_back += 1

    monkeypatch.setattr(type(result.record), "give_back", lambda _: count())
    build_report(result)
    assert given_back >= 4 * 5  # summary, lengths, arrivals, trust: each of five blocks
