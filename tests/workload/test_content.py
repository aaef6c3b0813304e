"""Content is arithmetic on runs; written out as lists of tokens it must come to the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import fuzz
from windtunnel import Workload
from windtunnel.workload.content import Content, Run, agree_until, output_origin

Token = tuple[int, int]  # origin, offset


def written_out(runs: list[Run]) -> list[Token]:
    return [(origin, start + offset) for origin, start, length in runs for offset in range(length)]


def tokens_of(content: Content) -> list[Token]:
    return written_out(content.runs())


def runs_of(pieces: list[int]) -> list[Run]:
    """Runs of three short documents and two outputs, so that neighbours continue each other and contents agree."""
    return [(piece % 5 - 2, piece // 5 % 4, piece // 20 % 5) for piece in pieces]


runs = st.lists(st.integers(0, 99), max_size=8).map(runs_of)
outputs = st.none() | st.builds(lambda length: (output_origin(7), 0, length), st.integers(0, 9))


# --- one content


@given(runs, outputs)
@fuzz(200)
def test_a_content_holds_the_tokens_it_was_given(pieces: list[Run], output: Run | None) -> None:
    content = Content.of(pieces, output)
    expected = written_out([*pieces, output] if output is not None else pieces)
    assert tokens_of(content) == expected
    assert content.length == len(expected)


@given(runs, outputs)
@fuzz(200)
def test_runs_that_continue_each_other_are_one(pieces: list[Run], output: Run | None) -> None:
    content = Content.of(pieces, output)
    split = Content.of([(origin, start + at, 1) for origin, start, length in pieces for at in range(length)], output)
    assert (split.origins, split.deltas, split.ends) == (content.origins, content.deltas, content.ends)
    assert all((before[0], before[1] + before[2]) != after[:2] for before, after in pairwise(content.runs()))
    assert all(length > 0 for _, _, length in content.runs())


@given(runs, outputs)
@fuzz(100)
def test_sources_are_the_outputs_that_the_prompt_names(pieces: list[Run], output: Run | None) -> None:
    named = [origin for origin, _, length in pieces if origin < 0 and length > 0]
    assert Content.of(pieces, output).sources == list(dict.fromkeys(named))


def test_its_own_output_is_no_source() -> None:
    content = Content.of([(4, 0, 3), (output_origin(2), 0, 5)], (output_origin(9), 0, 8))
    assert content.sources == [output_origin(2)]
    assert content.runs() == [(4, 0, 3), (-3, 0, 5), (-10, 0, 8)]


def test_outputs_have_origins_of_their_own() -> None:
    assert [output_origin(request) for request in range(3)] == [-1, -2, -3]


# --- two contents


@given(runs, runs, outputs, st.data())
@fuzz(300)
def test_contents_agree_as_far_as_their_tokens_do(
    pieces: list[Run], others: list[Run], output: Run | None, data: st.DataObject
) -> None:
    common = data.draw(runs)
    a, b = Content.of(common + pieces, output), Content.of(common + others)
    ours, theirs = tokens_of(a), tokens_of(b)
    shorter = min(len(ours), len(theirs))
    agreed = next((at for at in range(shorter) if ours[at] != theirs[at]), shorter)
    at = data.draw(st.integers(0, agreed))
    limit = data.draw(st.integers(at, shorter))
    assert agree_until(a, b, at, limit) == agree_until(b, a, at, limit) == min(agreed, limit)


@given(runs)
@fuzz(50)
def test_a_content_agrees_with_itself(pieces: list[Run]) -> None:
    content = Content.of(pieces)
    assert agree_until(content, content, 0, content.length) == content.length
    assert agree_until(content, Content.of(pieces), 0, content.length) == content.length


@given(runs, runs, st.integers(1, 6), st.data())
@fuzz(300)
def test_keys_are_equal_exactly_when_the_blocks_are(
    pieces: list[Run], others: list[Run], size: int, data: st.DataObject
) -> None:
    common = data.draw(runs)
    a, b = Content.of(common + pieces), Content.of(common + others)
    ours, theirs = tokens_of(a), tokens_of(b)
    for at in range(min(len(ours), len(theirs)) - size + 1):
        if ours[:at] != theirs[:at]:
            return
        assert (a.key(at, size) == b.key(at, size)) == (ours[at : at + size] == theirs[at : at + size])


def test_a_key_inside_a_run_is_short() -> None:
    content = Content.of([(3, 10, 8), (5, 0, 8)])
    assert content.key(0, 4) == content.key(4, 4) == (3, 10)
    assert content.key(8, 8) == (5, -8)
    assert len(content.key(6, 4)) == 5


def test_the_same_tokens_elsewhere_have_another_key() -> None:
    """A block is its tokens and all before it, so a key means nothing without its position."""
    assert Content.of([(3, 0, 4), (3, 0, 4)]).key(4, 4) != Content.of([(3, 0, 8)]).key(4, 4)


# --- in a workload


@given(st.lists(runs.filter(lambda pieces: sum(run[2] for run in pieces) > 0), min_size=1, max_size=5))
@fuzz(50)
def test_a_workload_builds_each_content_from_the_runs_it_was_given(prompts: list[list[Run]]) -> None:
    workload = Workload()
    for pieces in prompts:
        workload.add(pieces, 6)
    for number, pieces in enumerate(prompts):
        assert workload.input_tokens[number] == sum(length for _, _, length in pieces)
        assert written_out(workload.prompt_runs(number)) == written_out(pieces)
        expected = written_out(pieces) + [(output_origin(number), token) for token in range(4)]
        assert tokens_of(workload.content(number, 4)) == expected
        assert workload.content(number, 0).length == workload.input_tokens[number]


@pytest.mark.parametrize("given_id", [None, "chat-7"])
def test_a_request_is_called_by_its_source_or_its_number(given_id: str | None) -> None:
    workload = Workload()
    workload.add([(0, 0, 1)], 1)
    if given_id is not None:
        workload.request_ids = [given_id]
    assert workload.request_id(0) == (given_id or "0")
