"""`windtunnel validate`: how far simulations are from real measurements, in tables or as JSON.

It decides nothing: it runs the comparisons that are asked for and shows all of them, the bad ones too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from windtunnel.cli.messages import print_line
from windtunnel.cli.output_files import print_result
from windtunnel.errors import InputError, closest
from windtunnel.timing.aic_library import library_version

PARTS = ("sweep", "shared-prefix", "runs", "apex", "points", "silicon")
SHIPPED = ("sweep", "shared-prefix", "runs")  # what needs no directory of measurements
KINDS = ("roofline", "aiconfigurator")

_PIPE_WIDTH = 150


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help)


def validate(
    data: Annotated[
        str | None, _option("--data", "DIR", "Measurements that do not ship with the package: docs say which.")
    ] = None,
    only: Annotated[
        list[str] | None, _option("--only", "PART", "sweep, shared-prefix, runs, apex, points or silicon. Repeatable.")
    ] = None,
    timing: Annotated[
        list[str] | None,
        _option("--timing", "NAME", "roofline or aiconfigurator. Repeatable; by default, all there are."),
    ] = None,
    sample: Annotated[int | None, _option("--sample", "N", "Rows of each group of silicon, drawn; all if 0.")] = 8,
    seed: Annotated[int, _option("--seed", "N", "Seed of draws and lengths.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Do not say what is being replayed.")] = False,
) -> int:
    """Replay real measurements and print the errors: TPOT, ITL, TTFT and throughput, by model, GPU and engine."""
    from windtunnel.validation import sections as replays  # here, so that other commands need not load it
    from windtunnel.validation.errors import REALITY
    from windtunnel.validation.report import Section, print_sections

    parts = _known(only, PARTS, "--only") or list(PARTS if data is not None else SHIPPED)
    installed = library_version() is not None
    kinds = _known(timing, KINDS, "--timing") or [kind for kind in KINDS if kind == "roofline" or installed]
    directory = None if data is None else Path(data)
    if directory is not None and not directory.is_dir():
        raise InputError("no such directory of measurements", source="--data")
    if sample is not None and sample < 0:
        raise InputError(f"found {sample}, expected at least 0 rows", source="--sample")
    for part in parts:
        if part not in SHIPPED and directory is None:
            raise InputError(f"{part} needs --data: these measurements do not ship with the package", source="--only")

    def tell(what: str) -> None:
        if not quiet and sys.stderr.isatty():
            print_line(what)

    sections: list[Section] = []
    for part in parts:
        if part == "sweep":
            sections.append(replays.sweep_section(kinds))
        elif part == "shared-prefix":
            sections.append(replays.shared_prefix_section(kinds))
        elif part == "runs":
            sections.append(replays.runs_section(directory))
        elif directory is not None and part == "apex":
            sections.append(replays.apex_section(directory, tell))
        elif directory is not None and part == "points" and (installed or only):
            sections.append(replays.points_section(directory, tell))
        elif directory is not None and part == "silicon":
            sections += [replays.silicon_section(directory, kind, sample or None, seed, tell) for kind in kinds]
    if as_json:
        document = {"sections": [section.as_dict() for section in sections], "reality": REALITY}
        print_result(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return 0
    console = Console(file=sys.stdout)
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    with console.capture() as shown:
        print_sections(sections, console)
    print_result(shown.get())
    return 0


def _known(given: list[str] | None, names: tuple[str, ...], flag: str) -> list[str]:
    for name in given or []:
        if name not in names:
            raise InputError(f"found {name!r}; {closest(name, names)}", source=flag)
    return list(dict.fromkeys(given or []))
