"""Public traces survive a conversion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conversion.meaning import written
from windtunnel.workload.traces import load_trace

pytestmark = pytest.mark.shared
ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("WINDTUNNEL_SHARED") or ROOT.parent / "shared") / "traces"


@pytest.mark.parametrize("name", ["mooncake_conversation_trace", "mooncake_synthetic_trace"])
def test_a_mooncake_trace_written_as_one_is_the_same_file(name: str, tmp_path: Path):
    trace = TRACES / f"{name}.jsonl"
    assert written(load_trace([trace]), "mooncake", tmp_path / "out") == []
    assert (tmp_path / "out").read_bytes().splitlines() == trace.read_bytes().splitlines()


def test_the_2023_azure_trace_is_as_long_and_as_late(tmp_path: Path):
    workload = load_trace([TRACES / "azure_2023_conv.csv"])
    assert written(workload, "azure", tmp_path / "out") == []
    assert list(load_trace([tmp_path / "out"]).time_ms) == list(workload.time_ms)
