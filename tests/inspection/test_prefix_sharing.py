"""How much of the prompts a cache without limits would serve."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.inspection.prefix_sharing import prefix_sharing
from windtunnel.workload.content import Run, output_origin
from windtunnel.workload.session import Workload


def workload_of(*prompts: list[Run], output_tokens: int = 0) -> Workload:
    workload = Workload()
    for runs in prompts:
        workload.add(runs, output_tokens)
    return workload


def test_the_second_of_two_equal_prompts_is_shared_whole():
    sharing = prefix_sharing(workload_of([(0, 0, 100)], [(0, 0, 100)]), 64)
    assert sharing == (64, 4, 2)
    assert sharing.hit_ratio == 0.5


def test_a_prompt_is_shared_up_to_where_it_differs():
    sharing = prefix_sharing(workload_of([(0, 0, 300)], [(0, 0, 130), (1, 0, 170)]), 64)
    assert sharing == (64, 10, 2)


def test_equal_content_behind_another_beginning_is_not_shared():
    assert prefix_sharing(workload_of([(1, 0, 64), (0, 0, 64)], [(2, 0, 64), (0, 64, 64)]), 64).shared_blocks == 0


def test_an_output_serves_the_prompt_that_quotes_it():
    workload = workload_of([(0, 0, 64)], output_tokens=64)
    workload.add([(0, 0, 64), (output_origin(0), 0, 64), (9, 0, 64)], 1)
    assert prefix_sharing(workload, 64) == (64, 4, 2)


def test_nothing_is_no_share():
    assert prefix_sharing(Workload(), 16).hit_ratio == 0.0


runs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.lists(runs, min_size=1, max_size=6), st.integers(1, 4))
def test_counts_are_those_of_tokens_looked_at_one_by_one(prompts: list[list[Run]], block_size: int):
    seen: set[tuple[tuple[int, int], ...]] = set()
    blocks = shared = 0
    for prompt in prompts:
        tokens = tuple((origin, start + i) for origin, start, length in prompt for i in range(length))
        known = 0
        while known < len(tokens) and tokens[: known + 1] in seen:
            known += 1
        blocks += -(-len(tokens) // block_size)
        shared += -(-len(tokens) // block_size) if known == len(tokens) else known // block_size
        seen.update(tokens[:end] for end in range(1, len(tokens) + 1))
    assert prefix_sharing(workload_of(*prompts), block_size) == (block_size, blocks, shared)
