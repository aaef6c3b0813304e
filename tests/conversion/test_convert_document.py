"""The table of what each written format keeps is about the formats that are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windtunnel.conversion import WRITERS

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
    assert ROWS[name][4] == ("lengths" if size is None else f"blocks of {size}")
