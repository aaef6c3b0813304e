"""Small scenarios of SGLang's scheduler: geometry and numbers in, batches and times out.

Those of the published behaviour of two simulators of SGLang with which the real engine agrees; where it does not,
docs/fidelity.md lists both outcomes. Times are those of the polynomial timing model.
"""

from __future__ import annotations

import pytest

from sglang_harness import SglangHarness
from windtunnel.engine.kv.radix import RadixLease
from windtunnel.engine.new_token_ratio import NewTokenRatio
from windtunnel.workload.content import Content, output_origin

BOTH_LOOPS = pytest.mark.parametrize("overlap_schedule", [True, False], ids=["overlap", "synchronous"])


def rounded(times_ms: object) -> list[float]:
    return [round(time_ms, 6) for time_ms in list(times_ms)]  # type: ignore[call-overload]


# --- whole traces


@BOTH_LOOPS
def test_prompts_in_chunks_then_decodes(overlap_schedule: bool) -> None:
    """Pool 64, page 4, chunk 8; prompts 12 and 6, outputs 3 and 2."""
    engine = SglangHarness(64, page_size=4, chunked_prefill_size=8, overlap_schedule=overlap_schedule)
    first, second = engine.submit(12, 3), engine.submit(6, 2)
    engine.run()
    assert engine.batches == [{0: 8}, {0: 4, 1: 4}, {1: 2}, {0: 1, 1: 1}, {0: 1}]
    assert rounded(engine.passes.end_ms) == [16.622914, 33.245829, 49.777617, 69.882071, 86.205059]
    assert (first.first_pass, first.last_pass, second.first_pass, second.last_pass) == (1, 4, 2, 3)
    assert (engine.finished, first.hit_tokens, second.hit_tokens) == ([1, 0], 0, 0)


@BOTH_LOOPS
def test_eight_equal_prompts_through_a_pool_of_four_pages(overlap_schedule: bool) -> None:
    """Pool 16, page 4, chunk 4: 8 requests of 1 prompt and 4 output tokens emit 32 tokens, and pages are evicted."""
    engine = SglangHarness(16, page_size=4, chunked_prefill_size=4, overlap_schedule=overlap_schedule, events=True)
    for _ in range(8):
        engine.submit(1, 4, [(7, 0, 1)])
    engine.run()
    assert sum(len(batch) for batch in engine.batches) == 32
    assert len(engine.finished) == 8
    assert sum(not event.stored for event in engine.pool.events) > 0


# --- admission


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("chunk", "prompts", "first_pass"),
    [(8, (4, 8), {0: 4, 1: 4}), (8, (7, 8), {0: 7}), (6, (5,), {0: 4})],
    ids=["the rest of the chunk", "a chunk in whole pages", "a chunk that is no whole page"],
)
def test_a_prompt_gets_what_is_left_of_the_chunk_in_whole_pages(
    overlap_schedule: bool, chunk: int, prompts: tuple[int, ...], first_pass: dict[int, int]
) -> None:
    engine = SglangHarness(64, page_size=4, chunked_prefill_size=chunk, overlap_schedule=overlap_schedule)
    for prompt in prompts:
        engine.submit(prompt, 2)
    assert engine.turn() == first_pass
    engine.run()
    assert sorted(engine.finished) == list(range(len(prompts)))


def test_a_prompt_takes_whole_pages() -> None:
    """Page 4, chunk 8, pool 10,000: a prompt of 6 takes 8 tokens of pool."""
    engine = SglangHarness(10_000, page_size=4, chunked_prefill_size=8, overlap_schedule=False)
    engine.submit(6, 3)
    engine.turn()
    assert engine.pool.free_tokens == 9992


@BOTH_LOOPS
@pytest.mark.parametrize(("output_tokens", "admitted"), [(38, True), (39, False)])
def test_admission_includes_the_output_and_is_strict(
    overlap_schedule: bool, output_tokens: int, admitted: bool
) -> None:
    """An empty pool of 100: prompt, output and one page must stay below it."""
    engine = SglangHarness(100, overlap_schedule=overlap_schedule)
    engine.submit(60, output_tokens)
    assert bool(engine.turn()) == admitted


