"""What a GPU can do, from its datasheet; the numbers and their sources are in `gpus.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from windtunnel.timing.catalog.nearest import folded, unknown

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU.

    Attributes:
        name: as in `h100-sxm`.
        memory_bandwidth: peak bytes per second of device memory.
        flops: peak dense tensor operations per second, by dtype (`bf16`, `fp8`, `fp4`).
        memory_bytes: memory an application sees.
        link: what connects the GPUs of a node; link_bandwidth: its bytes per second in one direction.
        gpus_per_node: how many GPUs that link connects.
        source, memory_source: where these numbers come from.
    """

    name: str
    memory_bandwidth: float
    flops: dict[str, float]
    memory_bytes: int
    link: str
    link_bandwidth: float
    gpus_per_node: int
    source: str
    memory_source: str


def gpu_names() -> list[str]:
    """The names of all GPUs, as messages list them."""
    return list(_gpus())


def load_gpu(name: str) -> GpuSpec:
    """The GPU called `name`, whatever its case and separators; `h100` is short for `h100-sxm`.

    Raises:
        InputError: there is none; the message has the nearest names.
    """
    gpu = _by_any_name().get(folded(name))
    if gpu is None:
        raise unknown("GPU", name, gpu_names())
    return gpu


@cache
def _read() -> dict[str, dict[str, Any]]:
    text = files("windtunnel.timing.catalog").joinpath("gpus.yaml").read_text(encoding="utf-8")
    gpus: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return gpus


@cache
def _gpus() -> dict[str, GpuSpec]:
    return {
        name: GpuSpec(
            name=name,
            memory_bandwidth=float(entry["memory_bandwidth"]),
            flops={dtype: float(rate) for dtype, rate in entry["flops"].items()},
            memory_bytes=int(entry["memory_gib"] * GIB),
            link=entry["link"],
            link_bandwidth=float(entry["link_bandwidth"]),
            gpus_per_node=entry["gpus_per_node"],
            source=entry["source"],
            memory_source=entry["memory_source"],
        )
        for name, entry in _read().items()
    }


@cache
def _by_any_name() -> dict[str, GpuSpec]:
    gpus = _gpus()
    return {folded(alias): gpus[name] for name, entry in _read().items() for alias in (name, *entry["aliases"])}
