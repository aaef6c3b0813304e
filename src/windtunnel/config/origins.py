"""Where each value of a configuration came from, and what its user is told when it is wrong.

A value came from a flag, from `--set`, from a line of a file, or is a default; an error names that place and nothing
else. This module decides how the findings of the schema read, never whether there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from windtunnel.config.distribution import TAGS
from windtunnel.config.fields import (
    ENGINE_SECTIONS,
    ENGINES,
    FIELDS,
    FIELDS_WITH,
    ConfigField,
    closest_field,
    found_in_words,
    known_path,
)
from windtunnel.config.file import ConfigFile
from windtunnel.config.section import MissingError, RuleError
from windtunnel.errors import InputError


class InvalidConfigError(InputError):
    """A configuration that is wrong in more than one place.

    Attributes:
        errors: one line each.
    """

    def __init__(self, errors: Sequence[InputError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = list(errors)


class Origins:
    """Names the origin of each field.

    Args:
        file: the configuration file, if there is one.
        given: by dotted path, what set the field on the command line ("--workers", "--set engine.kind").
        flags: by dotted path, the flag that would set it, for fields that nothing has set.
    """

    def __init__(
        self,
        file: ConfigFile | None = None,
        given: Mapping[str, str] | None = None,
        flags: Mapping[str, str] | None = None,
    ) -> None:
        self._file = file
        self._given = dict(given or {})
        self._flags = dict(flags or {})

    def error(self, path: str, message: str) -> InputError:
        """An error about the value of one field, with the place that it came from."""
        owner = path
        while owner:
            if owner in self._given:
                return InputError(message, source=self._given[owner])
            if self._file is not None and owner in self._file.lines:
                return InputError(message, source=self._file.name, line=self._file.lines[owner], field=path)
            owner = owner.rpartition(".")[0]
        return InputError(message, source=self._file.name if self._file else None, field=path)

    def explain(self, error: ValidationError) -> InputError:
        """Everything that the schema found wrong, in its user's terms."""
        details = error.errors(include_url=False)
        missing: dict[str, list[str]] = {}
        errors: list[InputError] = []
        for detail in details:
            path, fields = _place(detail)
            if detail["type"] == "missing":
                section, _, name = path.rpartition(".")
                missing.setdefault(section, []).append(name)
            elif isinstance(rule := detail.get("ctx", {}).get("error"), MissingError):
                for name in rule.names:
                    section, _, name = f"{path}.{name}".rpartition(".")
                    missing.setdefault(section, []).append(name)
            elif isinstance(rule := detail.get("ctx", {}).get("error"), RuleError):
                errors.append(self._rule_error(path, rule))
            else:
                errors.append(self.error(path, self._finding(path, detail, fields)))
        errors.extend(self._missing_error(section, names) for section, names in missing.items())
        errors.sort(key=lambda error: error.line or 0)
        return errors[0] if len(errors) == 1 else InvalidConfigError(errors)

    def _from_command_line(self, path: str) -> str | None:
        """What set the field, or the first field below it, on the command line."""
        below = f"{path}." if path else ""
        return next((given for p, given in self._given.items() if p == path or p.startswith(below)), None)

    def _name(self, path: str) -> str:
        """A field in the middle of a sentence about the command line."""
        given = self._from_command_line(path)
        if given is not None:
            return given
        if self._file is not None and path in self._file.lines:
            return f"{path} ({self._file.name}:{self._file.lines[path]})"
        return self._flags.get(path, f"--set {path}")

    def _rule_error(self, section: str, rule: RuleError) -> InputError:
        prefix = f"{section}." if section else ""
        if self._from_command_line(section) is None:
            return self.error(section, str(rule))
        return InputError(rule.phrase(lambda field: self._name(prefix + field)))

    def _missing_error(self, section: str, names: Sequence[str]) -> InputError:
        cause = self._from_command_line(section)
        if cause is None:
            return self.error(section, f"{_listing(names)} missing")
        flags = [self._name(f"{section}.{name}") for name in names]
        return InputError(f"{_listing(flags)} missing: {cause} needs {'it' if len(names) == 1 else 'them'}")

    def _finding(self, path: str, detail: ErrorDetails, fields: Mapping[str, ConfigField]) -> str:
        """What was found and what was expected."""
        if detail["type"] == "extra_forbidden":
            if path in FIELDS:
                return f"is a field of the {FIELDS[path].engine} engine, but the engine is {detail['loc'][1]}"
            return f"unknown field: {closest_field(path)}"
        value = detail["input"]["kind"] if detail["type"] == "union_tag_invalid" else detail["input"]
        found = found_in_words(value)
        if detail["type"] == "value_error":
            return f"found {found}, {detail['ctx']['error']}"
        known = known_path(path)
        field = fields[known if known in fields else known.rpartition(".")[0]]  # an item of a list is of its kind
        expected = field.expected
        if detail["type"] == "less_than_equal":
            expected += f" and at most {detail['ctx']['le']}"
        if field.nullable and (path not in self._given or self._given[path] != self._flags.get(path)):
            expected += " or null"  # leaving a flag out says the same
        close: list[str] = []
        if len(field.choices) > 1:
            close = get_close_matches(str(value), [str(choice) for choice in field.choices], n=1, cutoff=0.5)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        return f"found {found}, expected {expected}{hint}"


def _place(detail: ErrorDetails) -> tuple[str, Mapping[str, ConfigField]]:
    """The path that an error is about, and the fields of a configuration with the engine that it is about."""
    parts: list[str] = []
    for part in detail["loc"]:
        above = FIELDS.get(known_path(".".join(parts)))
        if not (part == "[key]" or (part in TAGS and above is not None and above.is_union)):
            parts.append(str(part))
    parts = parts or [""]  # none for a rule about the whole configuration
    if detail["type"] == "union_tag_invalid":
        return f"{parts[0]}.kind", FIELDS
    if parts[0] in ENGINE_SECTIONS and len(parts) > 1 and parts[1] in ENGINES:
        return ".".join([parts[0], *parts[2:]]), FIELDS_WITH[parts[1]]
    return ".".join(parts), FIELDS


def _listing(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{', '.join(names[:-1])} and {names[-1]} are"