@pytest.mark.parametrize(("output_tokens", "admitted"), [(13, True), (14, False)])
def test_running_requests_keep_a_share_of_their_output(output_tokens: int, admitted: bool) -> None:
    """Pool 100; one holds 20 tokens and has 50 to come at ratio 0.7, so 45 are left, of which one is for the page."""
    engine = SglangHarness(100, overlap_schedule=False, ignore_eos=False)
    engine.submit(20, 51)
    engine.turn()
    engine.submit(30, output_tokens)
    assert engine.turn() == ({1: 30} if admitted else {0: 1})


@pytest.mark.parametrize(("output_tokens", "admitted"), [(17, True), (18, False)])
def test_requests_that_ignore_eos_keep_all_of_it(output_tokens: int, admitted: bool) -> None:
    engine = SglangHarness(100, overlap_schedule=False)
    engine.submit(20, 31)  # 30 to come
    engine.turn()
    engine.submit(31, output_tokens)
    assert engine.turn() == ({1: 31} if admitted else {0: 1})


def test_outputs_beyond_the_clip_count_as_4096() -> None:
    engine = SglangHarness(8192, overlap_schedule=False)
    engine.submit(4094, 1_000_000)
    assert engine.turn() == {0: 4094}
    engine = SglangHarness(8192, overlap_schedule=False)
    engine.submit(4095, 1_000_000)
    assert engine.turn() == {}


def test_without_chunks_the_token_budget_stops_all_but_the_first() -> None:
    """max_prefill_tokens 10, page 4: prompts of 8 and 4 are 8 and 4 tokens, but also the first alone may be more."""
    engine = SglangHarness(64, page_size=4, max_prefill_tokens=10, chunked_prefill_size=-1, overlap_schedule=False)
    engine.submit(8, 1)
    engine.submit(4, 1)
    assert engine.turn() == {0: 8}
    assert engine.turn() == {1: 4}
    engine.submit(20, 1)
    assert engine.turn() == {2: 20}


@BOTH_LOOPS
def test_the_batch_is_limited_and_the_head_of_the_queue_waits(overlap_schedule: bool) -> None:
    engine = SglangHarness(1000, max_running_requests=2, overlap_schedule=overlap_schedule)
    for _ in range(3):
        engine.submit(4, 3)
    assert engine.turn() == {0: 4, 1: 4}
    assert [request.number for request in engine.scheduler.waiting] == [2]


def test_one_request_fits_and_the_other_waits() -> None:
    """Pool 16, page 4, chunk 8: of two requests of 8 + 1 exactly one is scheduled."""
    engine = SglangHarness(16, page_size=4, chunked_prefill_size=8, overlap_schedule=False)
    engine.submit(8, 1)
    engine.submit(8, 1)
    assert engine.turn() == {0: 8}
    assert engine.scheduler.num_waiting == 1


@BOTH_LOOPS
def test_a_hit_leaves_a_token_to_compute(overlap_schedule: bool) -> None:
    """Page 4: of an identical prompt of 8 tokens 4 are a hit, and only the others are computed and charged."""
    engine = SglangHarness(64, page_size=4, chunked_prefill_size=16, overlap_schedule=overlap_schedule)
    engine.submit(8, 1, [(5, 0, 8)])
    engine.run()
    again = engine.submit(8, 1, [(5, 0, 8)])
    engine.run()
    assert (engine.batches[-1], again.hit_tokens) == ({1: 4}, 4)


def test_a_prompt_in_chunks_is_admitted_once_and_hits_nothing_of_its_own() -> None:
    engine = SglangHarness(64, page_size=4, chunked_prefill_size=8, overlap_schedule=False)
    request = engine.submit(16, 2)
    engine.run()
    assert engine.batches[:2] == [{0: 8}, {0: 8}]
    assert (request.hit_tokens, request.reused_tokens) == (0, 0)


