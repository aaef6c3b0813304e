"""Asks AIConfigurator's core library what passes cost, and nothing but the library: no tables, no cache.

It finds the library under either of its names, hands it a model in a way that its own caches cannot mix up, and turns
what it raises into one line that says what data there is. The library's defaults are overridden where an engine would
do otherwise: it takes FP8 weights to mean an FP8 KV cache, which no engine does by itself.
Source: aiconfigurator-core 0.12 and its successor aisimulate-core; prices of kernels only, no host overhead.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError, closest

# Import name and distribution, in the order in which they are tried.
LIBRARIES = (("aiconfigurator_core", "aiconfigurator-core"), ("aisimulate_core", "aisimulate-core"))
BACKENDS = ("vllm", "sglang", "trtllm")
NO_LIBRARY = (
    "needs AIConfigurator's core library, which is not installed: pip install 'windtunnel[aiconfigurator]', or name "
    "another timing model, such as roofline"
)


@dataclass(frozen=True)
class AicDeployment:
    """What the library is asked about, in its own words.

    Attributes:
        model: a name that the library ships the configuration of, or one for `config`.
        config: content of a `config.json`, for a model that it does not ship.
        system: the GPU, as in `h100_sxm`. backend: the engine whose kernels were measured.
        tp, attention_dp, moe_tp, moe_ep: sizes of the parallel groups; a batch is that of one data-parallel rank.
        gemm, moe: dtypes of the weights, as in `fp8_block`; None as the checkpoint has them.
        kv: dtype of the KV cache: `bfloat16` or `fp8`.
    """

    model: str
    system: str
    backend: str
    config: str | None = None
    tp: int = 1
    attention_dp: int = 1
    moe_tp: int | None = None
    moe_ep: int | None = None
    gemm: str | None = None
    moe: str | None = None
    kv: str = "bfloat16"

    def digest(self) -> str:
        """A name for the content of this deployment."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class AicEngine:
    """One deployment, compiled by the library. Prices are ms of one pass; nothing is refused for being out of range."""

    def __init__(self, handle: Any, fmha: str | None) -> None:
        self._handle = handle
        self.fmha = fmha

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """A pass that decodes one token for each of `batch` requests, whose contexts hold so many with that token."""
        return float(self._handle.predict_decode_latency(batch, context_tokens - 1))

    def prefill_ms(self, batch: int, new_tokens: int, prefix_tokens: int) -> float:
        """A pass of `batch` prompts that each compute `new_tokens` after `prefix_tokens` that are cached."""
        return float(self._handle.predict_prefill_latency(batch, new_tokens + prefix_tokens, prefix_tokens))

    def prompt_parts_ms(self, new_tokens: int, prefix_tokens: int = 0) -> tuple[float, float]:
        """Everything but attention, and attention, of a pass that computes so much of one prompt."""
        length = new_tokens + prefix_tokens
        _, shared, attention, _ = self._handle.mixed_step_breakdown(length, 0, length, 1, prefix_tokens)
        return float(shared), float(attention)

    def prompts_attention_ms(self, prompts: int, length: int) -> float:
        """Attention of a pass that computes so many whole prompts of one length."""
        return float(self._handle.mixed_step_breakdown(prompts * length, 0, length, 1, 0)[2])

    def mixed_ms(self, new_tokens: int, decodes: int, length: int, output: int) -> float:
        """The library's own idea of a mixed pass; only to compare with."""
        return float(self._handle.mixed_step_latency(new_tokens, decodes, length, output))


def library_version() -> str | None:
    """Name and version of the library that is installed, or None."""
    for module, distribution in LIBRARIES:
        if importlib.util.find_spec(module) is not None:
            try:
                return f"{distribution} {version(distribution)}"
            except PackageNotFoundError:
                return distribution
    return None


