"""Every field of the schema by its dotted path, with what it accepts in words.

Read from the schema itself, so that `--set`, error messages and documentation cannot drift from it. It decides how
the text of a `--set` or a flag becomes a value and which field a misspelt one was meant to be; whether a value is
acceptable is the schema's own business.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import yaml

from windtunnel.config.file import BAD_SCALAR, ConfigLoader
from windtunnel.config.schema import POOL_ENGINES, Config
from windtunnel.config.section import LARGEST_INT


class ConfigField:
    """One field, or one section of fields, of the configuration.

    Attributes:
        path: where it is, as in "engine.block_size".
        is_section: whether it is nothing but a section of fields of its own.
        has_fields: whether it can be such a section.
        is_union: whether it can be such a section or a single value.
        expected: what it accepts besides null, in words that follow "expected".
        choices: the values it accepts, if it is one of a few.
        is_text: whether it accepts any text.
        is_list: whether it accepts a list of texts.
        nullable: whether it accepts null.
        engine: the one kind of engine that has it, "" if all have or it is no field of an engine.
        description: what it means.
        default: what it is if not given; None also if it must be given, and for sections.
    """

    __slots__ = (
        "choices",
        "default",
        "description",
        "engine",
        "expected",
        "has_fields",
        "is_list",
        "is_section",
        "is_text",
        "is_union",
        "nullable",
        "path",
    )

    def __init__(self, path: str, definition: dict[str, Any], options: list[dict[str, Any]]) -> None:
        self.path = path
        values = [option for option in options if option.get("type") != "null"]
        sections = ["properties" in option or "additionalProperties" in option for option in values]
        self.has_fields = any(sections)
        self.is_union = self.has_fields and not all(sections)
        self.is_section = all(sections) and not any("example" in option for option in values) and bool(values)
        self.nullable = len(values) < len(options)
        self.choices = [choice for option in values for choice in _choices(option)]
        self.is_list = any(option.get("type") == "array" and option["items"] == {"type": "string"} for option in values)
        self.is_text = not self.choices and any(option.get("type") == "string" for option in values)
        self.engine = ""
        self.description: str = definition.get("description", "")
        self.default: object = definition.get("default")
        words = list(dict.fromkeys(_in_words(option) for option in values))
        self.expected = " or ".join(words)


def found_in_words(value: object) -> str:
    """A value of a user's configuration as an error message shows it: short, on one line, as YAML spells it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _choices(definition: dict[str, Any]) -> list[Any]:
    if "const" in definition:
        return [definition["const"]]
    return list(definition.get("enum", []))


def _in_words(definition: dict[str, Any]) -> str:
    choices = _choices(definition)
    if choices:
        return " or ".join(found_in_words(choice) for choice in choices)
    if "example" in definition:
        return f"a mapping of fields such as {definition['example']}"
    if "properties" in definition or "additionalProperties" in definition:
        return "a mapping of fields"
    match definition.get("type"):
        case "integer":
            return "an integer" + _bounds_in_words(definition)
        case "number":
            return "a number" + _bounds_in_words(definition)
        case "boolean":
            return "true or false"
        case "array":
            kinds = {"number": "a list of numbers", "integer": "a list of integers"}
            return kinds.get(definition["items"].get("type"), "text or a list of texts")
        case _:
            return "text"


def _bounds_in_words(definition: dict[str, Any]) -> str:
    low, high = definition.get("minimum"), definition.get("maximum")
    if low is not None and high is not None and high < LARGEST_INT:
        return f" from {low} to {high}"
    bounds = []
    if low is not None:
        bounds.append(f"of at least {low}")
    if "exclusiveMinimum" in definition:
        bounds.append(f"above {definition['exclusiveMinimum']}")
    if "exclusiveMaximum" in definition:
        bounds.append(f"below {definition['exclusiveMaximum']}")
    return " " + " and ".join(bounds) if bounds else ""


def _collect(
    prefix: str, properties: dict[str, Any], definitions: dict[str, Any], into: dict[str, ConfigField]
) -> None:
    for name, definition in properties.items():
        path = prefix + name
        options = _options(definition, definitions)
        into[path] = ConfigField(path, definition, options)
        for option in options:
            _collect(f"{path}.", option.get("properties", {}), definitions, into)
            if isinstance(option.get("additionalProperties"), dict):
                _collect(f"{path}.", {ANY_NAME: option["additionalProperties"]}, definitions, into)


