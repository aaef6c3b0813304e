"""Lengths up to which nobody asks a front end: they must never be cut short or refused."""

from hypothesis import given
from hypothesis import strategies as st

from strategies import fuzz
from windtunnel.config.sglang import SglangConfig
from windtunnel.config.vllm import VllmConfig
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.record.columns import PassColumns

LENGTHS = st.none() | st.integers(2, 400)


@st.composite
def vllm_schedulers(draw: st.DrawFn) -> VllmScheduler:
    max_model_len = draw(LENGTHS)
    is_chunked = draw(st.booleans())
    config = VllmConfig(
        num_gpu_blocks=draw(st.integers(1, 60)),
        block_size=draw(st.sampled_from([1, 4, 16])),
        max_model_len=max_model_len,
        max_num_batched_tokens=draw(st.integers(1 if is_chunked else max_model_len or 1, 300)),
        enable_chunked_prefill=is_chunked,
        async_scheduling=False,
    )
    return VllmScheduler(config, PassColumns())


@st.composite
def sglang_schedulers(draw: st.DrawFn) -> SglangScheduler:
    page_size = draw(st.sampled_from([1, 4, 16]))
    config = SglangConfig(
        num_gpu_blocks=draw(st.integers(1, 60)),
        page_size=page_size,
        context_length=draw(LENGTHS),
        enable_prefix_caching=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
    )
    return SglangScheduler(config, PassColumns())


@given(vllm_schedulers() | sglang_schedulers(), st.data())
@fuzz(200)
def test_nothing_up_to_the_safe_lengths_is_cut_or_refused(
    scheduler: VllmScheduler | SglangScheduler, data: st.DataObject
) -> None:
    total_tokens = data.draw(st.integers(0, max(scheduler.safe_total_tokens, 0)))
    prompt_tokens = min(data.draw(st.integers(0, total_tokens)), scheduler.safe_prompt_tokens)
    if prompt_tokens < 1:
        return
    output_tokens = total_tokens - prompt_tokens
    assert scheduler.limit_output(prompt_tokens, output_tokens) == output_tokens
    assert scheduler.refusal_at_submission(prompt_tokens, output_tokens) == ""


def test_the_safe_lengths_are_no_less_than_what_a_plain_pool_holds() -> None:
    config = VllmConfig(num_gpu_blocks=10, block_size=16)
    scheduler = VllmScheduler(config, PassColumns())
    assert (scheduler.safe_prompt_tokens, scheduler.safe_total_tokens) == (160, 160)
