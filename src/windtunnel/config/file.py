"""Reads a configuration file, YAML or JSON, and remembers the line of every field.

It decides what the text of a file says, never whether that is a valid configuration. JSON is read as the YAML it
is (https://yaml.org/spec/1.2.2/#json-schema, which also rules how numbers are written: `1e3` is one).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from windtunnel.errors import InputError

LARGEST_FILE_BYTES = 1_000_000

# The floats, JSON's among them, that YAML 1.1 has not, which is PyYAML's dialect: 1e3, 1.5e3.
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")


# What PyYAML's constructors raise, besides its own errors, for `!!int x`, for a number of 5,000 digits, for nesting
# deeper than the stack.
BAD_SCALAR = (ValueError, AttributeError, LookupError, RecursionError)


class ConfigLoader(yaml.SafeLoader):
    """YAML values as this schema wants them: `1e3` is a number, and a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (the attribute of PyYAML's loaders)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class ConfigDumper(yaml.SafeDumper):
    """Writes what `ConfigLoader` reads."""


for _dialect in (ConfigLoader, ConfigDumper):
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


class ConfigFile:
    """What a file says.

    Attributes:
        name: the file as the user named it.
        data: the mapping it holds; empty for a file without content.
        lines: 1-based line of each key, by dotted path ("engine.block_size").
    """

    __slots__ = ("data", "lines", "name")

    def __init__(self, name: str, data: dict[str, Any], lines: dict[str, int]) -> None:
        self.name = name
        self.data = data
        self.lines = lines


def read_config_file(path: str | Path) -> ConfigFile:
    """The content of a YAML or JSON file, whatever its suffix.

    Raises:
        InputError: it cannot be read, is no YAML or JSON, is not a mapping, or names a key twice.
    """
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file, expected a configuration in YAML or JSON", source=name) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=name) from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise InputError(
            f"over {LARGEST_FILE_BYTES:,} bytes, expected a configuration (a trace is given without --config)",
            source=name,
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("found bytes that are not UTF-8, expected YAML or JSON", source=name, line=line) from None
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # a tab is white space in JSON, and can stand nowhere else in it
    return _parse(name, text)


def _parse(name: str, text: str) -> ConfigFile:
    try:
        loader = ConfigLoader(text)
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return ConfigFile(name, {}, {})
        if not isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1
            raise InputError("expected fields, such as 'engine: {block_size: 16}'", source=name, line=line)
        lines: dict[str, int] = {}
        return ConfigFile(name, _mapping(loader, node, name, "", lines, ()), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem, line = error.problem or error.context, mark.line + 1 if mark else 1
    except yaml.reader.ReaderError as error:
        problem, line = "found a control character", text.count("\n", 0, error.position) + 1
    except BAD_SCALAR as error:
        problem, line = str(error), 1
    raise InputError(f"neither YAML nor JSON: {problem}", source=name, line=line)


def _mapping(
    loader: ConfigLoader,
    node: yaml.MappingNode,
    name: str,
    prefix: str,
    lines: dict[str, int],
    enclosing: tuple[yaml.Node, ...],
) -> dict[str, Any]:
    """The content of a mapping; enters the line of each key, and of the keys below, in `lines`."""
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError("expected the name of a field before ':'", source=name, line=line)
        if key in seen:
            raise InputError(f"given twice, first in line {seen[key]}", source=name, line=line, field=prefix + key)
        seen[key] = line
    loader.flatten_mapping(node)  # resolves '<<'; the keys it brings come first and yield to those written here
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        path = f"{prefix}{key_node.value}"
        lines[path] = key_node.start_mark.line + 1
        if value_node is node or value_node in enclosing:
            raise InputError("an alias refers to what it is part of", source=name, line=lines[path], field=path)
        if isinstance(value_node, yaml.MappingNode):
            value: Any = _mapping(loader, value_node, name, f"{path}.", lines, (*enclosing, node))
        else:
            value = loader.construct_object(value_node, deep=True)
        data[str(key_node.value)] = value
    return data