@BOTH_LOOPS
def test_the_prompt_under_way_goes_first_whatever_the_policy(overlap_schedule: bool) -> None:
    """A long prompt has its first 8 tokens cached; the one that arrives then has 16, but waits."""
    engine = SglangHarness(
        400, page_size=4, chunked_prefill_size=8, schedule_policy="lpm", overlap_schedule=overlap_schedule
    )
    engine.submit(16, 1, [(5, 0, 16)])
    engine.run()
    engine.submit(40, 1, [(6, 0, 40)])
    assert engine.turn() == {1: 8}
    engine.submit(20, 1, [(5, 0, 16), (9, 0, 4)])
    assert engine.turn() == {1: 8}


@BOTH_LOOPS
def test_a_prefill_pass_decodes_nobody(overlap_schedule: bool) -> None:
    engine = SglangHarness(64, page_size=4, overlap_schedule=overlap_schedule)
    engine.submit(4, 3)
    engine.turn()
    engine.submit(4, 3)
    assert engine.turn() == {1: 4}


@BOTH_LOOPS
def test_a_mixed_pass_is_one_pass(overlap_schedule: bool) -> None:
    """With mixed chunks the decode rides along, and costs a token of the chunk."""
    engine = SglangHarness(64, chunked_prefill_size=8, enable_mixed_chunk=True, overlap_schedule=overlap_schedule)
    engine.submit(4, 5)
    engine.turn()
    engine.turn()
    engine.submit(20, 2)
    assert engine.turn() == {1: 7, 0: 1}


# --- the order of the queue


def tokens(*ids: int) -> list[tuple[int, int, int]]:
    return [(0, token, 1) for token in ids]


def queue_after_arranging(engine: SglangHarness) -> list[int]:
    engine.scheduler.order.arrange(engine.scheduler.waiting)
    return [request.number for request in engine.scheduler.waiting]


def test_longest_match_goes_by_all_tokens_that_a_request_has() -> None:
    """The tree holds 1 to 5; of two prompts the one that begins with them goes first, generated tokens included."""
    engine = SglangHarness(100, schedule_policy="lpm")
    lease = RadixLease(Content.of(tokens(1, 2, 3, 4, 5)), 0)
    engine.pool.take(5)
    engine.pool.release(lease, 5, keep=True)
    engine.submit(3, 2, tokens(9, 8, 7))
    engine.submit(4, 2, tokens(1, 2, 3, 4)).output_tokens = 1
    assert queue_after_arranging(engine) == [1, 0]


def test_copies_of_a_queued_prompt_let_others_go_first() -> None:
    """33 copies of a prompt of 32 tokens, then one of its own: it is second, behind the first copy."""
    engine = SglangHarness(10_000, schedule_policy="lpm")
    for _ in range(33):
        engine.submit(32, 1, [(5, 0, 32)])
    engine.submit(32, 1)
    assert queue_after_arranging(engine)[:3] == [0, 33, 1]


def test_copies_with_a_long_hit_are_not_put_off() -> None:
    engine = SglangHarness(10_000, schedule_policy="lpm")
    engine.submit(33, 1, [(5, 0, 33)])
    engine.run()
    engine.submit(40, 1)
    for _ in range(2):
        engine.submit(60, 1, [(5, 0, 60)])
    assert queue_after_arranging(engine) == [2, 3, 1]


@pytest.mark.parametrize(("waiting", "sorted_by_hit"), [(128, True), (129, False)])
def test_a_long_queue_is_not_sorted_by_hits(waiting: int, sorted_by_hit: bool) -> None:
    engine = SglangHarness(10_000, schedule_policy="lpm")
    engine.submit(40, 1, [(5, 0, 40)])
    engine.run()
    for _ in range(waiting - 1):
        engine.submit(4, 1)
    engine.submit(41, 1, [(5, 0, 41)])
    assert (queue_after_arranging(engine)[0] == waiting) == sorted_by_hit


