"""Which format reads a file, what a file is, and what cannot be read at all."""

from __future__ import annotations

import gzip
import json
import os
import sys
from importlib import resources
from pathlib import Path

import pytest
import zstandard

from windtunnel.config.schema import SAMPLE_TRACE
from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import FORMATS, load_trace
from windtunnel.workload.traces.rows import rows

ROW = {"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [1]}


def error_of(*paths: str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        load_trace(paths, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_auto_recognises_mooncake_rows(write_trace):
    assert load_trace([write_trace(ROW)]).num_requests == 1


def test_auto_looks_at_the_first_row_after_blank_lines(write_trace):
    assert load_trace([write_trace("", "  ", ROW)]).num_requests == 1


def test_the_sample_trace_is_the_packaged_file():
    workload = load_trace([SAMPLE_TRACE])
    assert workload.num_requests == 394
    assert sum(workload.input_tokens) == 5_529_311
    assert sum(workload.output_tokens) == 143_916
    assert max(workload.time_ms) == 138_000.0
    assert workload.source == SAMPLE_TRACE


def test_the_packaged_sample_is_under_95_000_bytes_and_ends_with_a_whole_row():
    data = (resources.files("windtunnel.data") / "mooncake_conversation_sample.jsonl").read_bytes()
    assert 90_000 < len(data) < 95_000
    assert data.endswith(b"]}\n")


def test_an_unknown_sample_names_the_known_one():
    expected = "sample:mooncake-chat: no such sample trace; did you mean 'sample:mooncake-conversation'?"
    assert error_of("sample:mooncake-chat") == expected


def test_rows_of_several_files_form_one_workload_with_one_origin(write_trace):
    late = write_trace({**ROW, "timestamp": 700}, name="late.jsonl")
    early = write_trace({**ROW, "timestamp": 200}, {**ROW, "timestamp": 300}, name="early.jsonl")
    workload = load_trace([late, early])
    assert list(workload.time_ms) == [500.0, 0.0, 100.0]
    assert workload.source == f"{late}, {early}"


def test_a_session_goes_on_in_the_next_file(write_trace):
    first = write_trace({**ROW, "session_id": "s"}, name="a.jsonl")
    second = write_trace({**ROW, "session_id": "s", "timestamp": 40}, name="b.jsonl")
    workload = load_trace([first, second])
    assert (workload.num_requests, workload.num_sessions) == (2, 1)
    assert list(workload.time_ms) == [0.0, 40.0]


def test_limit_counts_rows_over_all_files(write_trace):
    first = write_trace(ROW, ROW, name="a.jsonl")
    second = write_trace(ROW, ROW, name="b.jsonl")
    assert load_trace([first, second], limit=3).num_requests == 3
    assert load_trace([first, second], limit=9).num_requests == 4


def test_limit_stops_before_a_bad_row(write_trace):
    assert load_trace([write_trace(ROW, "oops", b"\xff")], limit=1).num_requests == 1


def test_a_byte_order_mark_and_cr_lf_are_accepted(write_trace):
    path = write_trace(
        b"\xef\xbb\xbf" + b'{"output_length": 1, "hash_ids": [1]}\r', b"\r", b'{"output_length": 2, "hash_ids": [1]}\r'
    )
    assert list(load_trace([path]).output_tokens) == [1, 2]


def test_a_last_line_without_a_line_end_is_read(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"output_length": 1, "hash_ids": [1]}')
    assert load_trace([str(path)]).num_requests == 1


def test_a_missing_file_is_an_error():
    assert error_of("no/such.jsonl") == "no/such.jsonl: no such file"
    assert error_of("nul\0.jsonl") == "nul\0.jsonl: no such file"


def test_a_missing_file_is_found_before_the_others_are_read(write_trace):
    assert error_of(write_trace("oops"), "gone.jsonl", format="mooncake") == "gone.jsonl: no such file"


def test_a_directory_is_an_error(tmp_path: Path):
    assert error_of(str(tmp_path)) == f"{tmp_path}: is a directory, expected a trace file"


def test_a_file_that_cannot_be_opened_says_why(write_trace, monkeypatch):
    path = write_trace(ROW)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert error_of(path) == f"{path}: cannot be read: Permission denied"


@pytest.mark.parametrize("format", ["auto", "mooncake"])
@pytest.mark.parametrize("content", ["", "\n\n  \n", "\ufeff", "\ufeff\r\n"])
def test_a_file_without_rows_contains_no_requests(tmp_path: Path, content: str, format: str):
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    assert error_of(str(path), format=format) == f"{path}: contains no requests"


def test_no_file_at_all_is_an_error():
    assert error_of() == "path: no trace file given"


def test_an_unknown_format_names_the_closest(write_trace):
    assert (
        error_of(write_trace(ROW), format="moncake")
        == "format: unknown trace format 'moncake'; did you mean 'mooncake'?"
    )


def test_an_unknown_format_without_a_close_one_names_all(write_trace):
    message = error_of(write_trace(ROW), format="weka")
    assert message.startswith("format: unknown trace format 'weka'; expected one of 'auto', 'mooncake', ")


@pytest.mark.parametrize(
    "row",
    [
        "when,what",
        '{"time": 0, "tokens": 3}',
        '{"parent_chat_id": -1, "timestamp": 60.1, "input_length": 47, "output_length": 4, "hash_ids": [1]}',
        "\x00\x01\x7f",
    ],
)
def test_rows_of_no_known_format_are_refused_with_what_was_found(write_trace, row: str):
    path = write_trace("", row)
    message = error_of(path)
    assert message.startswith(f"{path}:2: fits no known trace format; name one with `format` if it is (mooncake, ")
    shown = row.replace("\x00\x01\x7f", r"\x00\x01\x7f")
    assert message.endswith(f"; found {shown if len(shown) <= 60 else shown[:57] + '...'}")


def test_a_table_of_waiting_requests_is_not_read_as_a_plain_one(write_trace):
    row = '{"request_id": "a", "wait_for": ["b"], "output_length": 4, "hash_ids": [1]}'
    message = error_of(write_trace(row), format="mooncake")
    assert ":1: wait_for: is a field of the format agentic-mooncake" in message


def test_a_cut_off_first_row_is_reported_as_such(write_trace):
    path = write_trace('{"timestamp": 0, "input_length": 512, "hash_')
    assert error_of(path) == f"{path}:1: is not JSON from column 39 on, expected one object a line"


def test_every_file_must_look_like_a_known_format(write_trace):
    good = write_trace(ROW, name="good.jsonl")
    other = write_trace("a,b", name="other.csv")
    assert error_of(good, other).startswith(f"{other}:1: fits no known trace format")


class Commas:
    """A format of a user's own: arrival_ms,prompt_tokens,output_tokens."""

    name = "commas"
    aliases = ()
    row = "three numbers with commas between them"
    block_size = None
    options = frozenset()
    fields = frozenset()

    def recognises(self, head):
        return len(head.columns) == 3 and head.columns[0].isdigit()

    def read(self, paths, options):
        workload = Workload(paths[0])
        for path in paths:
            for _, text in rows(path):
                arrival_ms, prompt, output = text.split(b",")
                workload.add([(workload.num_requests, 0, int(prompt))], int(output), time_ms=float(arrival_ms))
        return workload


def test_a_format_of_ones_own_is_recognised_and_put_on_the_clock(write_trace, monkeypatch):
    monkeypatch.setitem(FORMATS, "commas", Commas())
    path = write_trace("1500,10,3", "1000,20,4", name="own.csv")
    for format in ("auto", "commas"):
        workload = load_trace([path], format=format, speedup=2.0)
        assert list(workload.time_ms) == [250.0, 0.0]
        assert list(workload.input_tokens) == [10, 20]
    assert error_of(path, format="comas") == "format: unknown trace format 'comas'; did you mean 'commas'?"


def test_files_read_together_have_one_format(write_trace, monkeypatch):
    monkeypatch.setitem(FORMATS, "commas", Commas())
    own = write_trace("1500,10,3", name="own.csv")
    mooncake = write_trace(ROW)
    expected = f"{mooncake}: looks like mooncake, but {own} like commas: files read together have one format"
    assert error_of(own, mooncake) == expected


def test_one_path_needs_no_list(write_trace):
    path = write_trace(ROW)
    assert (
        load_trace(path).num_requests
        == load_trace(Path(path)).num_requests
        == load_trace([Path(path)]).num_requests
        == 1
    )


def test_compressed_files_are_told_by_their_content(tmp_path: Path):
    text = b'{"output_length": 1, "hash_ids": [1]}\n'
    packed = {"plain": text, "gzip": gzip.compress(text) + gzip.compress(text), "zstd": zstandard.compress(text)}
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
    counts = {name: load_trace(tmp_path / name).num_requests for name in packed}
    assert counts == {"plain": 1, "gzip": 2, "zstd": 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04\x14\x00\x90", "is a zip archive: unpack it first"),
        (b"BZh91AY&SY\xf3", "is packed with bzip2: unpack it first"),
        (b"\xfd7zXZ\x00\x00", "is packed with xz: unpack it first"),
        (b"PAR1\x15\x00\xf3", "is a Parquet file: write its rows as a CSV with a header, or as JSON lines"),
        (json.dumps(ROW).encode("utf-16"), "is UTF-16 text, expected UTF-8"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "is a pointer of Git LFS, not the file: get that with 'git lfs pull'",
        ),
        (b"<!DOCTYPE html>\n<p>404</p>\n", "is a web page: what answered the download was no trace"),
    ],
)
@pytest.mark.parametrize("format", ["auto", "mooncake", "plain"])
def test_what_people_have_instead_of_a_trace_is_called_what_it_is(
    data: bytes, reason: str, format: str, tmp_path: Path
):
    path = tmp_path / "trace.csv"
    path.write_bytes(data)
    assert error_of(str(path), format=format) == f"{path}: {reason}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("arrival_s;input;output\n1;2;3\n", "has columns that are separated by semicolons, expected commas"),
        ("arrival_s\tinput\toutput\n1\t2\t3\n", "has columns that are separated by tabs, expected commas"),
        (
            f"[{json.dumps(ROW)}]\n",
            "is one JSON list, and of none of the formats that are: expected one JSON object a line",
        ),
    ],
)
def test_a_file_that_fits_no_format_is_told_the_likely_reason(text: str, reason: str, tmp_path: Path):
    path = tmp_path / "trace"
    path.write_text(text)
    assert error_of(str(path)).startswith(f"{path}:1: {reason}; found ")


