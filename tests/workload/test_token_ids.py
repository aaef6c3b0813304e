"""Token ids as content, and texts as token counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.workload.content import Content, agree_until, output_origin
from windtunnel.workload.traces.conversations import TextContent, tokens_in
from windtunnel.workload.traces.token_ids import TokenTree

ids = st.lists(st.sampled_from([0, 1, 2**32 - 1]), min_size=1, max_size=12)


def test_a_new_prompt_is_one_run():
    assert TokenTree().prompt([7, 7, 3, 9]) == [(0, 0, 4)]


def test_prompts_share_runs_as_far_as_they_agree():
    tree = TokenTree()
    tree.prompt([1, 2, 3, 4])
    assert tree.prompt([1, 2, 9]) == [(0, 0, 2), (0, 4, 1)]
    assert tree.prompt([1, 2, 3, 4, 5]) == [(0, 0, 2), (0, 2, 2), (0, 7, 1)]


def test_a_prompt_that_goes_on_where_an_answer_ended_quotes_it():
    tree = TokenTree()
    tree.prompt([1, 2])
    tree.output([1, 2], [3, 4, 5], request=6)
    assert tree.prompt([1, 2, 3, 4, 9]) == [(0, 0, 2), (output_origin(6), 0, 2), (0, 2, 1)]


def test_an_answer_that_was_a_prompt_before_keeps_its_runs():
    tree = TokenTree()
    tree.prompt([1, 2, 3])
    tree.output([1], [2, 3, 4], request=0)
    assert tree.prompt([1, 2, 3, 4]) == [(0, 0, 3), (output_origin(0), 2, 1)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ids, st.none() | ids), min_size=2, max_size=6))
def test_contents_agree_exactly_as_far_as_the_ids_do(drawn: list[tuple[list[int], list[int] | None]]):
    tree = TokenTree()
    contents = []
    for request, (prompt, answer) in enumerate(drawn):
        contents.append(Content.of(tree.prompt(prompt)))
        assert contents[-1].length == len(prompt)
        if answer is not None:
            tree.output(prompt, answer, request)
    for first, (prompt, _) in enumerate(drawn):
        for second, (other, _) in enumerate(drawn):
            shorter = min(len(prompt), len(other))
            agree = next((i for i in range(shorter) if prompt[i] != other[i]), shorter)
            assert agree_until(contents[first], contents[second], 0, shorter) == agree


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \n", 0),
        ("word", 2),
        ("three words here", 4),
        ("a b c d e f", 8),
        ("  spaces   do not count ", 6),
        ("你好", 3),
        ("naïve café", 3),
    ],
)
def test_a_text_has_four_tokens_for_three_words(text: str, tokens: int):
    assert tokens_in(text) == tokens


def test_equal_texts_are_equal_content_and_others_are_not():
    content = TextContent()
    system, other = content.runs("be brief", 3), content.runs("be long", 3)
    assert content.runs("be brief", 3) == system
    assert system != other
    assert content.runs("be brief", 4) != system
    assert content.runs("", 0) == []
