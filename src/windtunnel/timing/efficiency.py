"""Which share of its datasheet a GPU delivers, by kernel; the numbers and their source are in `efficiency.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Rates:
    """How a kernel that reads and multiplies runs.

    Attributes:
        bandwidth, flops: shares of the peaks.
        floor_us: time of a call that does nothing, microseconds.
        blend: exponent p of (memory^p + compute^p)^(1/p); 1 adds both, infinity takes the larger.
    """

    bandwidth: float
    flops: float
    floor_us: float
    blend: float


@dataclass(frozen=True, slots=True)
class SparseRates:
    """How sparse latent attention runs, a layer.

    Attributes:
        index_bandwidth, index_flops: shares of the peaks at which the index is read and scored, picking included.
        index_floor_us: of scoring and picking in a pass.
        flops: share of the peak of the dtype that prompts are multiplied in; heads: multiple to which kernels fill up
            the heads of a GPU.
        host_us: a layer of a pass with prompts takes no less, because nobody captured its many small kernels.
    """

    index_bandwidth: float
    index_flops: float
    index_floor_us: float
    flops: float
    heads: int
    host_us: float


@dataclass(frozen=True, slots=True)
class LinearRates:
    """How linear attention runs, a layer.

    Attributes:
        bandwidth: share of the peak at which a decode's state is read and written; floor_us: of a pass that decodes.
        scan_bandwidth: share of the peak at which prompts are scanned; scan_floor_us: of a pass with prompts;
            scan_token_ns: for each token of its longest chunk, whose parts are scanned one after the other.
    """

    bandwidth: float
    floor_us: float
    scan_bandwidth: float
    scan_floor_us: float
    scan_token_ns: float


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The factors of one GPU.

    Attributes:
        gemm: by the dtype that is multiplied; experts: by what weights are stored as.
        attention_bandwidth, attention_floor_us: of reading the KV cache in a decode, a layer; attention_head_us: for
            each KV head of each request besides.
        prefill_flops, prefill_floor_us, qk_norm_us: of attention over prompts, a layer.
        sparse, linear: of attention to picked tokens, and of layers with a state in the place of a cache.
        elementwise_bandwidth, elementwise_floor_us: of norms and the like, a kernel.
        link: share of the link by the number of GPUs; latency_us: of a collective, for each doubling of those.
        is_fitted: whether the factors were chosen on data of this GPU, and not of a relative.
    """

    gemm: dict[str, Rates]
    experts: dict[str, Rates]
    attention_bandwidth: float
    attention_floor_us: float
    attention_head_us: float
    prefill_flops: float
    prefill_floor_us: float
    qk_norm_us: float
    sparse: SparseRates
    linear: LinearRates
    elementwise_bandwidth: float
    elementwise_floor_us: float
    link: dict[int, float]
    latency_us: float
    is_fitted: bool

    def link_share(self, num_gpus: int) -> float:
        """Share of the link that a collective of so many GPUs reaches."""
        return self.link.get(num_gpus, self.link[min(self.link, key=lambda size: abs(size - num_gpus))])


@cache
def load_efficiency(gpu: str) -> Efficiency:
    """The factors of a GPU of the catalog: its own, those of the relative it names, else the defaults."""
    everything = _read()
    default = everything["default"]
    own: dict[str, Any] = everything.get(gpu, {})
    found = everything[own["like"]] if "like" in own else own
    merged = {section: {**default[section], **found.get(section, {})} for section in default}
    return Efficiency(
        gemm={dtype: Rates(**rates) for dtype, rates in merged["gemm"].items()},
        experts={dtype: Rates(**rates) for dtype, rates in merged["experts"].items()},
        attention_bandwidth=merged["decode_attention"]["bandwidth"],
        attention_floor_us=merged["decode_attention"]["floor_us"],
        attention_head_us=merged["decode_attention"]["head_us"],
        prefill_flops=merged["prefill_attention"]["flops"],
        prefill_floor_us=merged["prefill_attention"]["floor_us"],
        qk_norm_us=merged["prefill_attention"]["qk_norm_us"],
        sparse=SparseRates(**merged["sparse_attention"]),
        linear=LinearRates(**merged["linear_attention"]),
        elementwise_bandwidth=merged["elementwise"]["bandwidth"],
        elementwise_floor_us=merged["elementwise"]["floor_us"],
        link=merged["all_reduce"]["bandwidth"],
        latency_us=merged["all_reduce"]["latency_us"],
        is_fitted=own.get("is_fitted", False),
    )


@cache
def _read() -> dict[str, dict[str, Any]]:
    text = files("windtunnel.timing.catalog").joinpath("efficiency.yaml").read_text(encoding="utf-8")
    factors: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return factors
