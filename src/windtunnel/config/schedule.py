"""Reads a schedule of workers: a YAML or JSON list of what a cluster shall have from some time on.

    - {at_s: 10, workers: 2}
    - {at_s: 30, workers: 1}

With pools of their own, `prefill_workers` and `decode_workers` take the place of `workers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windtunnel.config.entries import read_entries
from windtunnel.errors import InputError

FIELD_OF_POOL = {"workers": "workers", "prefill": "prefill_workers", "decode": "decode_workers"}


def read_schedule(path: str, pools: Sequence[str]) -> list[tuple[float, dict[str, int]]]:
    """The entries of a schedule file as (time in ms, workers by pool).

    Raises:
        InputError: the file cannot be read, or an entry makes no sense.
    """
    data = read_entries(path, "{at_s: 10, workers: 2}")
    return [_entry(entry, place, path, pools) for place, entry in enumerate(data, start=1)]


def _entry(entry: object, place: int, path: str, pools: Sequence[str]) -> tuple[float, dict[str, int]]:
    fields = {FIELD_OF_POOL[pool]: pool for pool in pools}
    where = f"entry {place}"
    if not isinstance(entry, dict):
        raise InputError(
            f"found {entry!r}, expected a mapping such as {{at_s: 10, workers: 2}}", source=path, field=where
        )
    at_s = entry.get("at_s")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not (math.isfinite(at_s) and at_s >= 0):
        raise InputError(f"at_s: found {at_s!r}, expected seconds of at least 0", source=path, field=where)
    targets: dict[str, int] = {}
    for name, value in entry.items():
        if name == "at_s":
            continue
        if name not in fields:
            raise InputError(f"unknown field {name!r}: expected {' or '.join(fields)}", source=path, field=where)
        if type(value) is not int or value < 0:
            raise InputError(f"{name}: found {value!r}, expected an integer of at least 0", source=path, field=where)
        targets[fields[name]] = value
    if not targets:
        raise InputError(f"{' or '.join(fields)} missing", source=path, field=where)
    return at_s * 1000.0, targets
