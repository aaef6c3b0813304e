"""What SGLang's front end clips and refuses, and that what it accepts is served."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_harness import SglangHarness
from strategies import FlatTiming, fuzz
from windtunnel import Config, Workload, simulate
from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.record.columns import PassColumns, Status


def scheduler(**fields: object) -> SglangScheduler:
    return SglangScheduler(SglangConfig.model_validate(fields), PassColumns())


def test_a_prompt_larger_than_the_pool_names_the_smallest_that_would_do() -> None:
    """16 prompt tokens, a pool of 12 in pages of 4, chunk 8: the first chunk would fit, the rest never."""
    engine = {"kind": "sglang", "page_size": 4, "num_gpu_blocks": 3, "chunked_prefill_size": 8}
    workload = Workload()
    workload.add([(0, 0, 16)], 2)
    workload.add([(1, 0, 2)], 2)
    result = simulate(Config.model_validate({"engine": engine}), workload=workload, timing=FlatTiming())
    requests = result.record.requests
    assert list(requests.status) == [Status.REJECTED, Status.COMPLETED]
    assert requests.reasons[0] == (
        "16 prompt and 2 output tokens do not fit 3 KV blocks of 4 tokens: num_gpu_blocks must be at least 6"
    )
    assert scheduler(page_size=4, num_gpu_blocks=5).refusal_at_submission(16, 2)
    assert scheduler(page_size=4, num_gpu_blocks=6).refusal_at_submission(16, 2) == ""


@pytest.mark.parametrize(
    ("fields", "prompt_tokens", "accepted"),
    [
        ({"num_gpu_blocks": 100}, 93, True),
        ({"num_gpu_blocks": 100}, 94, False),  # 6 tokens stay free behind the longest prompt, and one more
        ({"num_gpu_blocks": 100, "context_length": 50}, 43, True),
        ({"num_gpu_blocks": 100, "context_length": 50}, 44, False),
    ],
)
def test_the_longest_prompt(fields: dict[str, object], prompt_tokens: int, accepted: bool) -> None:
    assert (scheduler(**fields).refusal_at_submission(prompt_tokens, 1) == "") == accepted


def test_the_context_length_is_named_where_it_is_the_limit() -> None:
    refusal = scheduler(num_gpu_blocks=100, context_length=50).refusal_at_submission(44, 1)
    assert refusal == "prompt of 44 tokens does not fit context_length 50: it needs at least 51"


@pytest.mark.parametrize(
    ("fields", "output_tokens", "allowed"),
    [
        ({"num_gpu_blocks": 100}, 30, 30),
        ({"num_gpu_blocks": 100}, 40, 38),  # two short of the pool
        ({"num_gpu_blocks": 100, "context_length": 90}, 40, 28),
        ({"num_gpu_blocks": 100, "context_length": 200}, 40, 38),
    ],
)
def test_output_is_clipped_to_the_pool_and_the_context(
    fields: dict[str, object], output_tokens: int, allowed: int
) -> None:
    assert scheduler(**fields).limit_output(60, output_tokens) == allowed


def test_a_clipped_request_completes_short() -> None:
    workload = Workload()
    workload.add([(0, 0, 60)], 40)
    engine = {"kind": "sglang", "num_gpu_blocks": 100}
    requests = simulate(Config.model_validate({"engine": engine}), workload=workload).record.requests
    assert (requests.status[0], requests.output_tokens[0]) == (Status.COMPLETED, 38)


def test_without_prefix_cache_the_output_must_be_seen_to_fit() -> None:
    """Requests that ignore EOS are then admitted by simulating their ends: 60 + 1 + 37 and two more fit 100."""
    uncached = scheduler(num_gpu_blocks=100, enable_prefix_caching=False)
    assert uncached.refusal_at_submission(60, 37) == ""
    assert "num_gpu_blocks must be at least 101" in uncached.refusal_at_submission(60, 38)
    may_stop = scheduler(num_gpu_blocks=100, enable_prefix_caching=False, ignore_eos=False)
    assert may_stop.refusal_at_submission(60, 38) == ""


@st.composite
def engines_and_requests(draw: st.DrawFn) -> tuple[dict[str, object], int, int]:
    page_size = draw(st.sampled_from([1, 2, 3, 16, 64]))
    chunk = draw(st.sampled_from([-1, 4, 16, 100]))
    fields: dict[str, object] = {
        "page_size": page_size,
        "num_gpu_blocks": draw(st.integers(1, 12)) if page_size > 16 else draw(st.integers(1, 120)),
        "chunked_prefill_size": chunk if chunk < 0 else chunk + page_size - 1,
        "max_prefill_tokens": draw(st.sampled_from([1, 10, 1000])),
        "enable_prefix_caching": draw(st.booleans()),
        "ignore_eos": draw(st.booleans()),
        "overlap_schedule": draw(st.booleans()),
    }
    return fields, draw(st.integers(1, 300)), draw(st.integers(0, 200))


@given(engines_and_requests())
@fuzz(150)
def test_what_is_accepted_is_served_and_what_is_refused_is_by_the_pool_that_is_named(
    case: tuple[dict[str, object], int, int],
) -> None:
    fields, prompt_tokens, output_tokens = case
    refusal = scheduler(**fields).refusal_at_submission(prompt_tokens, output_tokens)
    if refusal:
        named = re.fullmatch(r".* num_gpu_blocks must be at least (\d+)", refusal)
        assert named is not None
        one_less = scheduler(**{**fields, "num_gpu_blocks": int(named[1]) - 1})
        assert one_less.refusal_at_submission(prompt_tokens, output_tokens)
        fields["num_gpu_blocks"] = int(named[1])
    accepting = scheduler(**fields)
    assert accepting.refusal_at_submission(prompt_tokens, output_tokens) == ""
    del fields["num_gpu_blocks"]
    engine = SglangHarness(accepting.config.kv_capacity_tokens, FlatTiming(), **fields)
    allowed = accepting.limit_output(prompt_tokens, output_tokens)
    request = engine.submit(prompt_tokens, allowed)
    engine.run()
    assert engine.finished == [0]
    assert (request.failure, request.preemptions) == ("", 0)
