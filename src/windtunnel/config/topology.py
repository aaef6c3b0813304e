"""Fields of a cluster beyond its workers and router: what KV crosses between workers, and how workers come and go.

They say what there is and never how it behaves (cluster/).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from windtunnel.config.section import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, RuleError, Section, named


class TransferConfig(Section):
    """How KV gets from a worker that prefills to one that decodes; without a bandwidth it takes `latency_ms`."""

    latency_ms: NonNegativeFloat = Field(default=0.0, description="from the start of a transfer to its first byte")
    bandwidth_gb_per_s: PositiveFloat | None = Field(
        default=None, description="of each worker's network interface, in each direction; GB are 10^9 bytes"
    )
    fabric_bandwidth_gb_per_s: PositiveFloat | None = Field(
        default=None, description="what all transfers of the cluster get together"
    )
    kv_bytes_per_token: PositiveInt | None = Field(
        default=None, description="KV of one token; unless given, that of timing.model"
    )
    bytes: Literal["full_prompt", "destination_missing"] = Field(
        default="full_prompt", description="what is sent: the whole prompt, or what the destination has not cached"
    )
    shared: Flag = Field(
        default=True, description="transfers share the bandwidth; false gives each all of it, however many there are"
    )

    @model_validator(mode="after")
    def _consistent(self) -> TransferConfig:
        if self.bandwidth_gb_per_s is None and self.fabric_bandwidth_gb_per_s is None:
            for name in ("kv_bytes_per_token", "bytes", "shared"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise RuleError(f"{{{name}}} has no effect without {{bandwidth_gb_per_s}}: bytes take no time")
        return self


class BypassConfig(Section):
    """Requests that prefill where they decode, although there are workers that only prefill."""

    policy: Literal["never", "isl-bounding", "prefill-load", "isl-or-load"] = Field(
        default="never",
        description="which: those with little to compute, all while prefill is busy, or both; needs the kv router",
    )
    uncached_tokens: PositiveInt = Field(
        default=2048, description="little is less than this, after what the worker that decodes has cached,"
    )
    uncached_share: Annotated[float, Field(gt=0, le=1, strict=True)] = Field(
        default=0.7, description="and less than this share of the prompt"
    )
    prefill_busy_threshold: NonNegativeFloat | None = Field(
        default=None,
        description="prefill is busy while the worker that would compute the prompt has more prompt work than this "
        "share of max_num_batched_tokens",
    )
    decode_busy_threshold: Annotated[float, Field(ge=0, le=1, strict=True)] | None = Field(
        default=None, description="never while the worker that decodes has more than this share of its KV blocks in use"
    )

    @model_validator(mode="after")
    def _consistent(self) -> BypassConfig:
        own = {
            "uncached_tokens": ("isl-bounding", "isl-or-load"),
            "uncached_share": ("isl-bounding", "isl-or-load"),
            "prefill_busy_threshold": ("prefill-load", "isl-or-load"),
            "decode_busy_threshold": ("isl-bounding", "prefill-load", "isl-or-load"),
        }
        for name, policies in own.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.policy not in policies:
                raise RuleError(f"{{{name}}} has no effect unless {{policy}} is {' or '.join(policies)}")
        if self.policy in own["prefill_busy_threshold"] and self.prefill_busy_threshold is None:
            raise RuleError(f"{{prefill_busy_threshold}} is missing: {{policy}} {self.policy} needs it")
        return self


AUTOSCALERS = ("threshold", "slo")


class ScalingConfig(Section):
    """Workers that come and go: on a schedule, or as an autoscaler wants."""

    schedule: str | None = Field(
        default=None, description="YAML or JSON file, a list of {at_s: 10, workers: 2}: workers from that time on"
    )
    autoscaler: Annotated[str, named(AUTOSCALERS)] | None = Field(
        default=None, description="policy: threshold, slo, or module:attribute of one written in Python"
    )
    startup_s: NonNegativeFloat = Field(default=0.0, description="from asking for a worker to its first request")
    interval_s: PositiveFloat = Field(default=15.0, description="between two decisions of a policy")
    requests_per_worker: PositiveFloat | None = Field(
        default=None, description="threshold: requests that each worker shall have, waiting and running"
    )
    stabilization_s: NonNegativeFloat = Field(
        default=300.0, description="threshold: how long a larger number of workers is remembered"
    )
    itl_ms: PositiveFloat | None = Field(default=None, description="slo: limit of the gap between two tokens")
    min_workers: PositiveInt = Field(default=1, description="least workers that a policy asks for, in each pool")
    max_workers: PositiveInt | None = Field(default=None, description="most workers that a policy asks for")

    @model_validator(mode="after")
    def _consistent(self) -> ScalingConfig:
        if self.schedule is not None and self.autoscaler is not None:
            raise RuleError("give either {schedule} or {autoscaler}, not both")
        if self.schedule is None and self.autoscaler is None and self.startup_s:
            raise RuleError("{startup_s} has no effect without {schedule} or {autoscaler}")
        own = {
            "requests_per_worker": ("threshold",),
            "stabilization_s": ("threshold",),
            "itl_ms": ("slo",),
            **dict.fromkeys(("interval_s", "min_workers", "max_workers"), AUTOSCALERS),
        }
        for name, policies in own.items():
            is_given = getattr(self, name) != type(self).model_fields[name].default
            if is_given and self.autoscaler not in policies:
                raise RuleError(f"{{{name}}} has no effect unless {{autoscaler}} is {' or '.join(policies)}")
        if self.autoscaler == "threshold" and self.requests_per_worker is None:
            raise RuleError("{requests_per_worker} is missing: {autoscaler} threshold needs it")
        if self.autoscaler == "slo" and self.itl_ms is None:
            raise RuleError("{itl_ms} is missing: {autoscaler} slo needs it")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise RuleError("{max_workers} must be at least {min_workers}")
        return self

    @property
    def is_on(self) -> bool:
        return self.schedule is not None or self.autoscaler is not None


class FailuresConfig(Section):
    """What goes wrong, and what becomes of the requests that it hits."""

    faults: str | None = Field(
        default=None, description="YAML or JSON file, a list of {at_s: 20, what: crash, worker: 0, for_s: 30}"
    )
    on_crash: Literal["retry", "fail"] = Field(
        default="retry", description="requests of a worker that crashes start anew on another one, or fail"
    )

    @model_validator(mode="after")
    def _consistent(self) -> FailuresConfig:
        if self.faults is None and self.on_crash != "retry":
            raise RuleError("{on_crash} has no effect without {faults}")
        return self
