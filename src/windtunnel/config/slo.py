"""The short form of service levels on the command line: `ttft=500ms,itl=50ms,e2e=10s`, or `chat:ttft=1s`."""

from __future__ import annotations

import re

from windtunnel.config.load import Assignment
from windtunnel.errors import InputError, closest

# the mean gap is AIPerf's "inter token latency" and what vLLM's --goodput calls tpot, where e2el is the whole
_FIELDS = {
    "ttft": "slo.ttft_ms",
    "itl": "slo.itl_ms",
    "tpot": "slo.itl_ms",
    "e2e": "slo.e2e_ms",
    "e2el": "slo.e2e_ms",
}
_TIME = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(ms|s)?\Z")


def parse_slo(text: str) -> list[Assignment]:
    """The limits that `text` sets, in milliseconds. A number without a unit is milliseconds.

    With the name of a class and a colon before them they are those of this class of clients.

    Raises:
        InputError: a limit that does not exist or is given twice, or a time that is none.
    """
    limits: dict[str, Assignment] = {}
    class_name, colon, of_class = text.partition(":")
    section = ""
    if colon and class_name.strip():
        section = f"workload.classes.{class_name.strip()}."
        text = of_class
    for part in text.split(","):
        name, equals, time = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise InputError(f"found '{part}', expected a limit such as ttft=500ms", source="--slo")
        if name not in _FIELDS:
            raise InputError(f"unknown limit '{name}': {closest(name, _FIELDS)}", source="--slo")
        path = section + _FIELDS[name]
        if path in limits:
            raise InputError(f"'{name}' is given twice", source="--slo")
        match = _TIME.match(time)
        if match is None:
            raise InputError(f"{name}: found '{time}', expected a time such as 500ms or 10s", source="--slo")
        factor = 1000.0 if match[2] == "s" else 1.0
        shown = f"{class_name.strip()}:" if section else ""
        limits[path] = Assignment(
            path, float(match[1]) * factor, f"--slo {shown}{name}", f"--slo {shown}{part.strip()}"
        )
    return list(limits.values())
