"""What a configuration file says, and how it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.config.file import LARGEST_FILE_BYTES, read_config_file
from windtunnel.errors import InputError


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write_file(content: str | bytes, name: str = "c.yaml") -> str:
        data = content.encode() if isinstance(content, str) else content
        Path(name).write_bytes(data)
        return name

    return write_file


def error_of(path: str) -> str:
    with pytest.raises(InputError) as caught:
        read_config_file(path)
    return str(caught.value)


def test_yaml_keys_have_their_lines(write):
    file = read_config_file(write("seed: 3\n\nengine:\n  # a comment\n  block_size: 16\n"))
    assert file.data == {"seed": 3, "engine": {"block_size": 16}}
    assert file.lines == {"seed": 1, "engine": 3, "engine.block_size": 5}


def test_json_is_told_by_content_and_may_be_indented_with_tabs(write):
    file = read_config_file(write('{\n\t"seed": 3,\n\t"engine": {"block_size": 16}\n}\n', "config.yaml"))
    assert file.data == {"seed": 3, "engine": {"block_size": 16}}
    assert file.lines["engine.block_size"] == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("-2E-3", -0.002),
        ("0.5", 0.5),
        ("'1e3'", "1e3"),
        ("2024-01-31", "2024-01-31"),
        ("null", None),
        ("no", False),
        ("[a, b]", ["a", "b"]),
        ("1e", "1e"),
    ],
)
def test_scalars(write, text, value):
    found = read_config_file(write(f"key: {text}\n")).data["key"]
    assert found == value
    assert type(found) is type(value)


def test_byte_order_mark_is_ignored(write):
    assert read_config_file(write(b"\xef\xbb\xbfseed: 1\n")).data == {"seed": 1}


def test_merged_keys_yield_to_those_written_beside_them(write):
    file = read_config_file(write("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"))
    assert file.data["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize("content", ["", "# only a comment\n", "---\n"])
def test_a_file_without_content_says_nothing(write, content):
    file = read_config_file(write(content))
    assert (file.data, file.lines) == ({}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("engine:\n  block_size: 1\n  block_size: 2\n", "c.yaml:3: engine.block_size: given twice, first in line 2"),
        ('{"seed": 1,\n"seed": 1}', "c.yaml:2: seed: given twice, first in line 1"),
        ("- 1\n", "c.yaml:1: expected fields, such as 'engine: {block_size: 16}'"),
        ("\nplain text\n", "c.yaml:2: expected fields, such as 'engine: {block_size: 16}'"),
        ("a: [1\nb: 2\n", "c.yaml:2: neither YAML nor JSON: expected ',' or ']', but got ':'"),
        ("a: 1\n\tb: 2\n", "c.yaml:2: neither YAML nor JSON: found character '\\t' that cannot start any token"),
        ('{"a": 1}\n{"a": 2}\n', "c.yaml:2: neither YAML nor JSON: expected '<document start>', but found '{'"),
        ("a: 1\nb: \x07\n", "c.yaml:2: neither YAML nor JSON: found a control character"),
        ("a: !!int x\n", "c.yaml:1: neither YAML nor JSON: invalid literal for int() with base 10: 'x'"),
        (
            "a: !!python/name:os.system x\n",
            "c.yaml:1: neither YAML nor JSON: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/name:os.system'",
        ),
        ("? [a]\n: 1\n", "c.yaml:1: expected the name of a field before ':'"),
        ("a: &a\n  b: *a\n", "c.yaml:2: a.b: an alias refers to what it is part of"),
        (b"a: 1\nb: \xff\n", "c.yaml:2: found bytes that are not UTF-8, expected YAML or JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(write, content, message):
    assert error_of(write(content)) == message


def test_nesting_deeper_than_the_stack_is_an_error(write):
    assert error_of(write("a: " + "[" * 600)).startswith("c.yaml:1: neither YAML nor JSON: maximum recursion depth")


def test_missing_file(write):
    assert error_of("none.yaml") == "none.yaml: no such file, expected a configuration in YAML or JSON"


def test_directory(write, tmp_path):
    (tmp_path / "folder").mkdir()
    assert error_of("folder") == "folder: cannot be read: Is a directory"


def test_a_trace_given_as_configuration_is_not_parsed(write):
    path = write('{"timestamp": 0}\n' * (LARGEST_FILE_BYTES // 10), "trace.jsonl")
    assert error_of(path) == (
        "trace.jsonl: over 1,000,000 bytes, expected a configuration (a trace is given without --config)"
    )