def test_longest_output_first() -> None:
    engine = SglangHarness(1000, schedule_policy="lof")
    for output_tokens in (3, 9, 5, 9):
        engine.submit(4, output_tokens)
    assert queue_after_arranging(engine) == [1, 3, 2, 0]


def test_without_prefix_cache_nothing_is_stored_matched_or_ranked_by_match() -> None:
    engine = SglangHarness(
        1000, page_size=4, schedule_policy="lpm", enable_prefix_caching=False, overlap_schedule=False, events=True
    )
    engine.submit(40, 4, [(5, 0, 40)])
    engine.run()
    engine.submit(40, 1)
    again = engine.submit(40, 1, [(5, 0, 40)])
    assert engine.turn() == {1: 40, 2: 40}
    engine.run()
    assert (again.hit_tokens, again.reused_tokens, engine.pool.events, engine.pool.num_nodes) == (0, 0, [], 0)
    assert engine.pool.free_tokens == 1000


# --- decodes and the cache


def test_when_pages_are_taken() -> None:
    """Page 4, prompt 6: pages held after each pass. The newest token gets its slot when it is computed."""
    engine = SglangHarness(64, page_size=4, overlap_schedule=False)
    engine.submit(6, 5)
    held = []
    for _ in range(4):
        engine.turn()
        held.append(64 - engine.pool.free_tokens)
    assert held == [8, 8, 8, 12]


@BOTH_LOOPS
def test_the_prompt_can_be_hit_once_its_result_is_known(overlap_schedule: bool) -> None:
    engine = SglangHarness(64, page_size=4, overlap_schedule=overlap_schedule)
    engine.submit(4, 4, [(5, 0, 4)])
    prompt = Content.of([(5, 0, 4)])
    engine.turn()
    assert engine.pool.match(prompt, 4).end == (0 if overlap_schedule else 4)  # with overlap it is in flight
    engine.turn()
    assert engine.pool.match(prompt, 4).end == 4


@BOTH_LOOPS
def test_equal_prompts_of_one_batch_are_stored_once(overlap_schedule: bool) -> None:
    """Page 1, pool 100: both are computed, the second copy is freed when the results come."""
    engine = SglangHarness(100, overlap_schedule=overlap_schedule, events=True)
    for _ in range(2):
        engine.submit(3, 1, [(5, 0, 3)])
    engine.run()
    assert engine.batches == [{0: 3, 1: 3}]
    assert [(event.stored, event.first, event.end) for event in engine.pool.events] == [(True, 0, 3)]
    assert (engine.pool.free_tokens, engine.pool.evictable_tokens) == (97, 3)


def test_finishing_keeps_all_full_pages_but_the_last_token() -> None:
    engine = SglangHarness(64, page_size=4, overlap_schedule=False)
    request = engine.submit(6, 3)  # 8 of the 9 tokens have KV
    engine.run()
    assert (engine.pool.free_tokens, engine.pool.evictable_tokens) == (56, 8)
    following = Content.of([*request.lease.content.runs()[:1], (output_origin(0), 0, 2), (9, 0, 4)])
    assert engine.pool.match(following, 12).end == 8


@BOTH_LOOPS
def test_no_output_ends_with_the_prefill(overlap_schedule: bool) -> None:
    engine = SglangHarness(64, page_size=4, overlap_schedule=overlap_schedule)
    request = engine.submit(4, 0)
    other = engine.submit(4, 2)
    engine.run()
    assert engine.batches == [{0: 4, 1: 4}, {1: 1}]
    assert (engine.finished, request.first_pass, other.last_pass) == ([0, 1], -1, 1)


# --- retraction and the ratio


