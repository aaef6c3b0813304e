"""The one schema of a simulation: the same fields in files, on the command line (`--set path=value`) and in Python.

Fields are grouped by who reads them, have their unit in the name, and have no effect-free values: an option
that would be ignored is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SAMPLE_TRACE = "sample:mooncake-conversation"

# Names that a config file may use besides `module:attribute` of an object written in Python.
ROUTERS = ("round-robin", "random", "least-loaded")
TIMING_MODELS = ("polynomial",)

LARGEST_INT = 10**12  # counts and lengths up to here add up within 64 bits

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
PositiveInt = Annotated[int, Field(ge=1, le=LARGEST_INT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST_INT, strict=True)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


class RuleError(ValueError):
    """Fields whose values do not go together.

    The text names fields in braces, relative to the section that states the rule, so that a reader of the error
    can be shown where each came from: a flag, or a line of a file.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(self.phrase(lambda field: field))

    def phrase(self, name: Callable[[str], str]) -> str:
        """The text with `name(field)` in the place of each field."""
        return re.sub(r"\{([\w.]+)\}", lambda match: name(match[1]), self.text)


def _named(names: Sequence[str]) -> AfterValidator:
    """Accepts one of the names, or anything of the form `module:attribute`."""

    def check(value: str) -> str:
        module, _, attribute = value.partition(":")
        if value in names or (module and attribute):
            return value
        close = get_close_matches(value, names, n=1, cutoff=0.5)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ValueError(f"expected {', '.join(repr(name) for name in names)} or module:attribute{hint}")

    return AfterValidator(check)


