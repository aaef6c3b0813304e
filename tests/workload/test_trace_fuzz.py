"""Damaged trace files: a clean error or a clean load, never another exception and never a row that goes missing."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace
from workload.test_format_fixtures import EXPECTED, FIXTURES, OPTIONS

NUMBER = re.compile(rb"(?<![\w.\"-])-?\d+(?:\.\d+)?(?![\w.\"])")
VALUES = [
    b"NaN", b"Infinity", b"-1", b"1e400", b"9" * 25, b"9" * 5000, b"0", b"1.5", b"null", b"true", b'"7"', b'"x"', b"[]",
    b"{}", b"[[1]]", b"", b"-0", b"1e3", b"1_0", b"0x10", b"+5", b" 5 ", b"\xb2", b'"\\ud800"', b"18446744073709551616",
]  # fmt: skip


def mutants(data: bytes, dice: Random) -> Iterator[bytes]:
    """Broken and unusual versions of a file."""
    yield b"\xef\xbb\xbf" + data
    yield data.replace(b"\n", b"\r\n")
    yield data.replace(b"\n", b"\n\n \n")
    yield data.rstrip()
    yield data.decode().encode("utf-16")
    yield data + "\xe9\n".encode("latin-1")
    yield data + b"\x00\n"
    yield data + b"[" * 100_000 + b"\n"
    yield data + b'{"a":' * 50_000 + b"\n"
    for _ in range(12):
        yield data[: dice.randrange(len(data))]
    lines = data.splitlines(keepends=True)
    for at in range(len(lines)):
        yield b"".join(lines[:at] + lines[at + 1 :])
        yield b"".join([*lines, lines[at]])
        yield b"".join([*lines[:at], b"oops\n", *lines[at:]])
        yield b"".join([*lines[:at], lines[at].replace(b",", b", ", 1).replace(b'":', b'": ', 1), *lines[at + 1 :]])
    numbers = list(NUMBER.finditer(data))
    for value in VALUES:
        place = dice.choice(numbers)
        yield data[: place.start()] + value + data[place.end() :]
    for member in dice.sample(re.findall(rb'"(\w+)": ', data), 5) if b'": ' in data else []:
        name = b'"' + member + b'": '
        yield data.replace(name, name + b"1, " + name, 1)
        yield data.replace(name, b'"renamed": ', 1)
        yield data.replace(name, name + b"[" * 3000, 1)
    for _ in range(15):
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 4)):
            broken[dice.randrange(len(broken))] = dice.choice(b'\x00\xff",:{}[]0123456789eE.-\n\r\\ ')
        yield bytes(broken)


def rows_in(data: bytes, name: str) -> int | None:
    """Rows of a file as a reader that knows nothing would count them; None if that is not clear."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = [line for line in data.split(b"\n") if line.strip()]
    if name.endswith(".csv"):
        return len(lines) - 1
    if name.endswith(".jsonl"):
        return len(lines)
    try:
        value = json.loads(data)
        return len(value) if isinstance(value, list) else len(value["input_lens"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def load(path: Path, **options: Any) -> Workload | None:
    """What a file holds, None if it is refused in one line; any other exception is a failure."""
    message = ""
    try:
        return load_trace([path], **options)
    except InputError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


def check(path: Path, data: bytes, name: str, **options: Any) -> None:
    """Load a damaged file, in both ways of treating bad rows."""
    path.write_bytes(data)
    for policy in ("error", "skip"):
        workload = load(path, on_bad_row=policy, **{"format": EXPECTED[name][0], **options})
        if workload is None:
            continue
        loading = workload.loading
        assert loading is not None
        assert loading.rows == loading.loaded_rows + loading.skipped_rows
        assert policy == "skip" or not loading.skipped
        assert rows_in(data, name) in (None, loading.rows), data[:300]
        assert workload.num_requests == loading.requests > 0
        assert min(workload.input_tokens) > 0
        assert min(workload.output_tokens) >= 0
        assert all(time_ms == time_ms for time_ms in workload.time_ms)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_damaged_file_is_a_clean_error_or_a_clean_load(name: str, tmp_path: Path):
    data = (FIXTURES / name).read_bytes()
    options = OPTIONS.get(name, {})
    for mutant in mutants(data, Random(name)):
        check(tmp_path / "trace", mutant, name, **options)


@pytest.mark.parametrize("name", EXPECTED)
def test_recognition_of_a_damaged_file_never_fails_otherwise(name: str, tmp_path: Path):
    data = (FIXTURES / name).read_bytes()
    for mutant in mutants(data, Random(f"auto {name}")):
        (tmp_path / "trace").write_bytes(mutant)
        load(tmp_path / "trace", **{**OPTIONS.get(name, {}), "format": "auto"})


@pytest.mark.parametrize("name", ["mooncake.jsonl", "vidur.csv", "sharegpt.json"])
def test_cut_off_compressed_data_is_never_a_shorter_trace(name: str, tmp_path: Path):
    whole = gzip.compress((FIXTURES / name).read_bytes() * (40 if name.endswith(".jsonl") else 1))
    for size in range(3, len(whole), 7):
        path = tmp_path / "trace.gz"
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="compressed data"):
            load_trace([path], format=EXPECTED[name][0])


def test_damaged_compressed_data_is_named(tmp_path: Path):
    whole = bytearray(gzip.compress((FIXTURES / "mooncake.jsonl").read_bytes()))
    whole[-6] ^= 0xFF  # the checksum
    path = tmp_path / "trace.gz"
    path.write_bytes(whole)
    with pytest.raises(InputError, match="is damaged: its compressed data cannot be read"):
        load_trace([path], format="mooncake")
    assert zlib.crc32(b"") == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from([name for name in EXPECTED if name.endswith(".jsonl")]), data=st.data())
def test_any_json_in_the_place_of_any_member(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    lines = (FIXTURES / name).read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    row = json.loads(lines[at])
    inner = row
    key = data.draw(st.sampled_from(sorted(inner)))
    while isinstance(inner[key], dict) and inner[key] and data.draw(st.booleans()):
        inner = inner[key]
        key = data.draw(st.sampled_from(sorted(inner)))
    inner[key] = data.draw(json_values)
    lines[at] = json.dumps(row)
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    check(path, "\n".join(lines).encode(errors="surrogatepass"), name, **OPTIONS.get(name, {}))
