"""Sections whose `kind` says which of their parameters apply, and their short form on one line.

A parameter that a kind needs and has not, or has and does not know, is an error. `gamma:rate=10,burstiness=0.5` is
short for `{kind: gamma, rate: 10, burstiness: 0.5}`, in files, flags and Python alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import yaml
from pydantic import model_validator

from windtunnel.config.file import BAD_SCALAR, ConfigLoader
from windtunnel.config.section import RuleError, Section

Self = TypeVar("Self", bound="KindSection")


class Parameters(NamedTuple):
    """What a kind takes.

    Attributes:
        needs: alternatives, each a group of parameters that belong together; exactly one group has to be given.
        may: parameters that can be left out.
    """

    needs: Sequence[tuple[str, ...]] = ((),)
    may: tuple[str, ...] = ()


def parse_short_form(text: str) -> dict[str, Any] | None:
    """The mapping that `kind:name=value,...` stands for; None if `text` is not of that form."""
    kind, colon, parameters = text.partition(":")
    kind = kind.strip()
    if not colon or not kind or "=" not in parameters:
        return None
    try:
        given = yaml.load("{" + parameters.replace("=", ": ") + "}", ConfigLoader)  # a safe loader
    except (yaml.YAMLError, *BAD_SCALAR):
        return None
    if not isinstance(given, dict) or None in given.values() or not all(isinstance(name, str) for name in given):
        return None
    return {"kind": kind, **given}


class KindSection(Section):
    """A section with a `kind`; `PARAMETERS` says what each kind takes, kinds that are not in it take nothing."""

    PARAMETERS: ClassVar[dict[str, Parameters]] = {}
    EXAMPLE: ClassVar[str] = ""

    kind: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: object) -> object:
        if not isinstance(data, str):
            return data
        if data in cls.PARAMETERS or (":" in data and "=" not in data):
            return {"kind": data}
        mapping = parse_short_form(data)
        if mapping is None:
            raise ValueError(f"expected a mapping of fields such as {cls.EXAMPLE}")
        return mapping

    @model_validator(mode="after")
    def _complete(self: Self) -> Self:
        known = self.PARAMETERS.get(self.kind, Parameters())
        given = [
            name
            for name, field in type(self).model_fields.items()
            if name != "kind" and getattr(self, name) != field.default
        ]
        for name in given:
            if name not in known.may and not any(name in group for group in known.needs):
                raise RuleError(f"{{{name}}} has no effect on {self.kind}")
        begun = [group for group in known.needs if any(name in given for name in group)]
        if len(known.needs) == 1:
            begun = list(known.needs)
        if len(begun) != 1:
            alternatives = " or ".join(" and ".join(f"{{{name}}}" for name in group) for group in known.needs)
            raise RuleError(f"{self.kind} needs {alternatives}" + (", not both" if begun else ""))
        missing = [name for name in begun[0] if name not in given]
        if missing:
            raise RuleError(f"{self.kind} needs {' and '.join(f'{{{name}}}' for name in missing)}")
        return self
