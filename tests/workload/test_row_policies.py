"""What bad rows, rows with the wrong number of hash ids and overlong prompts do, and how they are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputError
from windtunnel.workload.content import output_origin
from windtunnel.workload.driver import Driver
from windtunnel.workload.loading import Loading
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace
from windtunnel.workload.traces.overlong import apply_overlong

ROW = {"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [1]}


def loading_of(workload: Workload) -> Loading:
    assert workload.loading is not None
    return workload.loading


def error_of(path: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_trace([path], **options)
    return str(caught.value)


def test_skipped_rows_are_counted_by_what_is_wrong_with_them(write_trace):
    path = write_trace(
        ROW,
        "oops",
        {**ROW, "input_length": 0},
        {**ROW, "input_length": 1000},
        b'{"note": "\xe9"}',
        {**ROW, "output_length": -1},
        {**ROW, "delay": 3},
        {**ROW, "input_length": 0, "timestamp": 9},
        {**ROW, "timestamp": 7},
    )
    workload = load_trace([path], on_bad_row="skip")
    loading = loading_of(workload)
    assert list(workload.time_ms) == [0.0, 7.0]
    assert loading.skipped == {
        "not a row of the format": 1,
        "no input tokens": 2,
        "hash ids do not match the length": 1,
        "not UTF-8 text": 1,
        "missing or wrong value": 1,
        "contradicts itself or an earlier row": 1,
    }
    assert (loading.rows, loading.loaded_rows, loading.skipped_rows) == (9, 2, 7)
    first = loading.first_skipped["no input tokens"]
    assert first == f"{path}:3: input_length: found 0, expected an integer from 1 to 2147483648"


def test_a_skipped_row_leaves_no_trace_in_its_session(write_trace):
    row = {**ROW, "session_id": "s"}
    path = write_trace({**row, "delay": 5}, row, {**row, "timestamp": -3}, {**row, "timestamp": 40})
    workload = load_trace([path], on_bad_row="skip")
    assert workload.num_sessions == 1
    assert list(workload.time_ms) == [0.0, 40.0]
    assert workload.session_ids == ["s"]


def test_a_limit_counts_skipped_rows(write_trace):
    workload = load_trace([write_trace(ROW, "oops", ROW, ROW)], on_bad_row="skip", limit=3)
    assert (workload.num_requests, loading_of(workload).rows) == (2, 3)


def test_nothing_but_bad_rows_is_an_error_that_shows_the_first(write_trace):
    path = write_trace("oops", "{}")
    assert error_of(path, format="mooncake", on_bad_row="skip") == (
        f"{path}: contains no request that can be used; the first of its rows: {path}:1: is not JSON from column 1 on, "
        "expected one object a line"
    )


def test_a_header_that_is_wrong_is_no_row_to_skip(write_trace):
    path = write_trace("TIMESTAMP,ContextTokens,ContextTokens", "x,1,1", name="t.csv")
    message = error_of(path, format="azure", on_bad_row="skip")
    assert message == f"{path}:1: ContextTokens: found 2 columns of this name, expected one"


def test_rows_of_a_table_with_other_cells_than_the_header(write_trace):
    path = write_trace("arrival_s,input,output", "0,1", "0,1,1,1", '0,"1,1', "0,12.0,3", "0,1_0,3", name="t.csv")
    workload = load_trace([path], on_bad_row="skip")
    assert list(workload.input_tokens) == [12]
    assert loading_of(workload).skipped == {"not a row of the format": 3, "missing or wrong value": 1}
    assert error_of(path) == f"{path}:2: found 2 cells, expected 3 as in the header"


def test_requests_behind_a_skipped_one_are_skipped_with_it(write_trace):
    def row(name: str, *waits: str, **fields: object) -> dict[str, object]:
        return {**ROW, "request_id": name, "wait_for": list(waits), **fields}

    path = write_trace(
        row("a"), row("b", "a", input_length=0), row("c", "b"), row("d", "c", "a"), row("e", "a"), row("e"),
        row("f", "g"), row("g", "f"), row("h", "g"), row("i", "i"),
    )  # fmt: skip
    workload = load_trace([path], format="agentic-mooncake", on_bad_row="skip")
    assert workload.request_ids == ["a", "e"]
    assert workload.dependencies == {0: (), 1: (0,)}
    loading = loading_of(workload)
    assert loading.skipped == {
        "no input tokens": 1,
        "request id seen before": 1,
        "waits for an unknown request": 2,
        "waits for itself in a circle": 3,
        "contradicts itself or an earlier row": 1,
    }
    assert loading.rows == loading.loaded_rows + loading.skipped_rows == 10


def test_a_prompt_longer_than_its_hash_ids_can_be_cut(write_trace):
    path = write_trace({**ROW, "input_length": 5000, "hash_ids": [1, 2]}, ROW, {**ROW, "hash_ids": [1, 5]})
    workload = load_trace([path], on_hash_mismatch="clip")
    assert list(workload.input_tokens) == [1024, 512, 512]
    loading = loading_of(workload)
    assert (loading.clipped_to_hashes, loading.surplus_hashes, loading.skipped_rows) == (1, 1, 0)
    empty = write_trace({**ROW, "hash_ids": []}, name="empty.jsonl")
    assert "hash_ids: found 0 for an input_length of 512" in error_of(empty, on_hash_mismatch="clip")


def test_missing_output_lengths_are_filled_in_and_counted(write_trace):
    row = {"input_length": 512, "hash_ids": [1]}
    path = write_trace(row, ROW)
    workload = load_trace([path], missing_output_tokens=64)
    assert list(workload.output_tokens) == [64, 2]
    assert loading_of(workload).without_output == 1


def three(write_trace) -> str:
    return write_trace(
        {**ROW, "input_length": 100},
        {**ROW, "input_length": 400, "timestamp": 5, "output_length": 30},
        {**ROW, "input_length": 399, "timestamp": 9, "output_length": 30},
    )


def test_overlong_prompts_are_left_to_the_engine_and_counted(write_trace):
    workload = load_trace([three(write_trace)], max_model_len=400)
    assert list(workload.input_tokens) == [100, 400, 399]
    assert (loading_of(workload).overlong, loading_of(workload).dropped) == (1, 0)


def test_a_clipped_prompt_keeps_its_beginning_and_makes_room_for_its_output(write_trace):
    workload = load_trace([three(write_trace)], max_model_len=400, on_overlong="clip")
    assert list(workload.input_tokens) == [100, 370, 399]
    assert workload.prompt_runs(1) == [(0, 512, 370)]
    assert list(workload.time_ms) == [0.0, 5.0, 9.0]
    assert (loading_of(workload).overlong, loading_of(workload).clipped) == (1, 1)


def test_an_output_as_long_as_the_limit_leaves_one_token_of_the_prompt(write_trace):
    path = write_trace({**ROW, "output_length": 4000})
    assert list(load_trace([path], max_model_len=400, on_overlong="clip").input_tokens) == [1]


def test_dropped_requests_leave_the_rest_as_it_was(write_trace):
    workload = load_trace([three(write_trace)], max_model_len=400, on_overlong="drop")
    assert list(workload.input_tokens) == [100, 399]
    assert list(workload.time_ms) == [0.0, 9.0]
    assert [workload.request_id(request) for request in (0, 1)] == ["0", "2"]
    assert (loading_of(workload).requests, loading_of(workload).dropped) == (3, 1)


def test_an_overlong_prompt_can_be_an_error(write_trace):
    path = three(write_trace)
    assert error_of(path, max_model_len=400, on_overlong="error") == (
        f"{path}: request 1 has 400 prompt tokens, expected fewer than the max_model_len of 400; so have 1 of 3 "
        "requests"
    )


def test_a_policy_without_a_limit_is_an_error(write_trace):
    path = three(write_trace)
    assert (
        error_of(path, on_overlong="drop") == "on_overlong: 'drop' has no effect without a max_model_len of the engine"
    )


def test_dropping_everything_is_an_error(write_trace):
    path = three(write_trace)
    expected = f"{path}: every request reaches the max_model_len of 50: nothing is left"
    assert error_of(path, max_model_len=50, on_overlong="drop") == expected


def turns(*tokens: int) -> Workload:
    workload = Workload("turns")
    for place, length in enumerate(tokens):
        session = 0 if place else None
        workload.add([(place, 0, length)], 1, session=session, time_ms=10.0 * (place + 1))
    return workload


@pytest.mark.parametrize(
    ("tokens", "times"),
    [((5, 90, 5), [10.0, 50.0]), ((90, 5, 5), [10.0, 30.0]), ((90, 90, 5), [10.0]), ((5, 5, 90), [10.0, 20.0])],
)
def test_the_turn_after_a_dropped_one_waits_so_much_longer(tokens: tuple[int, ...], times: list[float]):
    workload = apply_overlong(turns(*tokens), "drop", 50)
    assert list(workload.time_ms) == times
    assert workload.num_sessions == 1
    assert list(workload.turn) == list(range(len(times)))


def test_what_depended_on_a_dropped_request_depends_on_what_that_depended_on():
    workload = Workload("graph")
    for after, tokens, time_ms in (((), 5, 7.0), ((0,), 90, 1.0), ((1,), 5, 2.0), ((), 90, 40.0), ((3,), 5, 3.0)):
        workload.add([(workload.num_requests, 0, tokens)], 1, time_ms=time_ms, after=after)
    left = apply_overlong(workload, "drop", 50)
    assert left.dependencies == {0: (), 1: (0,), 2: ()}
    assert list(left.time_ms) == [7.0, 2.0, 43.0]
    assert [left.request_id(request) for request in range(3)] == ["0", "2", "4"]
    assert Driver(left).release(7.0) == [0]


def test_outputs_that_dropped_requests_would_have_had_are_in_no_prompt():
    workload = Workload("delta")
    workload.accumulates = True
    workload.add([(0, 0, 90)], 8, time_ms=0.0)
    workload.add([(1, 0, 5), (output_origin(0), 0, 8)], 4, session=0, time_ms=0.0)
    workload.add([(1, 0, 5), (output_origin(1), 0, 4)], 4, session=0, time_ms=0.0)
    left = apply_overlong(workload, "drop", 50)
    assert left.prompt_runs(0) == [(1, 0, 5)]
    assert left.prompt_runs(1) == [(1, 0, 5), (output_origin(0), 0, 4)]
    assert left.accumulates


def test_the_counts_stand_in_the_report_and_are_told(tmp_path: Path, monkeypatch, capsys):
    from windtunnel.cli import main

    monkeypatch.chdir(tmp_path)
    rows = [ROW, {**ROW, "input_length": 0}, {**ROW, "input_length": 1000}, {**ROW, "input_length": 400}]
    Path("t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    arguments = ["run", "t.jsonl", "--on-bad-row", "skip", "--on-hash-mismatch", "clip", "--on-overlong", "drop"]
    assert main([*arguments, "--set", "engine.max_model_len=512", "--report", "report.json"]) == 0
    loading = json.loads(Path("report.json").read_text())["workload"]["loading"]
    assert loading == {
        "format": "mooncake",
        "block_size": 512,
        "rows": 4,
        "loaded_rows": 3,
        "skipped_rows": 1,
        "skipped": {"no input tokens": 1},
        "requests": 3,
        "requests_clipped_to_hashes": 1,
        "requests_with_surplus_hashes": 0,
        "requests_without_output_length": 0,
        "overlong_requests": 2,
        "clipped_requests": 0,
        "dropped_requests": 2,
        "spread_requests": 0,
        "spread_step_ms": None,
    }
    assert capsys.readouterr().err.splitlines() == [
        "windtunnel: 1 of 4 rows left out: no input tokens (first: t.jsonl:2: input_length: found 0, expected an "
        "integer from 1 to 2147483648)",
        "windtunnel: 1 of 3 requests cut to what their hash ids cover",
        "windtunnel: 2 of 3 requests left out: they reach max_model_len",
    ]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--on-bad-row=stop", "--on-bad-row: found 'stop', expected 'error' or 'skip'"),
        ("--on-overlong=cut", "--on-overlong: found 'cut', expected 'reject' or 'clip' or 'drop' or 'error'"),
        ("--on-overlong=clip", "--on-overlong: 'clip' has no effect without a max_model_len of the engine"),
    ],
)
def test_policies_are_checked_and_named_by_their_flags(flag: str, message: str, capsys, write_trace):
    from windtunnel.cli import main

    assert main(["run", write_trace(ROW), flag]) == 2
    assert message in capsys.readouterr().err
