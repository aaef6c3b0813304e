"""What a row of the mooncake format means: lengths, names, and the content that its hash ids stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.workload.content import Content
from windtunnel.workload.loading import Loading
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace
from windtunnel.workload.traces.hash_blocks import FIRST_INTERNED_ID, HashBlocks
from windtunnel.workload.traces.mooncake import MooncakeRow
from windtunnel.workload.traces.plain_rows import PlainRows, append_plain_rows
from windtunnel.workload.traces.reading import ReadOptions


def content(hash_ids: list[int], input_length: int | None = None, block_size: int = 512) -> list[tuple[int, int, int]]:
    return HashBlocks(block_size, ReadOptions()).prompt(hash_ids, input_length)


def test_an_id_stands_for_its_block_of_one_stream():
    assert content([7], 512) == [(0, 7 * 512, 512)]


def test_consecutive_ids_are_one_run():
    assert content([3, 4, 5, 9, 10, 2], None, 16) == [(0, 48, 48), (0, 144, 32), (0, 32, 16)]


def test_repeated_and_falling_ids_are_runs_of_their_own():
    assert content([5, 5, 4, 3], None, 16) == [(0, 80, 16), (0, 80, 16), (0, 64, 16), (0, 48, 16)]


def test_the_last_block_is_cut_at_the_input_length():
    assert content([3, 4, 9], 40, 16) == [(0, 48, 32), (0, 144, 8)]
    assert content([3, 4, 5], 33, 16) == [(0, 48, 33)]
    assert content([3], 1, 16) == [(0, 48, 1)]


def test_a_partial_block_is_a_prefix_of_the_whole_one():
    part, whole = Content.of(content([7], 100)), Content.of(content([7, 8], 640))
    assert part.key(64, 36) == whole.key(64, 36)


def test_trailing_ids_beyond_the_input_length_are_ignored():
    assert content([1, 2, 3], 512) == [(0, 512, 512)]
    assert content([1, 2**70, 3], 512) == [(0, 512, 512)]


def test_without_input_length_the_ids_give_it(write_trace):
    workload = load_trace([write_trace({"timestamp": 0, "output_length": 2, "hash_ids": [1, 2]})])
    assert list(workload.input_tokens) == [1024]


def test_the_block_size_is_the_callers(write_trace):
    path = write_trace({"output_length": 2, "hash_ids": [1, 2]})
    assert list(load_trace([path], block_size=16).input_tokens) == [32]


def test_large_ids_become_dense_in_the_order_they_are_seen():
    size = 2**20
    first = FIRST_INTERNED_ID
    runs = content([2**63 + 5, 12, 2**200, 2**63 + 5], None, size)
    assert runs == [
        (0, first * size, size),
        (0, 12 * size, size),
        (0, (first + 1) * size, size),
        (0, first * size, size),
    ]


def test_the_smallest_interned_id_does_not_collide_with_another_large_one():
    runs = content([2**90, FIRST_INTERNED_ID, FIRST_INTERNED_ID - 1], None, 1)
    assert runs == [(0, FIRST_INTERNED_ID, 2), (0, FIRST_INTERNED_ID - 1, 1)]


def test_large_ids_keep_their_numbers_across_rows_and_files(write_trace):
    row = {"output_length": 1, "hash_ids": [2**64 - 1, 2**63]}
    workload = load_trace([write_trace(row, name="a.jsonl"), write_trace(row, name="b.jsonl")])
    assert workload.prompt_runs(0) == workload.prompt_runs(1) == [(0, FIRST_INTERNED_ID * 512, 1024)]


ids = st.lists(
    st.one_of(st.integers(0, 6), st.integers(FIRST_INTERNED_ID - 2, FIRST_INTERNED_ID + 2)), min_size=1, max_size=8
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ids, min_size=2, max_size=2), st.integers(1, 5), st.data())
def test_prompts_agree_exactly_where_their_ids_do(pair: list[list[int]], block_size: int, data: st.DataObject):
    blocks = HashBlocks(block_size, ReadOptions())
    tokens = []
    for hash_ids in pair:
        length = data.draw(st.integers(1, len(hash_ids) * block_size))
        runs = blocks.prompt(hash_ids, length)
        tokens.append([(origin, start + i) for origin, start, length in runs for i in range(length)])
        assert len(tokens[-1]) == length
    for at, (a, b) in enumerate(zip(*tokens, strict=False)):
        assert (a == b) == (pair[0][at // block_size] == pair[1][at // block_size])


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("input_length", "input_tokens"),
        ("output_length", "output_tokens"),
        ("timestamp", "created_time"),
        ("delay", "delay_ms"),
    ],
)
def test_an_alias_means_the_same(write_trace, name: str, alias: str):
    first = {"output_length": 2, "hash_ids": [1], "timestamp": 5, "session_id": "s"}
    row = {"input_length": 100, "output_length": 3, "timestamp": 30, "delay": 9, "hash_ids": [1], "session_id": "s"}
    renamed = {alias if key == name else key: value for key, value in row.items()}
    a = load_trace([write_trace(first, row, name="a.jsonl")])
    b = load_trace([write_trace(first, renamed, name="b.jsonl")])
    assert (a.input_tokens, a.output_tokens, a.time_ms) == (b.input_tokens, b.output_tokens, b.time_ms)
    assert (a.input_tokens[1], a.output_tokens[1], a.time_ms[1]) == (100, 3, 9.0)


def test_null_is_the_same_as_absent(write_trace):
    row = dict.fromkeys(
        [
            "input_length",
            "input_tokens",
            "output_tokens",
            "timestamp",
            "created_time",
            "delay",
            "session_id",
            "priority",
        ]
    )
    workload = load_trace([write_trace({**row, "output_length": 2, "hash_ids": [1]})])
    assert list(workload.input_tokens) == [512]
    assert workload.session_ids == []


def test_other_known_columns_and_unknown_keys_do_not_matter(write_trace):
    plain = {"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1]}
    more = {
        "priority": -3,
        "strict_priority": 2,
        "policy_class": "gold",
        "output_token_ids": [4, 5],
        "type": "text",
        "x": {},
    }
    workload = load_trace([write_trace(plain, {**plain, **more})])
    assert workload.prompt_runs(0) == workload.prompt_runs(1)
    assert list(workload.output_tokens) == [2, 2]


def test_zero_output_is_legal(write_trace):
    workload = load_trace(
        [write_trace({"input_length": 512, "output_length": 0, "hash_ids": [1], "output_token_ids": []})]
    )
    assert list(workload.output_tokens) == [0]


def test_the_largest_lengths_are_legal(write_trace):
    row = {"input_length": 2**31, "output_length": 2**31, "hash_ids": list(range(2**11))}
    workload = load_trace([write_trace(row)], block_size=2**20)
    assert workload.prompt_runs(0) == [(0, 0, 2**31)]
    assert list(workload.output_tokens) == [2**31]


def test_without_names_none_are_kept(write_trace):
    row = {"output_length": 1, "hash_ids": [1]}
    workload = load_trace([write_trace(row, row)])
    assert (workload.request_ids, workload.session_ids) == ([], [])
    assert workload.request_id(1) == "1"


def test_request_ids_of_unnamed_rows_are_their_numbers(write_trace):
    row = {"output_length": 1, "hash_ids": [1]}
    workload = load_trace(
        [write_trace(row, row, {**row, "request_id": "c"}, {**row, "request_id": ""}, {**row, "request_id": "c"})]
    )
    assert workload.request_ids == ["0", "1", "c", "3", "c"]


def test_session_ids_of_unnamed_rows_are_their_numbers(write_trace):
    row = {"output_length": 1, "hash_ids": [1]}
    named = {**row, "session_id": "s"}
    workload = load_trace([write_trace(row, named, row, named, row)])
    assert workload.session_ids == ["0", "s", "2", "4"]
    assert list(workload.session) == [0, 1, 2, 1, 3]


plain_rows = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(0, 3), st.none() | st.integers(-9, 9)),
    min_size=1,
    max_size=9,
)


@settings(max_examples=200, deadline=None)
@given(plain_rows, st.integers(1, 4))
def test_many_rows_at_once_give_the_columns_of_one_by_one(drawn: list[tuple[list[int], int, int | None]], size: int):
    one_by_one = Workload()
    rows = []
    for hash_ids, short, timestamp in drawn:
        length = len(hash_ids) * size - min(short, size - 1)
        time_ms = float("nan") if timestamp is None else float(timestamp)
        rows.append(MooncakeRow(hash_ids, length, None, short, timestamp=timestamp and time_ms))
        if timestamp == 0:
            rows[-1].timestamp = 0.0
        one_by_one.add(HashBlocks(size, ReadOptions()).prompt(hash_ids, length), short, time_ms=time_ms)
    at_once = Workload()
    assert append_plain_rows(at_once, rows[:2], size)
    assert append_plain_rows(at_once, rows[2:], size) == (len(rows) > 2)
    for name, column in vars(one_by_one).items():
        assert repr(column) == repr(getattr(at_once, name)), name


def test_rows_that_cannot_be_columns_are_left_to_be_read_one_by_one():
    workload = Workload()
    plain = MooncakeRow([1], 8, None, 1)
    others = [
        MooncakeRow([1], 9, None, 1),
        MooncakeRow([1, 2], 8, None, 1),
        MooncakeRow([2**63], 8, None, 1),
        MooncakeRow([FIRST_INTERNED_ID], 8, None, 1),
    ]
    assert not any(append_plain_rows(workload, [plain, other], 8) for other in others)
    assert workload.num_requests == 0


PLAIN = '{"hash_ids": [1], "input_length": 8, "output_length": 1}'


@pytest.mark.parametrize(
    "row",
    [
        '{"hash_ids": [1], "input_length": 8, "output_length": 1, "session_id": "s"}',
        '{"hash_ids": [1], "input_length": 8, "output_length": 1, "request_id": "r"}',
        '{"hash_ids": [1], "input_length": 8, "output_length": 1, "wait_for": []}',
        '{"hash_ids": [1], "input_length": 8, "output_tokens": 1}',
        '{"hash_ids": [1], "output_length": 1}',
        '{"hash_ids": [1], "input_length": 8, "output_length": 1, "created_time": 3}',
        '{"hash_ids": [1], "input_length": 8, "output_length": 1, "note": "é"}',
        "oops",
    ],
)
def test_a_block_is_taken_as_a_whole_or_not_at_all(row: str):
    workload = Workload()
    rows = PlainRows(MooncakeRow, workload, 8, Loading())
    assert rows.append(f"{PLAIN}\n{row}\n{PLAIN}\n".encode(), None) == 0
    assert workload.num_requests == 0
    other_key = PLAIN.replace("{", '{"type": "chat", ')
    assert rows.append(f"{PLAIN}\n{other_key}\r\n{PLAIN}".encode(), 3) == 3
    assert rows.append(f"{PLAIN}\n\n{PLAIN}\n".encode(), None) == 0
    assert rows.append(f"{PLAIN}\n{PLAIN}".encode(), 1) == 0
    assert workload.num_requests == 3


@pytest.mark.parametrize(("lines", "bad"), [([PLAIN.replace(": 8", ":\n 8")], 2), ([PLAIN + PLAIN], 1)])
def test_a_line_is_a_row_whatever_json_stands_in_it(write_trace, lines: list[str], bad: int):
    path = write_trace(PLAIN, *lines, PLAIN)
    loading = load_trace([path], on_bad_row="skip").loading
    assert loading is not None
    assert (loading.loaded_rows, loading.skipped) == (2, {"not a row of the format": bad})
    both = write_trace(PLAIN, PLAIN.replace(": 8", ":\n 8"), PLAIN + PLAIN, PLAIN)
    assert loading_rows(both) == (2, 3)


def loading_rows(path: str) -> tuple[int, int]:
    loading = load_trace([path], on_bad_row="skip").loading
    assert loading is not None
    return loading.loaded_rows, loading.skipped_rows


def test_a_trace_of_several_blocks_is_read_whole(write_trace):
    rows = [{"timestamp": n, "input_length": 5, "output_length": n, "hash_ids": [n]} for n in range(9000)]
    named = {**rows[0], "session_id": "s", "timestamp": 5}
    workload = load_trace([write_trace(*rows[:6000], named, *rows[6000:], named)])
    assert list(workload.output_tokens) == [*range(6000), 0, *range(6000, 9000), 0]
    assert workload.num_sessions == 9001
    assert workload.session_ids[:2] + workload.session_ids[6000:6002] == ["0", "1", "s", "6001"]
