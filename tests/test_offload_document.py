"""The table of docs/offload.md is what its commands give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from windtunnel.assembly import simulate
from windtunnel.config.load import load_config, parse_set
from windtunnel.report.document import build_report

DOCUMENT = (Path(__file__).parents[1] / "docs" / "offload.md").read_text()
ROWS = re.findall(
    r"^\| (none|[\d,]+) \| [\d.]+ \| (.*) % \| (.*) / (.*) \| (.*) % \| (.*) / (.*) \|$", DOCUMENT, re.MULTILINE
)
FLAGS = {
    "--isl": "workload.synthetic.isl",
    "--osl": "workload.synthetic.osl",
    "--requests": "workload.synthetic.requests",
    "--rate": "workload.synthetic.rate",
    "--prefix-ratio": "workload.synthetic.prefix_ratio",
    "--prefix-groups": "workload.synthetic.prefix_groups",
}


def found(host_blocks: str, write: str) -> list[str]:
    (command,) = re.findall(r"^windtunnel run (--isl .*num_blocks=8000)$", DOCUMENT, re.MULTILINE)
    words = shlex.split(command)
    sets = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        path, value = (FLAGS[name], value) if name in FLAGS else value.split("=")
        sets[path] = value
    sets["engine.offload.host.num_blocks"] = host_blocks.replace(",", "")
    sets["engine.offload.write"] = write
    if host_blocks == "none":
        sets = {path: value for path, value in sets.items() if ".offload." not in path}
    config = load_config(None, [parse_set(f"{path}={value}") for path, value in sets.items()]).config
    summary = build_report(simulate(config))["summary"]
    return [
        f"{summary['prefix_cache_hit_ratio'] * 100:.1f}",
        *(f"{summary[f'{statistic}_ttft_ms']:.1f}" for statistic in ("mean", "p90")),
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_what_a_run_gives(row: tuple[str, ...]) -> None:
    host, *numbers = row
    assert found(host, "through") == numbers[:3]
    assert found(host, "back") == numbers[3:]


def test_there_are_rows() -> None:
    assert len(ROWS) == 5
