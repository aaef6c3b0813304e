"""Reads a file of faults: a YAML or JSON list of what goes wrong, and when.

    - {at_s: 20, what: crash, worker: 0, for_s: 30}
    - {at_s: 60, what: slow, worker: 1, for_s: 10, factor: 1.3}
    - {at_s: 80, what: link-down, worker: 1, for_s: 5}
    - {at_s: 90, what: events-lost, worker: 2, for_s: 10}
    - {at_s: 90, what: events-late, worker: 3, for_s: 10, delay_s: 2}

With pools of their own, `pool` is prefill or decode. Without `for_s` a fault lasts to the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from windtunnel.config.entries import read_entries
from windtunnel.errors import InputError

KINDS = ("crash", "slow", "link-down", "events-lost", "events-late")
INFINITE = float("inf")


class PlannedFault(NamedTuple):
    """Something that will go wrong.

    Attributes:
        pool: its name; "" if there is only one.
        factor: of a slow worker, how many times as long its passes take; 1 for other faults.
        for_ms: how long it lasts, infinite if to the end.
        delay_ms: of late events; 0 for other faults.
    """

    at_ms: float
    what: str
    pool: str
    worker: int
    for_ms: float
    factor: float
    delay_ms: float = 0.0


def read_faults(path: str, pools: Sequence[str]) -> list[PlannedFault]:
    """The entries of a file of faults.

    Args:
        pools: names of the pools there are, "" for a single one.

    Raises:
        InputError: the file cannot be read, or an entry makes no sense.
    """
    data = read_entries(path, "{at_s: 20, what: crash, worker: 0}")
    faults: list[PlannedFault] = []
    for place, entry in enumerate(data, start=1):
        try:
            faults.append(_entry(entry, pools))
        except ValueError as error:
            raise InputError(str(error), source=path, field=f"entry {place}") from None
    return faults


def _entry(entry: object, pools: Sequence[str]) -> PlannedFault:
    if not isinstance(entry, dict):
        raise ValueError(f"found {entry!r}, expected a mapping such as {{at_s: 20, what: crash, worker: 0}}")
    fields = ["at_s", "what", "worker", "for_s", "factor", "delay_s", *(["pool"] if len(pools) > 1 else [])]
    for name in entry:
        if name not in fields:
            raise ValueError(f"unknown field {name!r}: expected one of {', '.join(fields)}")
    what = entry.get("what")
    if what not in KINDS:
        raise ValueError(f"what: found {what!r}, expected {', '.join(KINDS)}")
    if what == "link-down" and len(pools) == 1:
        raise ValueError("what: link-down has no effect: no KV crosses between workers that do both")
    pool = entry.get("pool", pools[0] if len(pools) == 1 else None)
    if not isinstance(pool, str) or pool not in pools:
        raise ValueError(f"pool: found {pool!r}, expected {' or '.join(pools)}")
    worker = entry.get("worker")
    if type(worker) is not int or worker < 0:
        raise ValueError(f"worker: found {worker!r}, expected the number of a worker")
    if ("factor" in entry) != (what == "slow"):
        raise ValueError("factor: expected for what: slow, and only there")
    factor = _number(entry, "factor", 1.0)
    if not factor > 0:
        raise ValueError(f"factor: found {factor!r}, expected a number above 0")
    if ("delay_s" in entry) != (what == "events-late"):
        raise ValueError("delay_s: expected for what: events-late, and only there")
    at_ms = _number(entry, "at_s", None) * 1000.0
    for_ms = _number(entry, "for_s", INFINITE) * 1000.0
    return PlannedFault(at_ms, what, pool, worker, for_ms, factor, _number(entry, "delay_s", 0.0) * 1000.0)


def _number(entry: dict[str, object], name: str, default: float | None) -> float:
    value = entry.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (name in entry and not math.isfinite(value)) or value < 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{name}: found {value!r}, expected a number of at least 0")
    return float(value)  # type: ignore[arg-type]
