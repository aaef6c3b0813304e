"""The table of formats in the documentation says of each what its reader does."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from windtunnel.workload.traces import FORMATS, load_trace
from windtunnel.workload.traces.rows import read_head
from workload.test_format_fixtures import EXPECTED, FIXTURES, OPTIONS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
NAME = re.compile(r"`([^`]+)`")
ROWS = {
    NAME.findall(cells[0])[0]: cells
    for line in DOCUMENT.read_text().splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
MS_PER_UNIT = {"s": 1000.0, "ms": 1.0, "ns": 1e-6, "s or date": 1000.0}
# Where two arrivals of a fixture stand: file, and the members of two rows that begin something.
ARRIVALS = {
    "mooncake": ("mooncake.jsonl", 0, 2, "timestamp"),
    "mooncake-delta": ("mooncake_delta.jsonl", 0, 1, "timestamp"),
    "agentic-mooncake": ("agentic_mooncake.jsonl", 0, 2, "timestamp"),
    "bailian": ("bailian.jsonl", 0, 4, "timestamp"),
    "burstgpt": ("burstgpt_v1.csv", 0, 2, "Timestamp"),
    "vidur": ("vidur.csv", 0, 2, "arrived_at"),
    "llmservingsim": ("llmservingsim.jsonl", 0, 3, "arrival_time_ns"),
    "vllm-timed-trace": ("vllm_timed_trace.jsonl", 0, 1, "timestamp"),
    "aiperf": ("aiperf_single.jsonl", 0, 1, "timestamp"),
}


def members(value: Any) -> set[str]:
    """Names of all members of a JSON value, at any depth."""
    if isinstance(value, list):
        return set().union(*map(members, value)) if value else set()
    if isinstance(value, dict):
        return set(value) | members(list(value.values()))
    return set()


def rows_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    if path.suffix == ".json":
        value = json.loads(text)
        return value if isinstance(value, list) else [value]
    return [json.loads(line) for line in text.splitlines()]


def names_in(format: str, column: int) -> set[str]:
    cell = ROWS[format][column]
    found = set(NAME.findall(cell))
    if "mooncake" in found and format != "mooncake":
        found |= names_in("mooncake", column)
        found.discard("mooncake")
    return found


def test_the_table_has_a_row_for_each_format():
    assert list(ROWS) == list(FORMATS)
    assert all(len(cells) == 6 for cells in ROWS.values())


@pytest.mark.parametrize("format", FORMATS)
def test_the_block_size_is_the_formats(format: str):
    size = FORMATS[format].block_size
    assert ROWS[format][2] == ("embedded" if format == "dynamo" else "-" if size is None else str(size))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_read_is_read_and_what_is_ignored_is_not(format: str):
    fields = FORMATS[format].fields
    assert names_in(format, 3) <= fields | {"timestamp_s"}
    assert not names_in(format, 4) & fields
    if format != "plain":
        assert names_in(format, 3) == fields


@pytest.mark.parametrize("name", EXPECTED)
def test_everything_in_a_fixture_is_in_the_table(name: str):
    format = EXPECTED[name][0]
    found = set().union(*(members(row) for row in rows_of(FIXTURES / name)))
    listed = names_in(format, 3) | names_in(format, 4)
    if format == "agentic-mooncake":
        found -= {"tool_call_id", "tool_class", "started_at_unix_ms", "ended_at_unix_ms", "duration_ms", "status"}
    assert found <= listed


@pytest.mark.parametrize("format", ARRIVALS)
def test_the_unit_of_times_is_the_one_of_the_table(format: str):
    name, first, second, field = ARRIVALS[format]
    rows = rows_of(FIXTURES / name)
    difference = float(rows[second][field]) - float(rows[first][field])
    time_ms = load_trace([FIXTURES / name], **OPTIONS.get(name, {})).time_ms
    assert time_ms[second] - time_ms[first] == pytest.approx(difference * MS_PER_UNIT[ROWS[format][1]], abs=1e-6)


@pytest.mark.parametrize("format", [format for format, cells in ROWS.items() if cells[1] == "none"])
def test_formats_without_times_send_everything_at_zero(format: str):
    names = [name for name, expected in EXPECTED.items() if expected[0] == format]
    for name in names:
        workload = load_trace([FIXTURES / name], **OPTIONS.get(name, {}))
        assert [workload.time_ms[root] for root in workload.roots()] == [0.0] * workload.num_sessions


@pytest.mark.parametrize("format", [format for format, cells in ROWS.items() if "named only" in cells[0]])
def test_a_format_that_has_to_be_named_is_never_the_only_answer(format: str):
    for path in FIXTURES.iterdir():
        head = read_head(str(path))
        assert [name for name, known in FORMATS.items() if known.recognises(head)] != [format]


def test_the_unit_of_a_plain_column_is_in_its_name(tmp_path: Path):
    for unit, ms in (("s", 1000.0), ("ms", 1.0), ("us", 1e-3), ("ns", 1e-6)):
        for column in ("arrival", "arrival_time", "timestamp"):
            path = tmp_path / "trace.csv"
            path.write_text(f"{column}_{unit},isl,osl\n0,1,1\n3000,1,1\n")
            assert load_trace([path]).time_ms[1] == pytest.approx(3000 * ms)
        path.write_text("arrival,isl,osl\n0,1,1\n3000,1,1\n")
        assert load_trace([path], time_unit=unit).time_ms[1] == pytest.approx(3000 * ms)  # type: ignore[arg-type]
