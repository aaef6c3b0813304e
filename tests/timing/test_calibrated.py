"""A calibrated model is its base, scaled by part, plus an overhead that counts requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel import Config, InputError
from windtunnel.assembly import build_kernels, build_timing
from windtunnel.timing.base import PassShape
from windtunnel.timing.calibrated import CalibratedTiming
from windtunnel.timing.polynomial import PolynomialTiming


def mixed(num_decodes: int, context: int, chunks: int) -> PassShape:
    shape = PassShape(num_decodes, num_decodes * context)
    for _ in range(chunks):
        shape.add_chunk(0, 100, 200, sampled=False)
    return shape


BASE = PolynomialTiming(64_000)
ONE = CalibratedTiming(BASE, decode_scale=2.0, prefill_scale=3.0, pass_ms=5.0, request_ms=0.5)


def test_each_part_has_its_own_scale() -> None:
    decodes, prompts = BASE.price_pass_ms(PassShape(4, 400)), BASE.price_pass_ms(mixed(0, 0, 2))
    assert ONE.price_pass_ms(PassShape(4, 400)) == pytest.approx(2 * decodes + 5 + 0.5 * 4)
    assert ONE.price_pass_ms(mixed(0, 0, 2)) == pytest.approx(3 * prompts + 5 + 0.5 * 2)
    assert ONE.price_pass_ms(mixed(4, 100, 2)) == pytest.approx(2 * decodes + 3 * prompts + 5 + 0.5 * 6)
    assert ONE.price_pass_ms(PassShape()) == 0.0


@given(num_decodes=st.integers(1, 300), context=st.integers(1, 10_000), passes=st.integers(1, 50))
def test_a_run_costs_what_its_passes_cost_bit_for_bit(num_decodes: int, context: int, passes: int) -> None:
    start = num_decodes * context
    single = [ONE.price_pass_ms(PassShape(num_decodes, start + i * num_decodes)) for i in range(passes)]
    assert ONE.price_run_ms(num_decodes, start, -1, passes).tolist() == single


def test_scales_and_overheads_are_options_of_every_model_of_kernels() -> None:
    options = {"model": "Qwen/Qwen3-8B", "gpu": "h100", "decode_scale": 1.5, "pass_overhead_ms": 2.0}
    config = Config.model_validate({"timing": options})
    kernels, overhead = build_kernels(config)
    assert (overhead.pass_ms, overhead.request_ms) == (2.0, 0.016)
    shape = PassShape(8, 8000)
    assert build_timing(config).price_pass_ms(shape) == pytest.approx(1.5 * kernels.price_pass_ms(shape) + 2.0 + 0.128)
    plain = Config.model_validate({"timing": {**options, "decode_scale": 1.0}})
    assert build_timing(plain).price_pass_ms(shape) == pytest.approx(kernels.price_pass_ms(shape) + 2.0 + 0.128)


def test_the_polynomial_has_no_kernels() -> None:
    with pytest.raises(InputError, match="has no kernels apart from an overhead"):
        build_kernels(Config())
