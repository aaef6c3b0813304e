"""What all sections of the schema are made of: number types, the base class, and errors about several fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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


class MissingError(RuleError):
    """Fields that have to be given.

    Attributes:
        names: the fields, relative to the section that needs them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"needs {' and '.join(f'{{{name}}}' for name in names)}")
        self.names = list(names)


def named(names: Sequence[str]) -> AfterValidator:
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