def test_a_header_alone_and_lines_without_line_feeds_hold_no_rows_that_are_lost(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"arrival_s,input,output\r\n")
    assert error_of(str(path)) == f"{path}: contains no requests"
    path.write_bytes(b"arrival_s,input,output\r1,2,3\r2,3,4\r")
    expected = "has lines that end with a carriage return alone, expected a line feed"
    assert error_of(str(path)) == f"{path}: {expected}"
    path.write_bytes(b'arrival_s,input,output\n1,2,3\r"2",3,4\n')
    assert error_of(str(path)).startswith(f"{path}:2: ")


def test_several_zstd_frames_are_one_file(tmp_path: Path):
    frames = [zstandard.compress(b'{"output_length": 1, "hash_ids": [%d]}\n' % number) for number in range(3)]
    (tmp_path / "trace").write_bytes(b"".join(frames))
    assert load_trace(tmp_path / "trace").num_requests == 3


def test_cut_off_or_damaged_zstd_is_an_error(tmp_path: Path):
    path = tmp_path / "trace"
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(b'{"output_length": 1, "hash_ids": [1]}\n' * 99)
    for size in range(4, len(whole)):
        path.write_bytes(whole[:size])
        assert error_of(str(path), format="mooncake") == f"{path}: is cut off: its compressed data ends early"
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert error_of(str(path), format="mooncake").startswith(f"{path}: is damaged: its compressed data cannot be read")