class Section(BaseModel):
    """Base of all sections: unknown fields are errors, values are checked on assignment."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_default=True)


class SyntheticConfig(Section):
    """A generated load: `requests` sessions of `turns` turns each, all of one prompt and output length.

    Exactly one of `rate`, `interval_ms` and `workload.concurrency` says when they are sent.
    """

    isl: PositiveInt = Field(description="prompt tokens of each request")
    osl: PositiveInt = Field(description="output tokens of each request")
    requests: PositiveInt = Field(description="number of sessions; with one turn each, of requests")
    rate: PositiveFloat | None = Field(default=None, description="mean arrivals per second, Poisson")
    interval_ms: NonNegativeFloat | None = Field(
        default=None, description="constant time between arrivals; 0 sends all at once"
    )
    turns: PositiveInt = Field(default=1, description="turns of each session; every turn has `isl` prompt tokens")
    turn_delay_ms: NonNegativeFloat = Field(default=0.0, description="from the end of a turn to the next one")
    prefix_ratio: Annotated[float, Field(ge=0, le=1, strict=True)] = Field(
        default=0.0, description="share of a prompt's blocks that all sessions of a group have in common"
    )
    prefix_groups: NonNegativeInt = Field(
        default=0, description="number of such groups; sessions draw theirs uniformly"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SyntheticConfig:
        if self.rate is not None and self.interval_ms is not None:
            raise RuleError("give either {rate} or {interval_ms}, not both")
        if self.turn_delay_ms and self.turns == 1:
            raise RuleError("{turn_delay_ms} has no effect unless {turns} is at least 2")
        if (self.prefix_ratio > 0) != (self.prefix_groups > 0):
            raise RuleError(
                "{prefix_ratio} and {prefix_groups} have an effect only together: give both above 0, or neither"
            )
        return self


def _as_paths(value: object) -> object:
    return [value] if isinstance(value, str) else value


class WorkloadConfig(Section):
    """What is sent and when: trace files, or a synthetic load."""

    path: Annotated[list[str], BeforeValidator(_as_paths)] = Field(
        default_factory=list, description=f"trace files; '{SAMPLE_TRACE}' is the trace that ships with the package"
    )
    format: str = Field(default="auto", description="trace format; auto recognises it from the first row")
    trace_block_size: PositiveInt = Field(default=512, description="tokens a hash id of the trace stands for")
    speedup: PositiveFloat = Field(default=1.0, description="divides arrival times and turn delays")
    concurrency: PositiveInt | None = Field(
        default=None, description="closed loop: sessions in flight at once; arrival times of the trace are ignored"
    )
    limit: PositiveInt | None = Field(default=None, description="read only the first rows of the trace")
    cancel_after_ms: PositiveFloat | None = Field(
        default=None, description="clients give up on a request that has not completed this long after its arrival"
    )
    synthetic: SyntheticConfig | None = Field(default=None, description="a generated load instead of trace files")

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: object) -> object:
        # Before the fields are read: a synthetic section that stands beside a trace need not be complete.
        if isinstance(data, dict) and data.get("path") and data.get("synthetic") is not None:
            raise RuleError("give either {path} or {synthetic}, not both: a load is read from traces or synthetic")
        return data

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadConfig:
        if self.concurrency is not None and self.speedup != 1.0:
            raise RuleError("{speedup} has no effect with {concurrency}: a closed loop ignores arrival times")
        if self.synthetic is not None:
            for name in ("format", "trace_block_size", "limit"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise RuleError(f"{{{name}}} applies to trace files only, but {{synthetic}} is given")
            given = "rate" if self.synthetic.rate is not None else "interval_ms"
            is_open = self.synthetic.rate is not None or self.synthetic.interval_ms is not None
            if is_open and self.concurrency is not None:
                raise RuleError(f"give either {{synthetic.{given}}} or {{concurrency}}, not both")
            if not is_open and self.concurrency is None:
                raise RuleError(
                    "a synthetic load needs exactly one of {synthetic.rate}, {synthetic.interval_ms} and {concurrency}"
                )
        return self


class RouterConfig(Section):
    """Which worker gets a request."""

    kind: Annotated[str, _named(ROUTERS)] = Field(
        default="round-robin",
        description="policy: round-robin, random, least-loaded, or module:attribute of one written in Python",
    )
    tie_break: Literal["lowest", "random"] = Field(
        default="lowest", description="among equally good workers: the lowest number, or a seeded draw"
    )

    @model_validator(mode="after")
    def _consistent(self) -> RouterConfig:
        if self.tie_break != "lowest" and self.kind in ("round-robin", "random"):
            raise RuleError(f"{{tie_break}} has no effect with the {self.kind} router, which has no ties")
        return self


class ClusterConfig(Section):
    """How many workers, and how requests reach them."""

    workers: PositiveInt = Field(default=1, description="number of engines, each with its own KV cache")
    router: RouterConfig = Field(default_factory=RouterConfig)


def _fcfs(value: object) -> object:
    return "fcfs" if value == "fifo" else value


def _release(value: object) -> object:
    return str(value) if isinstance(value, float) else value  # YAML reads an unquoted release as a number


class VllmConfig(Section):
    """vLLM v1's scheduler and prefix-caching block pool. Names and defaults are vLLM's where it has them."""

    kind: Literal["vllm"] = Field(default="vllm", description="the engine whose scheduler decides")
    num_gpu_blocks: PositiveInt = Field(
        default=16384, description="usable KV blocks: vLLM's own number minus one, for its null block"
    )
    block_size: PositiveInt = Field(default=64, description="tokens per KV block")
    max_num_seqs: PositiveInt = Field(default=256, description="requests running at once")
    max_num_batched_tokens: PositiveInt = Field(default=8192, description="token budget of a pass")
    max_model_len: PositiveInt | None = Field(default=None, description="longest sequence, prompt and output")
    enable_prefix_caching: Flag = Field(default=True, description="reuse the KV blocks of earlier prompts")
    enable_chunked_prefill: Flag = Field(
        default=True, description="spread a prompt over several passes when the budget is short"
    )
    long_prefill_token_threshold: NonNegativeInt = Field(
        default=0, description="longest chunk of a prompt while other requests are queued or running; 0 is no limit"
    )
    long_prefill_token_threshold_adaptive: Flag = Field(
        default=False, description="raise that limit to an even share of the budget"
    )
    watermark: Annotated[float, Field(ge=0, lt=1, strict=True)] = Field(
        default=0.0, description="share of the blocks that admissions leave free while anything runs"
    )
    scheduler_reserve_full_isl: Flag = Field(
        default=True, description="admit a prompt only if all of it fits, not just its first chunk"
    )
    scheduling_policy: Annotated[Literal["fcfs"], BeforeValidator(_fcfs)] = Field(
        default="fcfs", description="order of the waiting queue"
    )
    async_scheduling: Literal[False] = Field(default=False, description="asynchronous scheduling is not modelled yet")
    behaviour: Annotated[Literal["0.33"], BeforeValidator(_release)] = Field(
        default="0.33", description="the vLLM release whose decisions are made"
    )
    fast_forward: Flag = Field(
        default=True, description="false computes every pass one by one: the same record, slower"
    )

    @model_validator(mode="after")
    def _consistent(self) -> VllmConfig:
        if self.long_prefill_token_threshold_adaptive and not self.long_prefill_token_threshold:
            raise RuleError("{long_prefill_token_threshold_adaptive} needs {long_prefill_token_threshold} above 0")
        return self

    @property
    def watermark_blocks(self) -> int:
        """The watermark as vLLM counts it: a share of all blocks, its null block included."""
        return int(self.watermark * (self.num_gpu_blocks + 1))

    @property
    def kv_capacity_tokens(self) -> int:
        return self.num_gpu_blocks * self.block_size


class TimingConfig(Section):
    """What a forward pass costs."""

    kind: Annotated[str, _named(TIMING_MODELS)] = Field(
        default="polynomial", description="model: polynomial, or module:attribute of one written in Python"
    )
    speedup: PositiveFloat = Field(default=1.0, description="divides the duration of every pass")
    decode_speedup: PositiveFloat = Field(default=1.0, description="divides the decode part further; polynomial only")

    @model_validator(mode="after")
    def _consistent(self) -> TimingConfig:
        if self.decode_speedup != 1.0 and self.kind != "polynomial":
            raise RuleError("{decode_speedup} applies to the polynomial model only: others price a pass as a whole")
        return self


class SloConfig(Section):
    """Limits that make a completed request a good one; each that is given must hold (<=)."""

    ttft_ms: NonNegativeFloat | None = Field(default=None, description="time to the first token")
    itl_ms: NonNegativeFloat | None = Field(
        default=None, description="mean gap of a request: (E2E - TTFT) / (tokens - 1)"
    )
    e2e_ms: NonNegativeFloat | None = Field(default=None, description="time to the last token")


class OutputConfig(Section):
    """Files to write."""

    report: str | None = Field(default=None, description="JSON report")
    requests: str | None = Field(default=None, description="JSON lines, one record a request in arrival order")
    run_info: Flag = Field(default=True, description="keep wall-clock facts (`run`) in the report")


class Config(Section):
    """A whole simulation."""

    workload: WorkloadConfig = Field(default_factory=WorkloadConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    engine: VllmConfig = Field(default_factory=VllmConfig)
    timing: TimingConfig = Field(default_factory=TimingConfig)
    slo: SloConfig = Field(default_factory=SloConfig)
    output: OutputConfig = Field(default_factory=OutputConfig)
    seed: Seed = Field(default=0, description="seed of every random choice; the same seed gives the same report")
    max_time_s: NonNegativeFloat | None = Field(
        default=None, description="stop at this virtual time; the report is partial"
    )
