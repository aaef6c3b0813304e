"""When sessions begin: the arrival processes that a configuration can name.

Says what each is called and takes; `workload/arrivals.py` and `workload/rates.py` say what it means.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from windtunnel.config.kinds import KindSection, Parameters
from windtunnel.config.section import Flag, NonNegativeFloat, PositiveFloat, RuleError, named

_GAPS = ("burstiness", "evenly")

ARRIVAL_PARAMETERS = {
    "constant": Parameters((("rate",), ("interval_ms",))),
    "poisson": Parameters((("rate",),), ("fit_rate",)),
    "gamma": Parameters((("rate", "burstiness"),), ("fit_rate",)),
    "weibull": Parameters((("rate", "shape"),), ("fit_rate",)),
    "ramp": Parameters((("start_rate", "end_rate", "ramp_s"),), ("curve", *_GAPS)),
    "step": Parameters((("rates", "step_s"),), ("repeat", *_GAPS)),
    "spike": Parameters((("rate", "spike_rate", "spike_start_s", "spike_s"),), ("period_s", *_GAPS)),
    "diurnal": Parameters((("rate", "amplitude"),), ("period_s", "peak_s", *_GAPS)),
    "recorded": Parameters((("path",),)),
}
ARRIVALS = tuple(ARRIVAL_PARAMETERS)

# Below, gaps are so uneven that most of them underflow to zero.
Burstiness = Annotated[float, Field(ge=0.001, le=1e6, strict=True)]


class ArrivalConfig(KindSection):
    """An arrival process of an open loop. Rates are sessions per second."""

    PARAMETERS: ClassVar[dict[str, Parameters]] = ARRIVAL_PARAMETERS
    EXAMPLE: ClassVar[str] = "gamma:rate=10,burstiness=0.5"
    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    kind: Annotated[str, named(ARRIVALS)] = Field(description=f"{', '.join(ARRIVALS)}, or module:attribute")
    rate: PositiveFloat | None = Field(default=None, description="mean arrivals per second; of a spike: outside it")
    interval_ms: NonNegativeFloat | None = Field(default=None, description="time between arrivals; 0: all at once")
    burstiness: Burstiness | None = Field(
        default=None, description="shape of gamma-distributed gaps, as in vLLM: 1 is Poisson, below is burstier"
    )
    shape: Annotated[float, Field(ge=0.1, le=100, strict=True)] | None = Field(
        default=None, description="shape of Weibull-distributed gaps: 1 is Poisson, below is burstier"
    )
    fit_rate: Flag = Field(
        default=False, description="stretch the times so that the last of n arrivals is at n / rate, as vLLM does"
    )
    evenly: Flag = Field(default=False, description="no chance: each arrival when the rate has added up to it")
    start_rate: NonNegativeFloat | None = Field(default=None, description="rate at the start of a ramp")
    end_rate: NonNegativeFloat | None = Field(default=None, description="rate at its end, and from then on")
    ramp_s: PositiveFloat | None = Field(default=None, description="how long the ramp takes")
    curve: Literal["linear", "exponential"] = Field(default="linear", description="form of the ramp over time")
    rates: list[NonNegativeFloat] | None = Field(default=None, description="rates of the steps, one after the other")
    step_s: PositiveFloat | None = Field(default=None, description="how long a step takes; the last one stays")
    repeat: Flag = Field(default=False, description="begin again with the first step after the last")
    spike_rate: NonNegativeFloat | None = Field(default=None, description="rate during the spike")
    spike_start_s: NonNegativeFloat | None = Field(default=None, description="when the spike begins")
    spike_s: PositiveFloat | None = Field(default=None, description="how long it takes")
    period_s: PositiveFloat | None = Field(
        default=None, description="of a spike: from one to the next, else there is one; of a day: its length, 86400"
    )
    amplitude: Annotated[float, Field(gt=0, le=1, strict=True)] | None = Field(
        default=None, description="share of the mean rate by which a day swings up and down"
    )
    peak_s: NonNegativeFloat | None = Field(
        default=None, description="when in the day the rate is highest; if not given, in its middle"
    )
    path: str | None = Field(default=None, description="trace whose arrival times are taken")

    @model_validator(mode="after")
    def _consistent(self) -> ArrivalConfig:
        if self.evenly and self.burstiness is not None:
            raise RuleError("{burstiness} has no effect with {evenly}: there is no chance in the gaps")
        if self.rates is not None and not any(self.rates):
            raise RuleError("{rates} has no rate above 0: nothing would ever arrive")
        if self.start_rate == 0 and self.end_rate == 0:
            raise RuleError("{start_rate} and {end_rate} are both 0: nothing would ever arrive")
        if self.curve == "exponential" and not (self.start_rate and self.end_rate):
            raise RuleError("{curve} exponential needs {start_rate} and {end_rate} above 0")
        if self.kind == "spike" and self.period_s is not None:
            spike_end_s = (self.spike_start_s or 0.0) + (self.spike_s or 0.0)
            if spike_end_s > self.period_s:
                raise RuleError("{spike_start_s} and {spike_s} together are beyond {period_s}")
        if self.kind == "diurnal" and self.peak_s is not None and self.peak_s > (self.period_s or 86400.0):
            raise RuleError("{peak_s} is beyond {period_s}")
        return self
