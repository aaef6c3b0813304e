"""Generated loads: what one kind of client sends.

`GeneratedLoad` has the fields that the one load of `workload.synthetic` and each class of `workload.classes` have in
common. Decided here is which fields go together; what they mean, in `workload/synthetic.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from windtunnel.config.arrival import ArrivalConfig, Burstiness
from windtunnel.config.distribution import Delay, Distribution, Length
from windtunnel.config.section import (
    Flag,
    MissingError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RuleError,
    Section,
)
from windtunnel.config.slo_limits import SloConfig

MAX_SYNTHETIC_REQUESTS = 100_000_000

_CLASS_NAME = re.compile(r"[A-Za-z0-9_-]+")


class GeneratedLoad(Section):
    """Sessions of turns, with their lengths, their number and what their prompts have in common."""

    isl: Length | None = Field(
        default=None, description="prompt tokens of each request. Also drawn: lognormal:mean=1024,std=600"
    )
    osl: Length | None = Field(
        default=None, description="output tokens of each request. Also drawn: uniform:min=1,max=512"
    )
    requests: PositiveInt | None = Field(
        default=None, description="number of sessions; with one turn each, of requests"
    )
    rate: PositiveFloat | None = Field(default=None, description="mean arrivals per second, Poisson")
    interval_ms: NonNegativeFloat | None = Field(
        default=None, description="constant time between arrivals; 0 sends all at once"
    )
    turns: Length = Field(
        default=1, description="turns of each session, or a distribution; every turn has `isl` prompt tokens"
    )
    turn_delay_ms: Delay = Field(
        default=0.0, description="from the end of a turn to the next one, or a distribution of it"
    )
    prefix_ratio: Annotated[float, Field(ge=0, le=1, strict=True)] = Field(
        default=0.0, description="share of a prompt's blocks that all sessions of a group have in common"
    )
    prefix_groups: NonNegativeInt = Field(
        default=0, description="number of such groups; sessions draw theirs uniformly, or by prefix_zipf"
    )
    lengths: str | None = Field(
        default=None, description="trace or table whose pairs of lengths are drawn, instead of isl and osl"
    )
    duration_s: PositiveFloat | None = Field(
        default=None, description="sessions that arrive before this time, instead of a number of them"
    )
    burstiness: Burstiness | None = Field(
        default=None, description="with rate: gaps are gamma-distributed with this shape, as in vLLM; 1 is Poisson"
    )
    accumulate: Flag = Field(
        default=False, description="a turn's prompt is the whole conversation before it, and isl new tokens"
    )
    prefix_tokens: Length | None = Field(
        default=None, description="tokens in front of each first prompt that all sessions of a group have in common"
    )
    prefix_zipf: NonNegativeFloat = Field(
        default=0.0, description="the k-th group is drawn with a weight of 1 / k to this power; 0 is uniform"
    )

    @model_validator(mode="after")
    def _consistent(self) -> GeneratedLoad:
        self._check_lengths()
        if self.rate is not None and self.interval_ms is not None:
            raise RuleError("give either {rate} or {interval_ms}, not both")
        if self.burstiness is not None and self.rate is None:
            raise RuleError("{burstiness} has no effect without {rate}")
        if self.requests is not None and self.duration_s is not None:
            raise RuleError("give either {requests} or {duration_s}, not both")
        if self.interval_ms == 0 and self.duration_s is not None:
            raise RuleError("{duration_s} has no end with an {interval_ms} of 0")
        fewest_turns = self.turns if isinstance(self.turns, int) else 1
        if self.requests is not None and self.requests * fewest_turns > MAX_SYNTHETIC_REQUESTS:
            raise RuleError(
                f"{{requests}} times {{turns}} is more than the {MAX_SYNTHETIC_REQUESTS:,} requests that fit in memory"
            )
        if self.turns == 1:
            if self.turn_delay_ms:
                raise RuleError("{turn_delay_ms} has no effect unless {turns} is at least 2")
            if self.accumulate:
                raise RuleError("{accumulate} has no effect unless {turns} is at least 2")
        for name in ("turns", "turn_delay_ms", "prefix_tokens"):
            drawn = getattr(self, name)
            if isinstance(drawn, Distribution) and drawn.kind == "empirical":
                raise RuleError(f"{{{name}}} cannot be empirical: files have lengths of prompts and outputs")
        self._check_prefix()
        return self

    def _check_lengths(self) -> None:
        if self.lengths is None:
            missing = [name for name in ("isl", "osl") if getattr(self, name) is None]
        else:
            missing = []
            for name in ("isl", "osl"):
                if getattr(self, name) is not None:
                    raise RuleError(f"give either {{lengths}}, which has both lengths, or {{{name}}}, not both")
        if self.requests is None and self.duration_s is None and (missing or self._needs_requests()):
            missing.append("requests")
        if missing:
            raise MissingError(missing)

    def _needs_requests(self) -> bool:
        """Whether nothing but a number or a duration can say how many sessions there are."""
        return True

    def _check_prefix(self) -> None:
        if self.prefix_ratio > 0 and self.prefix_tokens is not None:
            raise RuleError("give either {prefix_ratio} or {prefix_tokens}, not both")
        if self.prefix_tokens is not None:
            if not self.prefix_groups:
                raise RuleError("{prefix_tokens} has no effect unless {prefix_groups} is at least 1")
        elif (self.prefix_ratio > 0) != (self.prefix_groups > 0):
            raise RuleError(
                "{prefix_ratio} and {prefix_groups} have an effect only together: give both above 0, or neither"
            )
        if self.prefix_zipf and self.prefix_groups < 2:
            raise RuleError("{prefix_zipf} has no effect unless {prefix_groups} is at least 2")


class SyntheticConfig(GeneratedLoad):
    """A generated load of one kind of client.

    Exactly one of `rate`, `interval_ms`, `workload.arrival` and `workload.concurrency` says when sessions begin.
    """

    def _needs_requests(self) -> bool:
        return self.rate is not None or self.interval_ms is not None  # else `workload` knows more


class ClassConfig(GeneratedLoad):
    """One class of clients of a mixed load, judged by its own service levels.

    Exactly one of `rate`, `interval_ms`, `arrival` and `concurrency` says when its sessions begin.
    """

    arrival: ArrivalConfig | None = Field(default=None, description="when sessions begin, if not at a plain rate")
    start_s: NonNegativeFloat = Field(default=0.0, description="when the class joins: added to all its arrivals")
    concurrency: PositiveInt | None = Field(
        default=None, description="closed loop: sessions of this class in flight at once"
    )
    concurrency_by: Literal["session", "request"] = Field(
        default="session", description="what concurrency counts; see workload.concurrency_by"
    )
    slo: SloConfig | None = Field(default=None, description="limits of this class, instead of those of `slo`")

    @model_validator(mode="after")
    def _one_controller(self) -> ClassConfig:
        given = [n for n in ("rate", "interval_ms", "arrival", "concurrency") if getattr(self, n) is not None]
        if len(given) > 1:
            raise RuleError(f"give either {{{given[0]}}} or {{{given[1]}}}, not both")
        if not given:
            raise RuleError("a class needs exactly one of {rate}, {interval_ms}, {arrival} and {concurrency}")
        if self.requests is None and self.arrival is not None:
            if self.arrival.fit_rate:
                raise RuleError("{arrival.fit_rate} needs a number of {requests}")
            if self.arrival.interval_ms == 0:
                raise RuleError("{duration_s} has no end with an {arrival.interval_ms} of 0")
        if self.concurrency is None:
            if self.concurrency_by != "session":
                raise RuleError("{concurrency_by} has no effect without {concurrency}")
        elif self.duration_s is not None:
            raise RuleError("{duration_s} has no meaning with {concurrency}: sessions begin when others end")
        elif self.start_s:
            raise RuleError("{start_s} has no effect with {concurrency}")
        if self.concurrency_by == "request" and self.turns == 1:
            raise RuleError("{concurrency_by} has no effect unless {turns} is at least 2: a session is one request")
        if self.slo is not None and self.slo.is_empty:
            raise RuleError("{slo} is empty, expected a limit")
        return self

    def _needs_requests(self) -> bool:
        return self.arrival is None or self.arrival.kind != "recorded"


def _class_name(name: str) -> str:
    if not _CLASS_NAME.fullmatch(name):
        raise ValueError("expected a name of letters, digits, '-' and '_'")
    return name


ClassName = Annotated[str, AfterValidator(_class_name)]
