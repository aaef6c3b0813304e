"""Every message about a row that cannot be used: file, line, field, what was found, what was expected."""

from __future__ import annotations

import json

import pytest

from windtunnel.errors import InputError
from windtunnel.workload.traces import load_trace

GOOD = {"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [1]}
INPUT = "an integer from 1 to 2147483648"
OUTPUT = "an integer from 0 to 2147483648"
TIME = "a number of ms within ±9007199254740992"
DELAY = "a number of ms from 0 to 9007199254740992"
IDS = "a list of integers from 0 up"


def error_of(write_trace, *rows: object, **options: object) -> str:
    """The message, after the name of the file."""
    path = write_trace(*rows)
    with pytest.raises(InputError) as caught:
        load_trace([path], format="mooncake", **options)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert message.startswith(path + ":")
    return message.removeprefix(path + ":")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("hello", "1: is not JSON from column 1 on, expected one object a line"),
        ('{"output_length": 1 "x": 2}', "1: is not JSON from column 21 on, expected one object a line"),
        ('{"output_length": 1} {}', "1: is not JSON from column 22 on, expected one object a line"),
        ("{'output_length': 1}", "1: is not JSON from column 2 on, expected one object a line"),
        ("[1, 2]", "1: found [1, 2], expected a JSON object with hash_ids, input_length and output_length"),
        ("17", "1: found 17, expected a JSON object with hash_ids, input_length and output_length"),
        ("null", "1: found null, expected a JSON object with hash_ids, input_length and output_length"),
        ("[" * 100_000, "1: is nested too deeply, expected a flat object"),
        ('{"x": ' + "[" * 100_000, "1: is nested too deeply, expected a flat object"),
        ('{"hash_ids": [' + "9" * 5000 + "]}", "1: holds a number of thousands of digits"),
        (
            '{"x": NaN, "output_length": 1, "hash_ids": [1]}',
            "1: is not plain JSON, expected no NaN, Infinity, unpaired surrogate or repeated key in any field",
        ),
        (
            '{"session_id": "\\ud800", "output_length": 1, "hash_ids": [1]}',
            "1: is not plain JSON, expected no NaN, Infinity, unpaired surrogate or repeated key in any field",
        ),
        (
            '{"output_length": "1", "output_length": 1, "hash_ids": [1]}',
            "1: is not plain JSON, expected no NaN, Infinity, unpaired surrogate or repeated key in any field",
        ),
    ],
)
def test_a_row_that_is_no_json_object(write_trace, row: str, message: str):
    assert error_of(write_trace, row) == message


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("input_length", 0, INPUT),
        ("input_length", -1, INPUT),
        ("input_length", 2**31 + 1, INPUT),
        ("input_length", 2**80, INPUT),
        ("input_length", 512.0, INPUT),
        ("input_length", 512.5, INPUT),
        ("input_length", "512", INPUT),
        ("input_length", True, INPUT),
        ("input_length", [512], INPUT),
        ("input_length", {"tokens": 512}, INPUT),
        ("output_length", -1, OUTPUT),
        ("output_length", 2**31 + 1, OUTPUT),
        ("output_length", 2.0, OUTPUT),
        ("output_length", "2", OUTPUT),
        ("output_length", False, OUTPUT),
        ("timestamp", "0", TIME),
        ("timestamp", True, TIME),
        ("timestamp", 1e18, TIME),
        ("timestamp", -1e18, TIME),
        ("timestamp", 2**64, TIME),
        ("delay", -1, DELAY),
        ("delay", -0.5, DELAY),
        ("delay", 1e18, DELAY),
        ("delay", "5", DELAY),
        ("hash_ids", 5, IDS),
        ("hash_ids", "abc", IDS),
        ("hash_ids", {}, IDS),
        ("session_id", 17, "a string"),
        ("request_id", 17, "a string"),
        ("priority", "high", "an integer of 32 bits"),
        ("priority", 2**31, "an integer of 32 bits"),
        ("strict_priority", -1, "an integer from 0 to 4294967295"),
        ("policy_class", 3, "a string"),
        ("output_token_ids", 3, "a list of integers from 0 to 4294967295"),
    ],
)
def test_a_field_of_a_wrong_type_or_range(write_trace, field: str, value: object, expected: str):
    row = {**GOOD, field: value}
    assert error_of(write_trace, row) == f"1: {field}: found {json.dumps(value)}, expected {expected}"


@pytest.mark.parametrize(
    ("field", "expected"),
    [("input_tokens", INPUT), ("output_tokens", OUTPUT), ("created_time", TIME), ("delay_ms", DELAY)],
)
def test_an_alias_is_named_as_it_was_written(write_trace, field: str, expected: str):
    assert error_of(write_trace, {**GOOD, field: "x"}) == f'1: {field}: found "x", expected {expected}'


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(("field", "expected"), [("timestamp", TIME), ("delay", DELAY), ("output_length", OUTPUT)])
def test_numbers_that_are_none(write_trace, field: str, expected: str, value: str):
    row = json.dumps({**GOOD, field: "?"}).replace('"?"', value)
    assert error_of(write_trace, row) == f"1: {field}: found {value}, expected {expected}"


def test_a_number_too_large_for_a_float(write_trace):
    row = json.dumps({**GOOD, "timestamp": "?"}).replace('"?"', "1e999")
    assert error_of(write_trace, row) == f"1: timestamp: found Infinity, expected {TIME}"


