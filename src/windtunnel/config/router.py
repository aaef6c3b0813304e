"""Fields of a router: which policy, what it knows, and how it weighs it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from windtunnel.config.section import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, RuleError, Section, named
from windtunnel.config.vllm import fcfs

# Names that a config file may use besides `module:attribute` of an object written in Python.
ROUTERS = (
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "session-affinity",
    "prefix-hash",
    "weighted",
    "kv",
)

# Built-in routers that have an option; all other options are everybody's.
_CACHE = ("kv", "weighted")
_KV = ("kv",)
READERS = {
    "tie_break": ("least-loaded", "session-affinity", "weighted", "kv"),
    "load": ("least-loaded", "power-of-two", "session-affinity"),
    "prefix_tokens": ("prefix-hash",),
    "load_factor": ("prefix-hash",),
    "prefix_weight": ("weighted",),
    "queue_weight": ("weighted",),
    "kv_weight": ("weighted",),
    "index": _CACHE,
    "event_delay_ms": _CACHE,
    "ttl_s": _CACHE,
    "predicted_ttl_s": _CACHE,
    "overlap_credit": _KV,
    "overlap_credit_decay": _KV,
    "prefill_load_scale": _KV,
    "active_request_weight": _KV,
    "temperature": _KV,
    "track_prefill_tokens": _KV,
    "track_active_blocks": _KV,
    "assume_kv_reuse": _KV,
    "prefill_load_decay": _KV,
    "queue_threshold": _KV,
    "queue_policy": _KV,
    "policy_file": _KV,
}


class RouterConfig(Section):
    """Which worker gets a request."""

    kind: Annotated[str, named(ROUTERS)] = Field(
        default="round-robin",
        description=f"policy: {', '.join(ROUTERS)}, or module:attribute of one written in Python",
    )
    tie_break: Literal["lowest", "random"] = Field(
        default="lowest", description="among equally good workers: the lowest number, or a seeded draw"
    )
    load: Literal["requests", "tokens", "kv"] = Field(
        default="requests",
        description="what least-loaded and its relatives compare: requests that have not ended, their prompt tokens, "
        "or the share of KV blocks in use",
    )
    prefix_tokens: PositiveInt = Field(default=256, description="prefix-hash: leading prompt tokens that are hashed")
    load_factor: Annotated[float, Field(gt=1, allow_inf_nan=False, strict=True)] = Field(
        default=1.25, description="prefix-hash: most load of a worker, as a multiple of the mean"
    )
    prefix_weight: NonNegativeFloat = Field(
        default=3.0, description="weighted: of the share of the prompt that is cached there"
    )
    queue_weight: NonNegativeFloat = Field(default=2.0, description="weighted: of a short queue")
    kv_weight: NonNegativeFloat = Field(default=2.0, description="weighted: of the share of KV blocks that are free")
    index: Literal["events", "approximate"] = Field(
        default="events",
        description="how caches are known: by KV events, or taken to hold for a while what was sent there",
    )
    event_delay_ms: NonNegativeFloat = Field(
        default=0.0, description="from the end of a pass until its KV events are known"
    )
    ttl_s: NonNegativeFloat = Field(default=120.0, description="how long an approximate index believes what was sent")
    predicted_ttl_s: PositiveFloat | None = Field(
        default=None, description="an index of events believes besides, for so long, what was sent"
    )
    overlap_credit: NonNegativeFloat = Field(default=1.0, description="blocks of prompt work that a cached one saves")
    overlap_credit_decay: NonNegativeFloat = Field(
        default=0.0, description="how fast that falls with prompt work beyond that of the least loaded worker"
    )
    prefill_load_scale: NonNegativeFloat = Field(default=1.0, description="weight of blocks of prompt work")
    active_request_weight: NonNegativeFloat = Field(
        default=0.0, description="blocks that an active request costs besides its own"
    )
    temperature: NonNegativeFloat = Field(
        default=0.0, description="softmax over the costs; 0 takes the cheapest worker"
    )
    track_prefill_tokens: Flag = Field(default=True, description="count prompt work")
    track_active_blocks: Flag = Field(default=True, description="count the prompt blocks of active requests")
    assume_kv_reuse: Flag = Field(default=True, description="count blocks that active requests share once")
    prefill_load_decay: Flag = Field(
        default=False, description="let prompt work decay over the time that the timing model expects of it"
    )
    queue_threshold: NonNegativeFloat | None = Field(
        default=None,
        description="requests wait in the router while all workers have more prompt work than this share of "
        "max_num_batched_tokens",
    )
    queue_policy: Annotated[Literal["fcfs", "lcfs", "wspt"], BeforeValidator(fcfs)] = Field(
        default="fcfs",
        description="who of them goes first: first come, last come, or the shortest by uncached tokens and priority",
    )
    policy_file: str | None = Field(default=None, description="YAML file of classes with queues of their own")

    @model_validator(mode="after")
    def _consistent(self) -> RouterConfig:
        fields = type(self).model_fields
        for name, readers in READERS.items():
            if getattr(self, name) == fields[name].default or self.kind in readers:
                continue
            if self.kind not in ROUTERS and name != "tie_break":
                raise RuleError(f"{{{name}}} has no effect with {self.kind}: it is an option of {readers[0]}")
            if self.kind in ROUTERS:
                why = ", which has no ties" if name == "tie_break" and self.kind in ("round-robin", "random") else ""
                raise RuleError(f"{{{name}}} has no effect with the {self.kind} router{why}")
        if self.index == "approximate":
            for name in ("event_delay_ms", "predicted_ttl_s"):
                if getattr(self, name) != fields[name].default:
                    raise RuleError(f"{{{name}}} has no effect while {{index}} is approximate: there are no events")
        elif self.ttl_s != fields["ttl_s"].default:
            raise RuleError("{ttl_s} has no effect unless {index} is approximate")
        if self.temperature and self.tie_break == "random":
            raise RuleError("{tie_break} has no effect with a {temperature}: every choice is a draw")
        if not self.track_active_blocks and not self.assume_kv_reuse:
            raise RuleError("{assume_kv_reuse} has no effect while {track_active_blocks} is false")
        if self.prefill_load_decay and not self.track_prefill_tokens:
            raise RuleError("{prefill_load_decay} needs {track_prefill_tokens}")
        if self.policy_file is not None and self.queue_threshold is not None:
            raise RuleError("give either {policy_file}, whose classes have thresholds, or {queue_threshold}")
        if self.queue_policy != "fcfs" and self.queue_threshold is None:
            raise RuleError("{queue_policy} has no effect without a {queue_threshold}: nothing waits in the router")
        if not self.track_prefill_tokens and (self.policy_file is not None or self.queue_threshold is not None):
            raise RuleError("{track_prefill_tokens} is needed to tell busy workers, by prompt work")
        return self
