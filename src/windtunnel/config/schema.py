"""The one schema of a simulation: the same fields in files, on the command line (`--set path=value`) and in Python.

Fields are grouped by who reads them, have their unit in the name, and have no effect-free values: an option
that would be ignored is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from windtunnel.config.arrival import ArrivalConfig as ArrivalConfig
from windtunnel.config.router import ROUTERS as ROUTERS
from windtunnel.config.router import RouterConfig as RouterConfig
from windtunnel.config.section import (
    Flag,
    MissingError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RuleError,
    Seed,
)
from windtunnel.config.section import Section as Section
from windtunnel.config.sglang import SglangConfig as SglangConfig
from windtunnel.config.sizing import size_engine
from windtunnel.config.slo_limits import SloConfig as SloConfig
from windtunnel.config.synthetic import ClassConfig as ClassConfig
from windtunnel.config.synthetic import ClassName as ClassName
from windtunnel.config.synthetic import SyntheticConfig as SyntheticConfig
from windtunnel.config.timing import TIMING_MODELS as TIMING_MODELS
from windtunnel.config.timing import TimingConfig as TimingConfig
from windtunnel.config.topology import BypassConfig as BypassConfig
from windtunnel.config.topology import FailuresConfig as FailuresConfig
from windtunnel.config.topology import ScalingConfig as ScalingConfig
from windtunnel.config.topology import TransferConfig as TransferConfig
from windtunnel.config.vllm import VllmConfig as VllmConfig
from windtunnel.errors import InputError

SAMPLE_TRACE = "sample:mooncake-conversation"


# Fields of a workload that say something about trace files, and nothing about a synthetic load.
TRACE_ONLY = (
    "path",
    "format",
    "trace_block_size",
    "limit",
    "spread",
    "on_bad_row",
    "on_hash_mismatch",
    "on_overlong",
    "on_failed_dependency",
    "missing_output_tokens",
    "time_unit",
    "trace_prefix_ratio",
    "trace_prefix_groups",
)


def _as_paths(value: object) -> object:
    return [value] if isinstance(value, str) else value


class WorkloadConfig(Section):
    """What is sent and when: trace files, or a synthetic load."""

    path: Annotated[list[str], BeforeValidator(_as_paths)] = Field(
        default_factory=list, description=f"trace files; '{SAMPLE_TRACE}' is the trace that ships with the package"
    )
    format: str = Field(default="auto", description="trace format; auto recognises it from the first row")
    trace_block_size: PositiveInt | None = Field(
        default=None, description="tokens a hash id of the trace stands for, if not what is usual in its format"
    )
    speedup: PositiveFloat = Field(default=1.0, description="divides arrival times and turn delays")
    concurrency: PositiveInt | None = Field(
        default=None, description="closed loop: sessions in flight at once; arrival times of the trace are ignored"
    )
    limit: PositiveInt | None = Field(default=None, description="read only the first rows of the trace")
    spread: Flag = Field(
        default=False, description="take apart arrivals that the trace has rounded to one instant, inside its steps"
    )
    on_bad_row: Literal["error", "skip"] = Field(
        default="error", description="what a row of the trace that cannot be used does: end the load, or be left out"
    )
    on_hash_mismatch: Literal["error", "clip"] = Field(
        default="error", description="what a prompt longer than its hash ids cover is: a bad row, or cut to fit them"
    )
    on_overlong: Literal["reject", "clip", "drop", "error"] = Field(
        default="reject", description="what becomes of a prompt that reaches the engine's max_model_len"
    )
    on_failed_dependency: Literal["cancel", "release"] = Field(
        default="cancel", description="what becomes of a request when one that it waits for has not completed"
    )
    missing_output_tokens: NonNegativeInt | None = Field(
        default=None, description="output length of rows of the trace that state none; else they are bad rows"
    )
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None, description="unit of a column of arrival times whose name does not say it"
    )
    trace_prefix_ratio: Annotated[float, Field(ge=0, le=1, strict=True)] = Field(
        default=0.0,
        description="share of a first prompt's blocks that sessions of a group have in common, for traces "
        "of the format applied-compute-agentic, which has no content",
    )
    trace_prefix_groups: NonNegativeInt = Field(default=0, description="number of such groups; sessions take turns")
    cancel_after_ms: PositiveFloat | None = Field(
        default=None, description="clients give up on a request that has not completed this long after its arrival"
    )
    synthetic: SyntheticConfig | None = Field(default=None, description="a generated load instead of trace files")
    arrival: ArrivalConfig | None = Field(
        default=None, description="when sessions begin, of a synthetic load or in the place of a trace's own arrivals"
    )
    concurrency_by: Literal["session", "request"] = Field(
        default="session",
        description="what concurrency counts: sessions, which keep their place while they think, or requests in flight",
    )
    classes: dict[ClassName, ClassConfig] = Field(
        default_factory=dict, description="a mixed load: classes of clients by name, each a generated load"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: object) -> object:
        # Before the fields are read: a section that stands beside another source need not be complete.
        if isinstance(data, dict):
            load = data.get("synthetic")
            if data.get("path") and isinstance(load, dict) and load and load.keys() <= {"rate", "interval_ms"}:
                (name, *_) = load
                value = load[name] if isinstance(load[name], int | float) else 10
                example = f"{'poisson' if name == 'rate' else 'constant'}:{name}={value}"
                raise RuleError(f"{{synthetic.{name}}} is for a generated load: a trace takes {{arrival}} {example}")
            given = [name for name in ("path", "synthetic", "classes") if data.get(name)]
            if len(given) > 1:
                raise RuleError(
                    f"give either {{{given[0]}}} or {{{given[1]}}}, not both: a load is read from traces, synthetic, "
                    "or mixed of classes"
                )
        return data

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadConfig:
        if self.concurrency is not None:
            if self.speedup != 1.0:
                raise RuleError("{speedup} has no effect with {concurrency}: a closed loop ignores arrival times")
            if self.spread:
                raise RuleError("{spread} has no effect with {concurrency}: a closed loop ignores arrival times")
            if self.arrival is not None:
                raise RuleError("give either {arrival} or {concurrency}, not both")
        elif self.concurrency_by != "session":
            raise RuleError("{concurrency_by} has no effect without {concurrency}")
        if self.spread and self.arrival is not None:
            raise RuleError("{spread} has no effect with {arrival}, which replaces the arrivals of the trace")
        if self.synthetic is not None or self.classes:
            source = "synthetic" if self.synthetic is not None else "classes"
            for name in TRACE_ONLY[1:]:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise RuleError(f"{{{name}}} applies to trace files only, but {{{source}}} is given")
        if self.synthetic is not None:
            self._check_synthetic(self.synthetic)
        elif self.classes:
            self._check_classes()
        elif self.arrival is not None and self.arrival.kind == "recorded" and self.arrival.path in self.path:
            raise RuleError("{arrival.path} has no effect: it is the trace itself")
        return self

    def _check_synthetic(self, load: SyntheticConfig) -> None:
        recorded = self.arrival is not None and self.arrival.kind == "recorded"
        if load.requests is None and load.duration_s is None and not recorded:
            raise MissingError(["synthetic.requests"])
        given = [f"synthetic.{name}" for name in ("rate", "interval_ms") if getattr(load, name) is not None]
        given += [name for name in ("arrival", "concurrency") if getattr(self, name) is not None]
        if len(given) > 1:
            raise RuleError(f"give either {{{given[0]}}} or {{{given[1]}}}, not both")
        if not given:
            raise RuleError(
                "a synthetic load needs exactly one of {synthetic.rate}, {synthetic.interval_ms}, {arrival} and "
                "{concurrency}"
            )
        if self.concurrency is not None and load.duration_s is not None:
            raise RuleError("{synthetic.duration_s} has no meaning with {concurrency}: sessions begin when others end")
        if self.concurrency_by == "request" and load.turns == 1:
            raise RuleError("{concurrency_by} has no effect unless {synthetic.turns} is at least 2")
        if self.arrival is not None and load.requests is None:
            if self.arrival.fit_rate:
                raise RuleError("{arrival.fit_rate} needs a number of {synthetic.requests}")
            if self.arrival.interval_ms == 0:
                raise RuleError("{synthetic.duration_s} has no end with an {arrival.interval_ms} of 0")

    def _check_classes(self) -> None:
        for name in ("arrival", "concurrency"):
            if getattr(self, name) is not None:
                raise RuleError(f"{{{name}}} has no effect on {{classes}}: each class has its own")
        if self.speedup != 1.0 and any(load.concurrency is not None for load in self.classes.values()):
            raise RuleError("{speedup} has no meaning for {classes} with a closed loop among them")


class ClusterConfig(Section):
    """How many workers, and how requests reach them."""

    workers: PositiveInt = Field(default=1, description="number of engines, each with its own KV cache")
    dp_size: PositiveInt = Field(
        default=1, description="data-parallel ranks of a worker, each with a KV cache; their passes end together"
    )
    prefill_workers: PositiveInt | None = Field(
        default=None, description="workers that only prefill, instead of workers that do both"
    )
    decode_workers: PositiveInt | None = Field(default=None, description="workers that decode what those hand over")
    router: RouterConfig = Field(default_factory=RouterConfig)
    transfer: TransferConfig = Field(default_factory=TransferConfig)
    bypass: BypassConfig = Field(default_factory=BypassConfig)
    scaling: ScalingConfig = Field(default_factory=ScalingConfig)
    failures: FailuresConfig = Field(default_factory=FailuresConfig)

    @model_validator(mode="after")
    def _pools(self) -> ClusterConfig:
        if (self.prefill_workers is None) != (self.decode_workers is None):
            missing, given = "decode_workers", "prefill_workers"
            if self.prefill_workers is None:
                missing, given = given, missing
            raise RuleError(f"{{{given}}} needs {{{missing}}}: a request prefills on one worker and decodes on another")
        if self.prefill_workers is None:
            if self.transfer != TransferConfig():
                raise RuleError("{transfer} has no effect without {prefill_workers}: no KV crosses between workers")
            if self.bypass != BypassConfig():
                raise RuleError("{bypass} has no effect without {prefill_workers}: all requests run on one worker")
            return self
        if self.bypass.policy != "never" and (self.router.kind != "kv" or self.router.index != "events"):
            raise RuleError("{bypass.policy} needs {router.kind} kv and its {router.index} events")
        if self.workers > 1:
            raise RuleError("give either {workers}, or {prefill_workers} and {decode_workers}")
        if self.dp_size > 1:
            raise RuleError("{dp_size} above 1 is not modelled together with {prefill_workers}")
        for name in ("queue_threshold", "policy_file"):
            if getattr(self.router, name) is not None:
                raise RuleError(f"{{router.{name}}} is not modelled together with {{prefill_workers}}")
        return self

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode have workers of their own."""
        return self.prefill_workers is not None


