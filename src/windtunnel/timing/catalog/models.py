"""Models by name, from the fields of the `config.json` each was published with, and local ones by directory."""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError
from windtunnel.timing.catalog.hf_config import read_model_shape
from windtunnel.timing.catalog.model_shape import ModelShape
from windtunnel.timing.catalog.nearest import folded, unknown

# Checkpoints of the same shape and dtype as one of the catalog, under the names they are served by.
ALIASES = {
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B": "meta-llama/Meta-Llama-3.1-405B",
    "meta-llama/Llama-3.1-405B-Instruct": "meta-llama/Meta-Llama-3.1-405B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistralai/Mistral-7B-v0.3",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistralai/Mistral-Nemo-Base-2407",
    "meta-llama/Llama-3.2-1B-Instruct": "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B-Instruct": "meta-llama/Llama-3.2-3B",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-ai/DeepSeek-R1",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen/Qwen3-235B-A22B",
}


def model_names() -> list[str]:
    """The names of all models, as messages list them; the part after the slash is enough where it is unique."""
    return sorted((*_files(), *ALIASES), key=str.lower)


def load_model(name: str) -> ModelShape:
    """The model called `name`, or the one whose `config.json` is in the directory `name` (or is that file).

    Raises:
        InputError: there is no such model, with the nearest names; or its `config.json` cannot be read or
            describes something that is not modelled.
    """
    known = _by_any_name().get(folded(name))
    path = Path(name).expanduser()
    if known is not None and not path.is_dir():
        return _shipped(known, known if "/" not in name else name)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError(f"{name}: the directory has no config.json")
    elif not path.is_file():
        if os.sep in name and (name.startswith((".", "~", os.sep)) or name.endswith((".json", os.sep))):
            raise InputError(f"{name}: there is no such directory or file")
        raise unknown("model", name, (*_files(), *ALIASES), " A directory with the model's config.json works too.")
    return _read(path)


def model_config(name: str) -> tuple[str, str]:
    """What the model `name`, or that of the directory `name`, was published as, and the text of its `config.json`.

    A local directory has no name it was published as: the text is then all that says what it is.

    Raises:
        InputError: there is no such model, or its file cannot be read.
    """
    known = _by_any_name().get(folded(name))
    if known is not None and not os.path.isdir(name):
        catalog = files("windtunnel.timing.catalog")
        return known, catalog.joinpath("models", _files()[known]).read_text(encoding="utf-8")
    load_model(name)  # for what it says about a file that is none
    path = Path(name)
    return "", (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")


def _read(path: Path) -> ModelShape:
    # Not kept between calls: a file may be rewritten.
    config = _read_fields(path)
    quantization = path.with_name("hf_quant_config.json")  # where ModelOpt used to put what others put in config.json
    if "quantization_config" not in config and quantization.is_file():
        config["quantization_config"] = _read_fields(quantization).get("quantization")
    return read_model_shape(config, str(path))


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{path}: expected a JSON object of fields")
    return fields


@cache
def _shipped(name: str, called: str) -> ModelShape:
    text = files("windtunnel.timing.catalog").joinpath("models", _files()[name]).read_text(encoding="utf-8")
    return read_model_shape(json.loads(text), called)


@cache
def _files() -> dict[str, str]:
    """File by model name."""
    entries = (entry.name for entry in files("windtunnel.timing.catalog").joinpath("models").iterdir())
    return {name.removesuffix(".json").replace("--", "/"): name for name in sorted(entries) if name.endswith(".json")}


@cache
def _by_any_name() -> dict[str, str]:
    full = {**{name: name for name in _files()}, **ALIASES}
    short = {name.rpartition("/")[2]: target for name, target in full.items()}
    return {folded(name): target for name, target in {**short, **full}.items()}