def compile_engine(deployment: AicDeployment) -> AicEngine:
    """The deployment as the library prices it.

    Raises:
        InputError: the library is not installed, does not know the model or the GPU, or lacks data.
    """
    sdk = _sdk()
    _check_names(sdk, deployment)
    # An engine whose cache is not FP8 computes attention in bf16 too; some tables know no other pair.
    attempts = ("bfloat16", None) if deployment.kv == "bfloat16" else (None,)
    failures = []
    for fmha in attempts:
        try:
            with _quiet():
                engine = AicEngine(_compiled(sdk, deployment, fmha), fmha)
                engine.decode_ms(1, 1024)
                engine.prefill_ms(1, 1024, 0)
            return engine
        except Exception as error:  # whatever a foreign library raises, the user needs one line
            failures.append(error)
    raise InputError(
        f"AIConfigurator has no data for {deployment.model} on {deployment.system} with {deployment.backend}, tp "
        f"{deployment.tp}, KV cache {deployment.kv}: {_one_line(failures[0])}; it has {_systems(sdk, deployment)}"
    )


def shipped_models() -> list[str]:
    """Names of the models whose configuration the library ships; none if it is not installed."""
    if library_version() is None:
        return []
    return _shipped_models(_sdk())


def _sdk() -> Any:
    for module, _ in LIBRARIES:
        try:
            return importlib.import_module(f"{module}.sdk")
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] != module:
                raise InputError(f"{module} cannot be imported: {error}") from error
    raise InputError(NO_LIBRARY)


def _compiled(sdk: Any, deployment: AicDeployment, fmha: str | None) -> Any:
    arguments: dict[str, Any] = {
        "tp_size": deployment.tp,
        "attention_dp_size": deployment.attention_dp,
        "moe_tp_size": deployment.moe_tp,
        "moe_ep_size": deployment.moe_ep,
        "gemm_quant_mode": deployment.gemm,
        "moe_quant_mode": deployment.moe,
        "kvcache_quant_mode": deployment.kv,
        "fmha_quant_mode": fmha,
    }
    if deployment.config is None:
        return sdk.EngineHandle.compile(deployment.model, deployment.system, deployment.backend, **arguments)
    # The library remembers configurations by path: a directory of its own for every content.
    digest = sha256(deployment.config.encode()).hexdigest()
    with tempfile.TemporaryDirectory(suffix=digest) as directory:
        Path(directory, "config.json").write_text(deployment.config, encoding="utf-8")
        return sdk.EngineHandle.compile(directory, deployment.system, deployment.backend, **arguments)


def _check_names(sdk: Any, deployment: AicDeployment) -> None:
    if deployment.backend not in BACKENDS:
        raise InputError(
            f"AIConfigurator knows no engine {deployment.backend!r}: {closest(deployment.backend, BACKENDS)}"
        )
    known = _systems_with_data(sdk, deployment.backend)
    if deployment.system not in known:
        raise InputError(
            f"AIConfigurator has no {deployment.backend} measurements on {deployment.system!r}: "
            f"expected one of {', '.join(known)}"
        )
    models = _shipped_models(sdk)
    if deployment.config is None and deployment.model not in models:  # it would try to download it
        raise InputError(
            f"AIConfigurator does not know the model {deployment.model!r}: {closest(deployment.model, models)}"
        )


def _systems_with_data(sdk: Any, backend: str) -> list[str]:
    data = Path(sdk.__file__).parents[1] / "systems" / "data"
    return sorted(path.parents[1].name for path in data.glob(f"*/gemm/{backend}"))


def _systems(sdk: Any, deployment: AicDeployment) -> str:
    systems = ", ".join(_systems_with_data(sdk, deployment.backend))
    return f"{deployment.backend} measurements on {systems}, and {len(_shipped_models(sdk))} models"


def _shipped_models(sdk: Any) -> list[str]:
    configs = (Path(sdk.__file__).parents[1] / "model_configs").glob("*_config.json")
    names = (path.name.removesuffix("_config.json").replace("--", "/") for path in configs)
    return sorted(name for name in names if not name.endswith("_hf_quant"))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the library logs about its own fallbacks."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
