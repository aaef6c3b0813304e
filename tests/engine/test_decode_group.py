"""What the decode group knows about its members without looking at them, against looking at each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strategies import fuzz
from windtunnel.engine.decode_group import DecodeGroup
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content


def decoding_request(admission: int, computed: int, left: int = 1000) -> EngineRequest:
    """A request that has computed a prompt of `computed` tokens and has `left` tokens to compute."""
    request = EngineRequest(admission, Content.of([(0, 0, computed)]), computed, left + 1, 0.0)
    request.admission = admission
    request.computed = computed
    request.output_tokens = 1
    return request


def group_of(block_size: int, computed: list[int], step: int = 0) -> DecodeGroup:
    """Members, in the order of admission, that have computed so many tokens when the group stands at `step`."""
    group = DecodeGroup(block_size, track_slots=True)
    group.step = step
    for admission, tokens in enumerate(computed):
        group.join(decoding_request(admission, tokens))
    return group


def blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def test_a_block_is_taken_by_the_pass_that_computes_its_first_token() -> None:
    group = group_of(4, [4, 7])
    assert [group.blocks_for(passes) for passes in range(7)] == [0, 1, 2, 2, 2, 3, 4]


def test_passes_end_before_the_one_that_lacks_a_block() -> None:
    group = group_of(4, [4, 7])
    assert [group.passes_within(free, 100) for free in (0, 1, 2, 3)] == [0, 1, 4, 5]
    assert group.passes_within(2, 3) == 3


sizes = st.integers(1, 7)
members = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@fuzz(100)
@given(sizes, members, st.integers(0, 20), st.integers(0, 40))
def test_blocks_of_a_run_are_those_of_its_members(size: int, computed: list[int], step: int, passes: int) -> None:
    expected = sum(blocks(tokens + passes, size) - blocks(tokens, size) for tokens in computed)
    assert group_of(size, computed, step).blocks_for(passes) == expected


@fuzz(100)
@given(sizes, members, st.integers(0, 20), st.integers(0, 25), st.integers(1, 40))
def test_a_run_is_as_long_as_the_free_blocks_allow(
    size: int, computed: list[int], step: int, free_blocks: int, limit: int
) -> None:
    group = group_of(size, computed, step)
    affordable = [passes for passes in range(limit + 1) if group.blocks_for(passes) <= free_blocks]
    assert group.passes_within(free_blocks, limit) == affordable[-1]


@fuzz(100)
@given(sizes, members, st.integers(0, 20))
def test_busy_steps_are_those_that_open_or_fill_a_block(size: int, computed: list[int], step: int) -> None:
    expected = [
        done
        for done in range(size)
        if any((tokens + done) % size == 0 or (tokens + done + 1) % size == 0 for tokens in computed)
    ]
    assert group_of(size, computed, step).busy_steps() == expected


@fuzz(100)
@given(sizes, members, st.integers(0, 20))
def test_openers_and_closers_stand_in_batch_order(size: int, computed: list[int], step: int) -> None:
    group = DecodeGroup(size, track_slots=True)
    group.step = step
    requests = [decoding_request(admission, tokens) for admission, tokens in enumerate(computed)]
    for request in reversed(requests):  # prompts may be done in any order
        group.join(request)
    assert group.openers() == [request for request in requests if request.computed % size == 0]
    assert group.closers() == [request for request in requests if (request.computed + 1) % size == 0]


@fuzz(100)
@given(sizes, members, st.integers(0, 20))
def test_unfilled_tokens_are_those_that_would_fill_the_last_blocks(size: int, computed: list[int], step: int) -> None:
    expected = sum(blocks(tokens, size) * size - tokens for tokens in computed)
    assert group_of(size, computed, step).unfilled_tokens() == expected


@fuzz(100)
@given(sizes, st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20), st.integers(1, 8)), max_size=12))
def test_members_come_and_go_with_the_tokens_they_have_computed(size: int, joins: list[tuple[int, int, int]]) -> None:
    group = DecodeGroup(size, track_slots=True)
    ends: dict[EngineRequest, int] = {}
    starts: dict[EngineRequest, int] = {}
    for admission, (wait, computed, left) in enumerate([*joins, (8, 1, 1)]):
        for _ in range(wait):
            group.step += 1
            group.context_tokens += group.size
            done = [request for request, end in ends.items() if end == group.step]
            while group.finish_step == group.step:
                request = group.pop_finished()
                group.leave(request)
                assert request is done.pop(0)
                assert request.output_tokens == request.max_output_tokens
                assert request.computed == request.prompt_tokens + group.step - starts[request]
                del ends[request]
            assert done == []
        request = decoding_request(admission, computed, left)
        group.join(request)
        starts[request], ends[request] = group.step, group.step + left
        assert group.size == len(ends)
        assert group.finish_step == min(ends.values())
        assert group.finish_sum == sum(ends.values())
        contexts = [member.prompt_tokens + group.step - starts[member] + 1 for member in ends]
        assert group.context_tokens == sum(contexts)


def test_a_member_that_left_early_is_forgotten() -> None:
    group = DecodeGroup(4, track_slots=False)
    early, late = decoding_request(1, 8, left=2), decoding_request(2, 8, left=5)
    group.join(early)
    group.join(late)
    group.leave(early)
    group.forget(early)
    assert (group.size, group.finish_step, group.blocks_for(1)) == (1, 5, 1)
