"""Which format reads a file, what a file is, and what cannot be read at all."""

from __future__ import annotations

import gzip
import os
from importlib import resources
from pathlib import Path

import pytest

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
    assert message == "format: unknown trace format 'weka'; expected one of 'auto', 'mooncake'"


@pytest.mark.parametrize(
    "row",
    [
        "arrival_ms,prompt_tokens,output_tokens",
        '[{"hash_ids": [1], "output_length": 1}]',
        '{"arrival_time_ns": 0, "input_toks": 3, "output_toks": 3}',
        '{"parent_chat_id": -1, "timestamp": 60.1, "input_length": 47, "output_length": 4, "hash_ids": [1]}',
        '{"request_id": "a", "wait_for": [], "output_length": 4, "hash_ids": [1]}',
    ],
)
def test_rows_of_other_formats_are_not_taken_for_mooncake(write_trace, row: str):
    path = write_trace("", row)
    found = row if len(row) <= 60 else row[:57] + "..."
    assert error_of(path) == (
        f"{path}:2: fits no known trace format (mooncake: a JSON object with hash_ids, input_length and "
        f"output_length); name one with `format` if it is; found {found}"
    )


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
    row = "three numbers with commas between them"

    def recognises(self, first_row: bytes) -> bool:
        return first_row.count(b",") == 2 and not first_row.startswith(b"{")

    def read(self, paths, *, block_size, limit):
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


def test_gzip_is_named(tmp_path: Path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"output_length": 1, "hash_ids": [1]}\n'))
    assert error_of(str(path)) == f"{path}: is gzip-compressed, expected plain text"


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
