"""The table of what each written format keeps is about the formats that are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windtunnel.conversion import WRITERS
from windtunnel.conversion.writers.registry import NOT_WRITTEN
from windtunnel.workload.traces import FORMATS

ROWS = {
    match[1]: [cell.strip() for cell in line.strip("|").split("|")]
    for line in (Path(__file__).parents[2] / "docs" / "convert.md").read_text().splitlines()
    if (match := re.match(r"\| `([a-z][\w-]+)`", line))
}


def test_there_is_a_row_for_each_format_that_is_written():
    assert list(ROWS) == list(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_content_is_blocks_of_the_usual_size_or_lengths(name: str):
    size = WRITERS[name].block_size
    keeps_tokens = size is None and WRITERS[name].keeps_outputs
    assert ROWS[name][4] == ("token ids" if keeps_tokens else "lengths" if size is None else f"blocks of {size}")


def test_every_format_is_written_or_there_is_a_reason_why_not():
    assert {*WRITERS, *NOT_WRITTEN} == set(FORMATS)
    assert not WRITERS.keys() & NOT_WRITTEN.keys()
    text = (Path(__file__).parents[2] / "docs" / "convert.md").read_text()
    assert all(f"`{name}`" in text.partition("are not written:")[2].partition(".")[0] for name in NOT_WRITTEN)