def _options(definition: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """The things that a value may be."""
    if "$ref" in definition:
        return [definitions[definition["$ref"].rsplit("/", 1)[-1]]]
    for union in ("anyOf", "oneOf"):
        if union in definition:
            return [option for part in definition[union] for option in _options(part, definitions)]
    return [definition]


def _fields_of(kind: str) -> dict[str, ConfigField]:
    """The fields of a configuration with an engine of one kind."""
    schema = Config.model_json_schema()
    for name in ENGINE_SECTIONS:
        section = schema["properties"][name]
        options = section.pop("anyOf", [section])  # null is the other one
        engines = options[0].pop("oneOf")
        engines = [engine for engine in engines if _kind_of(schema["$defs"][engine["$ref"].rsplit("/", 1)[-1]]) == kind]
        section.update(engines[0])
    fields: dict[str, ConfigField] = {}
    _collect("", schema["properties"], schema["$defs"], fields)
    return fields


def _kind_of(engine: dict[str, Any]) -> str:
    kind: str = engine["properties"]["kind"]["const"]
    return kind


def _all_fields() -> dict[str, ConfigField]:
    fields: dict[str, ConfigField] = {}
    for kind, own in FIELDS_WITH.items():
        for path, field in own.items():
            if all(path in others for others in FIELDS_WITH.values()):
                known = fields.setdefault(path, field)
                known.choices += [choice for choice in field.choices if choice not in known.choices]
                known.expected = " or ".join(dict.fromkeys((known.expected, field.expected)))
            else:
                field.engine = kind
                fields[path] = field
    sections = list(Config.model_fields)
    return {path: fields[path] for path in sorted(fields, key=lambda path: sections.index(path.partition(".")[0]))}


ANY_NAME = "*"  # in the path of a field: a name that users choose
ENGINES = ("vllm", "sglang")
ENGINE_SECTIONS = ("engine", *POOL_ENGINES)
FIELDS_WITH = {kind: _fields_of(kind) for kind in ENGINES}  # by the engine of a configuration
FIELDS = _all_fields()  # of any


def known_path(path: str) -> str:
    """The path under which `FIELDS` knows a field: that of a class of clients without the name of the class."""
    parts = path.split(".")
    if parts[:2] == ["workload", "classes"] and len(parts) > 2:
        parts[2] = ANY_NAME
    return ".".join(parts)


def closest_field(path: str) -> str:
    """A hint for an error about an unknown path: the valid one it is most like, or the fields of its section."""
    known = known_path(path)
    if known != path:
        return _closest_field(known).replace(ANY_NAME, path.split(".")[2])
    return _closest_field(path)


def _closest_field(path: str) -> str:
    section, _, name = path.rpartition(".")
    siblings = [p for p in FIELDS if p.rpartition(".")[0] == section]
    is_class = path.startswith(f"workload.classes.{ANY_NAME}")
    same_name = [p for p in FIELDS if p.rpartition(".")[2] == name and (is_class or ANY_NAME not in p)]
    in_section = get_close_matches(path, siblings, n=1, cutoff=0.8)
    by_name = {p.rpartition(".")[2]: p for p in reversed(FIELDS) if ANY_NAME not in p}  # of several, the first
    elsewhere = [by_name[match] for match in get_close_matches(name, by_name, n=1, cutoff=0.7)]
    for match in (same_name, in_section, elsewhere, get_close_matches(path, FIELDS, n=1, cutoff=0.7)):
        if match:
            return f"did you mean '{match[0]}'?"
    if not siblings:
        siblings = [p for p in FIELDS if "." not in p]
    return "expected one of " + ", ".join(f"'{p}'" for p in siblings)


def parse_value(path: str, text: str) -> object:
    """The value that `text` on a command line gives to the field `path`: YAML, except that text needs no quotes."""
    field = FIELDS[known_path(path)]
    try:
        value: object = yaml.load(text, ConfigLoader)  # a safe loader
    except (yaml.YAMLError, *BAD_SCALAR):
        return text
    if not (field.is_text or field.is_list):
        return value
    quoted = text[:1] in ("'", '"')
    if quoted or (value is None and field.nullable) or (field.is_list and isinstance(value, list)):
        return value
    return text
