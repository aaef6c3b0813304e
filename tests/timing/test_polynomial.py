"""The polynomial is a formula of another simulator, so its tests are numbers measured on that simulator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import FlatTiming, JaggedTiming, Scenario, Send, fuzz, run
from windtunnel import Config, TimingModel
from windtunnel.assembly import build_timing
from windtunnel.timing.base import PassShape
from windtunnel.timing.checked import CheckedTiming
from windtunnel.timing.polynomial import PolynomialTiming
from windtunnel.timing.scaled import ScaledTiming

NS = 1e-6  # the peer rounds each part of a pass to nanoseconds


def ms(expected: float) -> object:
    return pytest.approx(expected, abs=1.5 * NS)


def prefill(*chunks: tuple[int, int], prompt_tokens: int = 10**6) -> PassShape:
    """A pass of chunks (start, tokens) of prompts that go on after it."""
    shape = PassShape()
    for start, tokens in chunks:
        shape.add_chunk(start, tokens, prompt_tokens, sampled=False)
    return shape


# --- the formula


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([(0, 512)], 24.385704),
        ([(0, 512), (0, 512)], 32.490712),
        ([(0, 8)], 16.622914),
        ([(8, 8)], 16.622914),  # later chunks cost what first ones do
        ([(0, 512), (448, 64)], 16.50142 + 1.518344e-2 * 576 + 4.209989e-7 * 576**2),
    ],
)
def test_the_prefill_part_is_a_polynomial_of_the_prompt_tokens(chunks: list[tuple[int, int]], expected: float) -> None:
    assert PolynomialTiming(64000).price_pass_ms(prefill(*chunks)) == ms(expected)


@pytest.mark.parametrize(
    ("context", "expected"), [(512, 6.170433), (513, 6.17127), (514, 6.172108), (1024, 6.597571), (0, 5.74)]
)
def test_the_decode_part_is_a_polynomial_of_the_share_of_the_cache(context: int, expected: float) -> None:
    assert PolynomialTiming(64000).price_pass_ms(PassShape(1, context)) == ms(expected)


def test_the_number_of_decodes_does_not_matter() -> None:
    timing = PolynomialTiming(64000)
    assert timing.price_pass_ms(PassShape(1, 1024)) == timing.price_pass_ms(PassShape(200, 1024))


def test_a_full_cache_is_the_most_expensive() -> None:
    timing = PolynomialTiming(1000)
    assert timing.price_pass_ms(PassShape(1, 1000)) == ms(34.01)
    assert timing.price_pass_ms(PassShape(1, 1001)) == timing.price_pass_ms(PassShape(1, 1000))
    assert timing.price_pass_ms(PassShape(9, 10**9)) == timing.price_pass_ms(PassShape(1, 1000))


def test_means_over_a_batch_are_rounded_down() -> None:
    """Prompts of 6 and 9 tokens, one output token each, are priced as two of 7."""
    shape = PassShape()
    shape.add_chunk(0, 6, 6, sampled=True)
    shape.add_chunk(0, 9, 9, sampled=True)
    assert PolynomialTiming(64).price_pass_ms(shape) == ms(33.698724)
    odd = prefill((0, 3), (1, 3))  # reaches 7, started from 1: floor(7/2) - floor(1/2) = 3, for two
    assert PolynomialTiming(64).price_pass_ms(odd) == PolynomialTiming(64).price_pass_ms(prefill((0, 6)))


def test_generated_tokens_that_are_recomputed_cost_nothing() -> None:
    timing = PolynomialTiming(64000)
    beyond = prefill((512, 100), prompt_tokens=512)
    across = prefill((500, 100), prompt_tokens=512)
    assert timing.price_pass_ms(beyond) == 0.0
    assert timing.price_pass_ms(across) == timing.price_pass_ms(prefill((500, 12)))


def test_a_pass_is_the_sum_of_its_parts() -> None:
    timing = PolynomialTiming(64000)
    mixed = PassShape(3, 2000)
    mixed.add_chunk(0, 512, 512, sampled=True)
    assert timing.price_pass_ms(mixed) == ms(24.385704 + timing.price_pass_ms(PassShape(1, 2512)))
    assert timing.price_pass_ms(PassShape()) == 0.0


def test_speedups_divide_both_parts_and_the_decode_part() -> None:
    shape = PassShape()
    shape.add_chunk(0, 512, 512, sampled=True)
    assert PolynomialTiming(64000).price_pass_ms(shape) == ms(30.556137)
    assert PolynomialTiming(64000, speedup=2.0).price_pass_ms(shape) == ms(15.278069)
    assert PolynomialTiming(64000, speedup=10.0).price_pass_ms(shape) == ms(3.055613)
    assert PolynomialTiming(64000, decode_speedup=2.0).price_pass_ms(shape) == ms(27.470921)
    assert PolynomialTiming(64000, 2.0, 1.5).price_pass_ms(PassShape(1, 512)) == ms(6.170433 / 3.0)


# --- through an engine


def token_times(
    *sends: Send, num_gpu_blocks: int, speedup: float = 1.0, decode_speedup: float = 1.0, **engine: object
) -> list[tuple[float, float]]:
    settings: dict[str, object] = {"block_size": 4, "num_gpu_blocks": num_gpu_blocks, **engine}
    outcome = run(Scenario(sends, settings, speedup=speedup, decode_speedup=decode_speedup))
    requests = outcome.record.requests
    return list(zip(requests.first_token_ms, requests.last_token_ms, strict=True))


@pytest.mark.parametrize(
    ("speedup", "decode_speedup", "first_ms", "last_ms"),
    [
        (1.0, 1.0, 28.711977, 41.538115),
        (2.0, 1.0, 14.355989, 20.769058),
        (2.0, 1.5, 12.341145, 16.616524),
        (100.0, 1.0, 0.28712, 0.415381),
    ],
)
def test_the_peer_s_calibration(speedup: float, decode_speedup: float, first_ms: float, last_ms: float) -> None:
    times = token_times(Send(((1, 0, 8),), 2), num_gpu_blocks=16, speedup=speedup, decode_speedup=decode_speedup)
    assert times == [(ms(first_ms), ms(last_ms))]


def test_chunks_without_a_token_have_no_decode_part() -> None:
    times = token_times(Send(((1, 0, 16),), 2), num_gpu_blocks=16, max_num_batched_tokens=8)
    assert times == [(ms(50.879578), ms(69.149856))]


def test_two_prompts_that_do_not_fit_one_pass_whole() -> None:
    sends = (Send(((1, 0, 6),), 1), Send(((2, 0, 6),), 1))
    engine = {"num_gpu_blocks": 64, "max_num_batched_tokens": 8, "enable_prefix_caching": False}
    assert token_times(*sends, **engine, enable_chunked_prefill=False) == [
        (ms(23.584256), ms(23.584256)),
        (ms(47.168512), ms(47.168512)),
    ]
    assert token_times(*sends, **engine) == [(ms(23.614634), ms(23.614634)), (ms(47.168514), ms(47.168514))]


# --- every model


def models() -> list[TimingModel]:
    polynomials: list[TimingModel] = [
        PolynomialTiming(1000),
        PolynomialTiming(64000, 3.7, 1.3),
        PolynomialTiming(10**24, 0.01),
    ]
    own: list[TimingModel] = [
        JaggedTiming(5),
        JaggedTiming(6, physical=True),
        JaggedTiming(7, whole=True),
        FlatTiming(0.3),
    ]
    wrapped: list[TimingModel] = [ScaledTiming(CheckedTiming(model, "mine"), 3.7) for model in own]
    return [*polynomials, *own, *wrapped, CheckedTiming(PolynomialTiming(777), "theirs")]


@given(
    model=st.sampled_from(models()),
    num_decodes=st.integers(1, 300),
    context=st.integers(0, 3000) | st.integers(0, 2 * 10**6),
    shared=st.integers(0, 5000),
    passes=st.integers(1, 40) | st.integers(1, 3000),
)
@fuzz(150)
def test_a_run_costs_what_its_passes_cost_one_by_one(
    model: TimingModel, num_decodes: int, context: int, shared: int, passes: int
) -> None:
    context += num_decodes
    physical = max(context - shared, num_decodes) if model.needs_physical_context else -1
    prices = model.price_run_ms(num_decodes, context, physical, passes)
    assert prices.shape == (passes,)
    sample = {*range(min(passes, 20)), *range(0, passes, 97), passes - 1}
    for done in sorted(sample):
        shape = PassShape(num_decodes, context + done * num_decodes)
        if model.needs_physical_context:
            shape.physical_context_tokens = physical + done * num_decodes
        assert float(prices[done]).hex() == model.price_pass_ms(shape).hex()


@given(model=st.sampled_from(models()), passes=st.integers(1, 50))
@fuzz(30)
def test_the_prices_of_a_run_are_the_caller_s_to_change(model: TimingModel, passes: int) -> None:
    prices = model.price_run_ms(2, 900, 900, passes)
    expected = prices.copy()
    prices += 1e9
    assert model.price_run_ms(2, 900, 900, passes).tolist() == expected.tolist()


def test_the_configuration_sets_the_capacity_and_the_speedups() -> None:
    config = Config.model_validate(
        {"engine": {"block_size": 16, "num_gpu_blocks": 100}, "timing": {"speedup": 2.0, "decode_speedup": 5.0}}
    )
    assert build_timing(config).price_pass_ms(PassShape(1, 1600)) == ms(3.401)