@pytest.mark.parametrize(
    ("ids", "place", "found"),
    [
        ([-1], 1, "-1"),
        ([1, 2, 3.0], 3, "3.0"),
        ([1, True], 2, "true"),
        ([1, "2"], 2, '"2"'),
        ([None], 1, "null"),
        ([[1]], 1, "[1]"),
    ],
)
def test_a_hash_id_that_is_none(write_trace, ids: list[object], place: int, found: str):
    expected = f"1: hash_ids: found {found} at place {place}, expected {IDS}"
    assert error_of(write_trace, {**GOOD, "hash_ids": ids}) == expected


def test_an_output_token_id_that_is_none(write_trace):
    row = {**GOOD, "output_token_ids": [0, 2**32]}
    expected = "1: output_token_ids: found 4294967296 at place 2, expected a list of integers from 0 to 4294967295"
    assert error_of(write_trace, row) == expected


def test_a_long_value_is_shortened(write_trace):
    row = {**GOOD, "hash_ids": "x" * 1000}
    assert error_of(write_trace, row) == f'1: hash_ids: found "{"x" * 36}..., expected {IDS}'


@pytest.mark.parametrize("row", [{"input_length": 512, "hash_ids": [1]}, {"output_length": None, "hash_ids": [1]}])
def test_a_missing_output_length(write_trace, row: dict[str, object]):
    assert error_of(write_trace, row) == f"1: output_length: missing, expected {OUTPUT}"


@pytest.mark.parametrize("row", [{"output_length": 2}, {"output_length": 2, "input_length": 9, "hash_ids": None}])
def test_missing_hash_ids(write_trace, row: dict[str, object]):
    expected = "1: hash_ids: missing, expected one id for each 64 tokens of the prompt"
    assert error_of(write_trace, row, block_size=64) == expected


def test_no_ids_and_no_length(write_trace):
    row = {"output_length": 2, "hash_ids": []}
    assert error_of(write_trace, row) == "1: hash_ids: found no ids and no input_length, expected at least one token"


@pytest.mark.parametrize(
    ("length", "ids", "message"),
    [
        (
            1000,
            [1],
            "found 1 for an input_length of 1000, expected 2 at 512 tokens each; 1 allow an input_length up to 512",
        ),
        (
            513,
            [1],
            "found 1 for an input_length of 513, expected 2 at 512 tokens each; 1 allow an input_length up to 512",
        ),
        (512, [], "found 0 for an input_length of 512, expected 1 at 512 tokens each; 0 allow an input_length up to 0"),
    ],
)
def test_too_few_hash_ids(write_trace, length: int, ids: list[int], message: str):
    assert error_of(write_trace, {**GOOD, "input_length": length, "hash_ids": ids}) == f"1: hash_ids: {message}"


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("input_length", "input_tokens"),
        ("output_length", "output_tokens"),
        ("timestamp", "created_time"),
        ("delay", "delay_ms"),
    ],
)
def test_a_field_and_its_alias(write_trace, name: str, alias: str):
    row = {**GOOD, name: 1, alias: 1}
    expected = f"1: {alias}: given together with {name}, which means the same: expected one of them"
    assert error_of(write_trace, row) == expected


def test_output_token_ids_of_another_length(write_trace):
    row = {**GOOD, "output_token_ids": [9]}
    assert error_of(write_trace, row) == "1: output_token_ids: found 1 ids for an output_length of 2, expected as many"


@pytest.mark.parametrize("field", ["delay", "delay_ms"])
def test_a_delay_on_the_first_row_of_a_session(write_trace, field: str):
    row = {**GOOD, "session_id": "s", field: 5}
    expected = f'1: {field}: found 5 on the first row of session "s", expected none: it is sent at its timestamp'
    assert error_of(write_trace, row) == expected


def test_a_delay_on_a_row_without_session(write_trace):
    row = {**GOOD, "delay": 0.5}
    expected = "2: delay: found 0.5 on the first row of a session, expected none: it is sent at its timestamp"
    assert error_of(write_trace, GOOD, row) == expected


@pytest.mark.parametrize("field", ["timestamp", "created_time"])
def test_falling_timestamps_in_a_session(write_trace, field: str):
    first = {**GOOD, "session_id": "s", "timestamp": 1000}
    second = {"output_length": 1, "hash_ids": [1], "session_id": "s", field: 900.5}
    expected = f'2: {field}: found 900.5, expected at least 1000, the timestamp before it in session "s"'
    assert error_of(write_trace, first, second) == expected


def test_falling_timestamps_are_an_error_even_beside_a_delay(write_trace):
    first = {**GOOD, "session_id": "s", "timestamp": 1000}
    second = {**first, "timestamp": 900, "delay": 7}
    expected = '2: timestamp: found 900, expected at least 1000, the timestamp before it in session "s"'
    assert error_of(write_trace, first, second) == expected


def test_a_timestamp_after_rows_without_one(write_trace):
    first = {"output_length": 1, "hash_ids": [1], "session_id": "s"}
    expected = (
        '2: timestamp: found 100, but no row before it in session "s" has a timestamp: expected a delay, or timestamps '
        "from the first row on"
    )
    assert error_of(write_trace, first, {**first, "timestamp": 100}) == expected


def test_blank_lines_count(write_trace):
    assert error_of(write_trace, "", GOOD, "   ", "\t", "oops").startswith("5: is not JSON")


def test_the_file_named_is_the_one_with_the_error(write_trace):
    good = write_trace(GOOD, GOOD, name="good.jsonl")
    bad = write_trace(GOOD, {**GOOD, "input_length": 0}, name="bad.jsonl")
    with pytest.raises(InputError) as caught:
        load_trace([good, bad])
    assert (caught.value.source, caught.value.line, caught.value.field) == (bad, 2, "input_length")
