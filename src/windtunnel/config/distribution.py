"""Numbers that differ from request to request: lengths, numbers of turns, delays.

Says what a distribution is called and takes; `workload/lengths.py` draws from it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from windtunnel.config.kinds import KindSection, Parameters
from windtunnel.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, RuleError

_BOUNDS = ("min", "max")

Parameter = Annotated[float, Field(ge=1e-6, le=1e15, strict=True)]  # outside, what is drawn is no longer a number
Sigma = Annotated[float, Field(gt=0.0, le=50.0, strict=True)]


class Distribution(KindSection):
    """A distribution of lengths, counts or delays, in their unit.

    `mean`, `std` and `median` are those of the numbers themselves, before bounds are applied: a number below `min`
    or above `max` becomes that bound.
    """

    PARAMETERS: ClassVar[dict[str, Parameters]] = {
        "uniform": Parameters((("min", "max"),)),
        "normal": Parameters((("mean", "std"),), _BOUNDS),
        "lognormal": Parameters((("mean", "std"), ("median", "sigma")), _BOUNDS),
        "exponential": Parameters((("mean",),), _BOUNDS),
        "geometric": Parameters((("mean",),), _BOUNDS),
        "empirical": Parameters((("path",),), _BOUNDS),
    }
    EXAMPLE: ClassVar[str] = "normal:mean=1024,std=256"
    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    kind: Literal["uniform", "normal", "lognormal", "exponential", "geometric", "empirical"]
    mean: Parameter | None = Field(default=None, description="mean")
    std: Parameter | None = Field(default=None, description="standard deviation")
    median: Parameter | None = Field(default=None, description="median of a lognormal")
    sigma: Sigma | None = Field(default=None, description="standard deviation of a lognormal's logarithm")
    min: NonNegativeFloat | None = Field(default=None, description="smaller numbers become this one")
    max: PositiveFloat | None = Field(default=None, description="larger numbers become this one")
    path: str | None = Field(default=None, description="trace or table of lengths to draw from, with replacement")

    @model_validator(mode="after")
    def _ordered(self) -> Distribution:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise RuleError("{min} is above {max}")
        if self.kind == "geometric" and self.mean is not None and self.mean < 1.0:
            raise RuleError("{mean} of geometric is below 1, the smallest number that it gives")
        return self


def _tag(value: object) -> str:
    """Whether a value is to be read as one number for all, or as a distribution."""
    return "drawn" if isinstance(value, dict | Distribution) or (isinstance(value, str) and ":" in value) else "fixed"


_Drawn = Annotated[Distribution, Tag("drawn")]

TAGS = ("fixed", "drawn")
Length = Annotated[Annotated[PositiveInt, Tag("fixed")] | _Drawn, Discriminator(_tag)]
Delay = Annotated[Annotated[NonNegativeFloat, Tag("fixed")] | _Drawn, Discriminator(_tag)]
