"""Finds out what a measured profile is and reads it: `timing.kind: profile:PATH`.

Three forms are known by their content: a sweep of Dynamo's planner (a directory, or its JSON), a grid of Dynamo's
mocker (npz), and tables of single layers as LLMServingSim measures them (JSON). What the numbers mean is said by the
module of each.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import InputError
from windtunnel.timing.base import FloatArray
from windtunnel.timing.layer_profile import (
    LayerProfile,
    LayerStack,
    read_layer_directory,
    read_layer_document,
    read_skew,
)
from windtunnel.timing.mocker_profile import MOCKER_ARRAYS, MockerProfile
from windtunnel.timing.planner_profile import DECODE_ARRAYS, PREFILL_ARRAYS, PlannerProfile

PROFILE_PREFIX = "profile:"
PREFILL_NPZ = "selected_prefill_interpolation/raw_data.npz"
DECODE_NPZ = "selected_decode_interpolation/raw_data.npz"
PREFILL_JSON = "prefill_raw_data.json"
DECODE_JSON = "decode_raw_data.json"


def load_profile(path: str, stack: LayerStack | None = None) -> PlannerProfile | MockerProfile | LayerProfile:
    """The measured profile at `path`.

    Args:
        stack: what tables of single layers do not say of their model.

    Raises:
        InputError: there is none, its form is unknown, or its arrays make no sense; or it is one of single layers and
            there is no `stack`.
    """
    place = Path(path)
    if place.is_dir() and (place / "attention.csv").is_file():
        meta = next((at / "meta.yaml" for at in (place, place.parent) if (at / "meta.yaml").is_file()), None)
        told = "" if meta is None else meta.read_text(encoding="utf-8", errors="replace")
        return _of_layers(read_layer_directory(place), stack, path, told)
    if place.is_dir():
        prefill = _first_of(place, PREFILL_NPZ, PREFILL_JSON)
        decode = _first_of(place, DECODE_NPZ, DECODE_JSON)
        arrays = {
            **_named(read_arrays(prefill), PREFILL_ARRAYS, str(prefill)),
            **_named(read_arrays(decode), DECODE_ARRAYS, str(decode)),
        }
        return PlannerProfile(arrays, path)
    if not place.is_file():
        raise InputError("no such file or directory, expected a measured profile", source=path)
    if place.suffix == ".json":
        document = _json_object(place)
        if "tables" in document:
            return _of_layers(read_layer_document(document, path), stack, path, str(document.get("meta_yaml") or ""))
    arrays = read_arrays(place)
    if "decode_itl" in arrays or "prefill_ttft_ms" in arrays:
        return MockerProfile(_named(arrays, MOCKER_ARRAYS, path), path)
    if "z_itl" in arrays or "prefill_ttft" in arrays:
        return PlannerProfile(_named(arrays, (*PREFILL_ARRAYS, *DECODE_ARRAYS), path), path)
    found = ", ".join(sorted(arrays)[:8]) or "nothing"
    raise InputError(
        f"found {found}; expected the arrays of a Dynamo planner profile ({', '.join(DECODE_ARRAYS)}, ...) or of a "
        f"mocker's perf_data.npz ({', '.join(MOCKER_ARRAYS)})",
        source=path,
    )


def _of_layers(
    tables: Mapping[str, list[list[Any]]], stack: LayerStack | None, path: str, meta_yaml: str
) -> LayerProfile:
    if stack is None:
        raise InputError(
            "has times of single layers: timing.model and timing.gpu must say how many there are and how split",
            source=path,
        )
    return LayerProfile(tables, stack, path, read_skew(meta_yaml, stack.tp))


def read_arrays(path: Path) -> dict[str, FloatArray]:
    """Every numeric array of an npz file, or every list of numbers of a JSON object, as float64.

    Raises:
        InputError: it is neither, or holds something else under a name.
    """
    if path.suffix == ".json":
        return _as_arrays(_json_object(path), str(path))
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError("is a single array, expected an npz file of named ones", source=str(path))
            return _as_arrays({name: archive[name] for name in archive.files}, str(path))
    except (ValueError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise InputError(f"cannot be read as npz or JSON: {error}", source=str(path)) from None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise InputError(f"cannot be read as JSON: {error}", source=str(path)) from None
    if not isinstance(document, dict):
        raise InputError("expected a JSON object of arrays", source=str(path))
    return document


def _as_arrays(values: Mapping[str, Any], source: str) -> dict[str, FloatArray]:
    arrays = {}
    for name, value in values.items():
        try:
            arrays[name] = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("expected an array of numbers", source=source, field=name) from None
    return arrays


def _named(arrays: Mapping[str, FloatArray], names: Iterable[str], source: str) -> dict[str, FloatArray]:
    missing = [name for name in names if name not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(f"found {found}; expected {', '.join(missing)} too", source=source)
    return {name: arrays[name] for name in names}


def _first_of(directory: Path, *names: str) -> Path:
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise InputError(f"expected {' or '.join(names)} in this directory", source=str(directory))
