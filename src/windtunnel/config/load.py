"""Builds a configuration from its layers: defaults, then a file, then the command line.

A later layer wins field by field. Fields that exclude each other replace each other: a trace on the command line
takes the place of a synthetic load in the file. Two values for one field within the command line contradict each
other and are an error.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from windtunnel.config.fields import FIELDS, closest_field, known_path, parse_value
from windtunnel.config.file import ConfigDumper, ConfigFile, read_config_file
from windtunnel.config.kinds import parse_short_form
from windtunnel.config.origins import Origins
from windtunnel.config.schema import SAMPLE_TRACE, TRACE_ONLY, Config
from windtunnel.config.section import Section
from windtunnel.errors import InputError, closest

# What a field given on the command line, or any field below it, removes from the file: the two say the same thing.
_CONTROLLERS = ("workload.synthetic.rate", "workload.synthetic.interval_ms", "workload.arrival", "workload.concurrency")
REPLACES: dict[str, tuple[str, ...]] = {
    "workload.path": ("workload.synthetic", "workload.classes"),
    "workload.synthetic": ("workload.classes", *(f"workload.{name}" for name in TRACE_ONLY)),
    "workload.classes": ("workload.synthetic", *(f"workload.{name}" for name in TRACE_ONLY)),
    "workload.synthetic.rate": _CONTROLLERS[1:],
    "workload.synthetic.interval_ms": ("workload.synthetic.rate", *_CONTROLLERS[2:], "workload.synthetic.burstiness"),
    "workload.arrival": (*_CONTROLLERS[:2], "workload.synthetic.burstiness", "workload.concurrency"),
    "workload.concurrency": (*_CONTROLLERS[:3], "workload.synthetic.burstiness", "workload.speedup"),
    "workload.synthetic.requests": ("workload.synthetic.duration_s",),
    "workload.synthetic.duration_s": ("workload.synthetic.requests",),
    "workload.synthetic.isl": ("workload.synthetic.lengths",),
    "workload.synthetic.osl": ("workload.synthetic.lengths",),
    "workload.synthetic.lengths": ("workload.synthetic.isl", "workload.synthetic.osl"),
    "workload.speedup": ("workload.concurrency",),
    "cluster.workers": ("cluster.prefill_workers", "cluster.decode_workers", "cluster.transfer"),
    "cluster.prefill_workers": ("cluster.workers", "cluster.dp_size"),
    **{
        f"engine.offload.{tier}.{given}": (f"engine.offload.{tier}.{other}",)
        for tier in ("host", "disk", "object_store")
        for given, other in (("num_blocks", "size_gb"), ("size_gb", "num_blocks"))
    },
}


class Assignment:
    """One field given on the command line.

    Attributes:
        path: the field, as in "engine.block_size".
        value: what it becomes.
        label: what gave it, as errors call it: "--workers", "--set engine.block_size".
        text: how it was written, as errors quote it: "--workers 2".
    """

    __slots__ = ("label", "path", "text", "value")

    def __init__(self, path: str, value: object, label: str, text: str) -> None:
        self.path = path
        self.value = value
        self.label = label
        self.text = text


def parse_set(text: str) -> Assignment:
    """The assignment that `--set path=value` makes.

    Raises:
        InputError: there is no `=`, or no field of that path.
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals:
        raise InputError(f"found '{text}', expected FIELD=VALUE such as engine.block_size=16", source="--set")
    label = f"--set {path}"
    known = known_path(path)
    if known not in FIELDS:
        raise InputError(f"unknown field: {closest_field(path)}", source=label)
    if FIELDS[known].is_section:
        first = path + next(p for p in FIELDS if p.startswith(f"{known}.")).removeprefix(known)
        raise InputError(f"is a section, expected one of its fields, such as {first}", source=label)
    return Assignment(path, parse_value(path, value.strip()), label, f"--set {text}")


# What the sample is run on if nobody says: the deployment that errors against a real engine are known for.
SAMPLE_DEPLOYMENT = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h200-sxm", "dtype": "fp8"}


class LoadedConfig:
    """A configuration and the origin of its fields.

    Attributes:
        config: the configuration.
        origins: names the place of a field in errors that are found later.
        is_sample: nobody named a load, so it is the sample trace.
    """

    __slots__ = ("config", "is_sample", "origins")

    def __init__(self, config: Config, origins: Origins, is_sample: bool) -> None:
        self.config = config
        self.origins = origins
        self.is_sample = is_sample