@pytest.mark.parametrize(
    ("conservativeness", "first", "lowest", "step"),
    [
        (1.0, 0.7, 0.098, 0.602 / 600),
        (0.5, 0.35, 0.049, 0.000501667),
        (0.0, 0.0, 0.0, 0.0),
        (1.5, 1.0, 0.14, 0.86 / 600),
    ],
)
def test_the_ratio_falls_with_decode_passes(conservativeness: float, first: float, lowest: float, step: float) -> None:
    ratio = NewTokenRatio(conservativeness)
    assert ratio.value() == pytest.approx(first)
    ratio.note_decodes(100)
    assert ratio.value() == pytest.approx(first - 100 * step, abs=1e-6)
    ratio.note_decodes(1000)
    assert ratio.value() == pytest.approx(lowest)
    ratio.reset()
    assert ratio.value() == pytest.approx(first)


@pytest.mark.parametrize(
    ("generated", "asked", "survivors", "ratio"), [(10, 30, 1, 0.967742), (30, 200, 2, 0.348259), (50, 30, 2, 1.0)]
)
def test_the_ratio_after_a_retraction(generated: int, asked: int, survivors: int, ratio: float) -> None:
    estimate = NewTokenRatio(1.0)
    estimate.note_retraction(generated, asked, survivors)
    assert estimate.value() == pytest.approx(ratio, abs=1e-6)


@BOTH_LOOPS
def test_the_fewest_outputs_go_first_and_wait_behind_all_others(overlap_schedule: bool) -> None:
    """Pool 40, page 4: two requests of 4 + 20 outgrow it; the younger one, with an output fewer, is retracted."""
    engine = SglangHarness(
        40, page_size=4, ignore_eos=False, schedule_conservativeness=0.0, overlap_schedule=overlap_schedule
    )
    requests = [engine.submit(4, 20), engine.submit(4, 20)]
    while not any(request.preemptions for request in requests):
        if len(engine.batches) == 3:
            engine.submit(30, 1)
        engine.turn()
    assert [request.preemptions for request in requests] == [0, 1]
    assert [request.number for request in engine.scheduler.waiting] == [2, 1]
    engine.run()
    assert sorted(engine.finished) == [0, 1, 2]


@BOTH_LOOPS
def test_of_equal_outputs_the_longest_prompt_goes_first(overlap_schedule: bool) -> None:
    """Two requests join one that decodes, in one batch; together they outgrow the pool."""
    engine = SglangHarness(64, ignore_eos=False, schedule_conservativeness=0.0, overlap_schedule=overlap_schedule)
    engine.submit(4, 40)
    engine.turn()
    requests = [engine.submit(12, 16), engine.submit(8, 16)]
    engine.run()
    assert engine.batches[1] == {1: 12, 2: 8}
    assert [request.preemptions for request in requests] == [1, 0]


def test_a_request_that_outgrows_the_pool_alone_is_given_up() -> None:
    """Outputs beyond the clip are not all reserved: 60 + 4,096 + 1 < 4,200, but 60 + 5,000 are not."""
    engine = SglangHarness(4200)
    request = engine.submit(60, 5000)
    other = engine.submit(10, 1)
    engine.run()
    assert request.failure == (
        "out of memory: 60 prompt and 4140 output tokens fill all 4200 KV blocks of 1 tokens, and nobody else runs"
    )
    assert (other.failure, engine.pool.free_tokens + engine.pool.evictable_tokens) == ("", 4200)


@BOTH_LOOPS
def test_a_chunk_that_finds_no_room_any_more_ends_its_request_and_nothing_else(overlap_schedule: bool) -> None:
    """Mixed chunks, pool 40: while a prompt of 31 is computed 3 tokens at a time, the other request outgrows it."""
    engine = SglangHarness(
        40,
        chunked_prefill_size=4,
        enable_mixed_chunk=True,
        ignore_eos=False,
        schedule_conservativeness=0.0,
        overlap_schedule=overlap_schedule,
    )
    running = engine.submit(4, 30)
    engine.turn()
    prompt = engine.submit(31, 1)
    engine.run()
    assert prompt.failure.startswith("out of memory: tokens ")
    assert " of the prompt do not fit beside 1 running requests, which outgrew the output reserved" in prompt.failure
    assert (running.failure, running.last_pass - running.first_pass) == ("", 29)
    assert engine.pool.free_tokens + engine.pool.evictable_tokens == 40