def _engine_kind(section: object) -> object:
    """Which engine a section describes, given as fields or as an object; vllm unless it says so."""
    if isinstance(section, dict):
        return str(section.get("kind", "vllm"))  # anything that is no name is the name of no engine
    return getattr(section, "kind", None)


EngineConfig = Annotated[
    Annotated[VllmConfig, Tag("vllm")] | Annotated[SglangConfig, Tag("sglang")], Discriminator(_engine_kind)
]


class OutputConfig(Section):
    """Files to write."""

    report: str | None = Field(default=None, description="JSON report")
    requests: str | None = Field(default=None, description="JSON lines, one record a request in arrival order")
    run_info: Flag = Field(default=True, description="keep wall-clock facts (`run`) in the report")


def _same_kind(base: dict[str, object], own: dict[str, object]) -> bool:
    kind = base.get("kind", "vllm")
    return own.get("kind", kind) == kind


POOL_ENGINES = ("prefill_engine", "decode_engine")


class Config(Section):
    """A whole simulation."""

    workload: WorkloadConfig = Field(default_factory=WorkloadConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    engine: EngineConfig = Field(default_factory=VllmConfig)
    prefill_engine: EngineConfig | None = Field(
        default=None, description="fields of the engines that prefill which differ from `engine`"
    )
    decode_engine: EngineConfig | None = Field(
        default=None, description="fields of the engines that decode which differ from `engine`"
    )
    timing: TimingConfig = Field(default_factory=TimingConfig)
    slo: SloConfig = Field(default_factory=SloConfig)
    output: OutputConfig = Field(default_factory=OutputConfig)
    seed: Seed = Field(default=0, description="seed of every random choice; the same seed gives the same report")
    max_time_s: NonNegativeFloat | None = Field(
        default=None, description="stop at this virtual time; the report is partial"
    )

    @property
    def kv_bytes_per_token(self) -> int | None:
        """KV of one token of the whole model, over all GPUs of a worker; None if nothing says it."""
        given = self.cluster.transfer.kv_bytes_per_token
        deployment = self.timing.deployment()
        if given is not None or deployment is None:
            return given
        return deployment.kv_bytes_per_token

    @model_validator(mode="before")
    @classmethod
    def _pool_engines(cls, data: object) -> object:
        # The engine of a pool is `engine` with some fields of its own.
        if not isinstance(data, dict):
            return data
        base = data.get("engine")
        base = base.model_dump(exclude_unset=True) if isinstance(base, Section) else base or {}
        completed = dict(data)
        for name in POOL_ENGINES:
            own = data.get(name)
            if isinstance(own, dict) and isinstance(base, dict) and _same_kind(base, own):
                completed[name] = {**base, **own}
        return completed

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        transfer = self.cluster.transfer
        if (transfer.bandwidth_gb_per_s or transfer.fabric_bandwidth_gb_per_s) and self.kv_bytes_per_token is None:
            raise RuleError("{cluster.transfer.kv_bytes_per_token} is missing: neither it nor {timing.model} is given")
        for name in POOL_ENGINES:
            own = getattr(self, name)
            if own is None:
                continue
            if not self.cluster.is_split:
                raise RuleError(f"{{{name}}} has no effect without {{cluster.prefill_workers}}")
            for field in ("kind", "tokens_per_block"):
                if getattr(own, field) != getattr(self.engine, field):
                    what = "kind" if field == "kind" else "block_size" if own.kind == "vllm" else "page_size"
                    raise RuleError(f"{{{name}.{what}}} must be that of {{engine.{what}}}: KV is handed over in blocks")
        if self.cluster.dp_size > 1 and isinstance(self.engine, SglangConfig) and self.engine.overlap_schedule:
            raise RuleError(
                "{cluster.dp_size} above 1 needs {engine.overlap_schedule} false: "
                "overlap scheduling is not modelled for ranks that wait for each other"
            )
        try:
            self.__dict__["engine"] = size_engine(self.engine, self.timing, self.cluster.dp_size)
            for name in POOL_ENGINES:
                if (own := getattr(self, name)) is not None:
                    self.__dict__[name] = size_engine(own, self.timing, self.cluster.dp_size)
        except InputError as error:  # the parts of the deployment do not go together
            raise RuleError(f"{{timing.{error.field}}}: {error.message}") from None
        classes = self.workload.classes.values()
        if classes and not self.slo.is_empty and all(load.slo is not None for load in classes):
            raise RuleError("{slo} has no effect: every class of clients has its own")
        offload = self.engine.offload
        is_deployed = self.timing.model is not None and self.timing.gpu is not None
        if offload is not None and self.cluster.failures.faults is not None:
            raise RuleError("{cluster.failures.faults} is not modelled with {engine.offload}")
        if offload is not None and offload.kv_bytes_per_token is None and not is_deployed:
            raise RuleError("{engine.offload.kv_bytes_per_token} is needed, or {timing.model} and {timing.gpu}")
        if self.cluster.is_split:
            for name in ("engine", *POOL_ENGINES):
                own = getattr(self, name)
                if own is not None and own.offload is not None:
                    raise RuleError(f"{{{name}.offload}} is not modelled with {{cluster.prefill_workers}}")
                if own is not None and own.speculation is not None:
                    raise RuleError(f"{{{name}.speculation}} is not modelled with {{cluster.prefill_workers}}")
        if self.cluster.dp_size > 1 and isinstance(self.engine, SglangConfig) and self.engine.speculation is not None:
            raise RuleError("{engine.speculation} on SGLang is not modelled with {cluster.dp_size} above 1")
        return self