def load_config(
    file: ConfigFile | None = None,
    assignments: Sequence[Assignment] = (),
    *,
    flags: Mapping[str, str] | None = None,
    sample_workers: int | None = None,
) -> LoadedConfig:
    """The configuration that a file and a command line give together.

    Args:
        file: content of a configuration file.
        assignments: fields given on the command line; they beat the file.
        flags: the flag that sets each field, for errors about fields that nobody gave.
        sample_workers: if neither names a load, replay the sample trace, on that many workers unless some are given,
            and of a deployment that is named in this file unless timing is given.

    Raises:
        InputError: anything is wrong; `InvalidConfigError` if more than one thing is.
    """
    given = _by_path(assignments)
    data: dict[str, Any] = copy.deepcopy(file.data) if file else {}
    for path, assignment in given.items():
        if assignment.value is not None:
            _make_way(data, path)
    for path, assignment in given.items():
        _assign(data, path, assignment.value)
    _require_classes(file, given)
    workload = data.get("workload") or {}
    is_sample = (
        sample_workers is not None
        and isinstance(workload, dict)
        and not workload.get("path")
        and workload.get("synthetic") is None
        and not workload.get("classes")
    )
    if is_sample:
        _assign(data, "workload.path", [SAMPLE_TRACE])
        cluster = data.setdefault("cluster", {})
        if isinstance(cluster, dict) and not cluster.keys() & {"prefill_workers", "decode_workers"}:
            cluster.setdefault("workers", sample_workers)
        timing = data.setdefault("timing", {})
        if isinstance(timing, dict) and not timing.keys() & {"kind", "model", "gpu", "decode_speedup"}:
            data["timing"] = {**SAMPLE_DEPLOYMENT, **timing}
    origins = Origins(file, {path: assignment.label for path, assignment in given.items()}, flags)
    try:
        return LoadedConfig(Config.model_validate(data), origins, is_sample)
    except ValidationError as error:
        raise origins.explain(error) from None


def load_config_file(path: str | Path) -> Config:
    """The configuration in a YAML or JSON file; what it leaves out has its default.

    Raises:
        InputError: the file cannot be read, or anything in it is wrong.
    """
    return load_config(read_config_file(path)).config


def dump_config(config: Config) -> str:
    """A configuration as YAML that `load_config_file` reads back to an equal one. Fields that are null are left out."""
    return yaml.dump(
        config.model_dump(exclude_none=True), Dumper=ConfigDumper, sort_keys=False, allow_unicode=True, width=2**16
    )


def dump_section(name: str, section: Section) -> str:
    """One section as YAML that is a configuration of its own, without fields that have their default."""
    data = section.model_dump(exclude_none=True, exclude_defaults=True)
    return yaml.dump({name: data}, Dumper=ConfigDumper, sort_keys=False, allow_unicode=True, width=2**16)


def _require_classes(file: ConfigFile | None, given: Mapping[str, Assignment]) -> None:
    """Raise an InputError if the command line names a class of clients that the file does not have."""
    known = [path.split(".")[2] for path in (file.lines if file else ()) if path.startswith("workload.classes.")]
    for path, assignment in given.items():
        parts = path.split(".")
        if parts[:2] != ["workload", "classes"] or len(parts) < 3 or parts[2] in known:
            continue
        if known:
            raise InputError(
                f"unknown class '{parts[2]}': {closest(parts[2], dict.fromkeys(known))}", source=assignment.label
            )
        if assignment.label.startswith("--slo"):
            raise InputError(f"unknown class '{parts[2]}': the load has no classes of clients", source=assignment.label)


def _by_path(assignments: Sequence[Assignment]) -> dict[str, Assignment]:
    given: dict[str, Assignment] = {}
    for assignment in assignments:
        earlier = given.setdefault(assignment.path, assignment)
        if earlier is not assignment and earlier.value != assignment.value:
            raise InputError(f"{earlier.text} and {assignment.text} contradict each other")
    for path, assignment in given.items():
        owner = path.rpartition(".")[0]
        if owner in given:
            raise InputError(f"{given[owner].text} and {assignment.text} contradict each other")
    return given


def _assign(data: dict[str, Any], path: str, value: object) -> None:
    *sections, name = path.split(".")
    path_so_far = ""
    for section in sections:
        inner = data.get(section)
        path_so_far = f"{path_so_far}.{section}" if path_so_far else section
        if isinstance(inner, str):
            inner = data[section] = parse_short_form(inner) or inner
        if inner is None or (isinstance(inner, int | float) and _can_be_section(path_so_far)):
            inner = data[section] = {}
        if not isinstance(inner, dict):
            return  # the schema reports what stands there instead of a section
        data = inner
    data[name] = value


def _can_be_section(path: str) -> bool:
    field = FIELDS.get(known_path(path))
    return field is not None and field.is_union


def _make_way(data: dict[str, Any], path: str) -> None:
    """Remove what the field `path` takes the place of."""
    for replacing, replaced in REPLACES.items():
        if path == replacing or path.startswith(f"{replacing}."):
            for other in replaced:
                _remove(data, other)


def _remove(data: dict[str, Any], path: str) -> None:
    *sections, name = path.split(".")
    for section in sections:
        inner = data.get(section)
        if not isinstance(inner, dict):
            return
        data = inner
    data.pop(name, None)