def test_zstd_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch):
    (tmp_path / "trace").write_bytes(zstandard.compress(b"{}"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    expected = "is zstd-compressed, which needs the package zstandard: pip install 'windtunnel[zstd]'"
    assert error_of(str(tmp_path / "trace")) == f"{tmp_path / 'trace'}: {expected}"


def test_compressed_data_comes_through_a_pipe():
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(b'{"output_length": 1, "hash_ids": [1]}\n'))
    os.close(writer)
    assert load_trace([f"/dev/fd/{reader}"], format="mooncake").num_requests == 1
    os.close(reader)


def test_an_option_that_a_format_does_not_have_is_an_error(write_trace):
    table = write_trace("arrival_s,input,output", "0,1,1", name="t.csv")
    assert error_of(table, block_size=16) == "trace_block_size: has no effect on the trace format plain"
    assert error_of(table, on_hash_mismatch="clip") == "on_hash_mismatch: has no effect on the trace format plain"
    mooncake = write_trace(ROW)
    assert error_of(mooncake, time_unit="s") == "time_unit: has no effect on the trace format mooncake"
    both = {"prefix_ratio": 0.5, "prefix_groups": 2}
    assert error_of(mooncake, **both) == "trace_prefix_ratio: has no effect on the trace format mooncake"


def test_text_that_is_not_utf8_is_an_error_even_in_an_ignored_field(write_trace):
    path = write_trace(ROW, b'{"note": "\xe9t\xe9", "output_length": 1, "hash_ids": [1]}')
    assert error_of(path) == f"{path}:2: is not UTF-8 text: found byte 0xe9 at position 11"


def test_a_pipe_needs_the_name_of_its_format(tmp_path: Path):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    expected = f"{path}: is not a regular file, so it can be read only once: name its format"
    assert error_of(path) == expected


def test_a_pipe_with_a_named_format_is_read(write_trace):
    source = write_trace(ROW, ROW)
    reader, writer = os.pipe()
    os.write(writer, Path(source).read_bytes())
    os.close(writer)
    assert load_trace([f"/dev/fd/{reader}"], format="mooncake").num_requests == 2
    os.close(reader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "trace_block_size: found 0, expected from 1 to 1048576 tokens"),
        ({"block_size": 2**20 + 1}, "trace_block_size: found 1048577, expected from 1 to 1048576 tokens"),
        ({"limit": 0}, "limit: found 0, expected at least 1 row"),
        ({"speedup": 0.0}, "speedup: found 0.0, expected a number above 0"),
        ({"speedup": -1.0}, "speedup: found -1.0, expected a number above 0"),
        ({"speedup": float("nan")}, "speedup: found nan, expected a number above 0"),
        ({"speedup": float("inf")}, "speedup: found inf, expected a number above 0"),
    ],
)
def test_options_out_of_range_are_errors(write_trace, options: dict[str, object], message: str):
    assert error_of(write_trace(ROW), **options) == message
