"""The roofline: what it is made of, by hand; what it must not do; and that a run is its passes, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.timing.base import PassShape
from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.catalog.hf_config import read_model_shape
from windtunnel.timing.checked import CheckedTiming
from windtunnel.timing.deployment import Deployment, deploy
from windtunnel.timing.efficiency import load_efficiency
from windtunnel.timing.layers import expert_coverage, layers_ms, sharing_experts_ms
from windtunnel.timing.overhead import Overhead, WithOverhead
from windtunnel.timing.points import price_decode_ms, price_prompts_ms
from windtunnel.timing.roofline import GRAPH_SIZES, RooflineTiming

WINDOWED = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 12,
    "vocab_size": 50_000,
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
}


def deployment(model: str = "Llama-3.1-8B", gpu: str = "h100-sxm", **options: object) -> Deployment:
    return deploy(load_model(model), load_gpu(gpu), **options)  # type: ignore[arg-type]


def roofline(model: str = "Llama-3.1-8B", gpu: str = "h100-sxm", **options: object) -> RooflineTiming:
    return RooflineTiming(deployment(model, gpu, **options))


def windowed() -> RooflineTiming:
    return RooflineTiming(deploy(read_model_shape(WINDOWED, "windowed"), load_gpu("h100")))


MODELS = [
    roofline(),
    roofline("Qwen3-1.7B"),
    roofline("Llama-3.1-8B", "h200", dtype="fp8", kv_dtype="fp8"),
    roofline("Llama-3.1-70B", tp=8),
    roofline("Llama-3.1-70B", tp=2, pp=4),
    roofline("Qwen3-30B-A3B", tp=2, ep=2),
    roofline("gpt-oss-120b", tp=2),
    roofline("DeepSeek-V3", "h200", tp=8, ep=8),
    roofline("DeepSeek-V3", "h200", dp=8, ep=8),
    roofline("Qwen3.5-397B-A17B", "h200", tp=8, dtype="fp8_block"),
    roofline("DeepSeek-V3.2", "h200", tp=8),
    roofline("GLM-5-NVFP4", "b200", tp=4, kv_dtype="fp8"),
    windowed(),
    RooflineTiming(deployment("Qwen3-8B"), Overhead()),
    RooflineTiming(deployment("Qwen3-8B"), Overhead(), cuda_graph_padding=True),
]


def test_a_decode_of_one_token_by_hand() -> None:
    """Llama-3.1-8B on an H100 (3.35 TB/s, 989 TFLOPS) with the factors that efficiency.yaml has for it."""
    rate, flops = 3.35e12, 989e12

    def gemm(outputs: float, inputs: float) -> float:
        memory = (outputs * inputs + outputs + inputs) * 2 / (rate * 0.84)
        compute = 2 * outputs * inputs / (flops * 0.79)
        return (memory**3 + compute**3) ** (1 / 3) + 3.3e-6

    def elementwise(values: float, kernels: int) -> float:
        return values * 2 / (rate * 0.8) + kernels * 3e-6

    layer = gemm(6144, 4096) + gemm(4096, 4096) + gemm(2 * 14336, 4096) + gemm(4096, 14336)
    layer += elementwise(2 * 4 * 4096 + 3 * 14336 + (2 * 40 + 4 * 8) * 128, 3)
    layer += 1000 * 4096 / (rate * 0.945) + 12.5e-6 + 8 * 0.017e-6
    seconds = 32 * layer + gemm(128256, 4096) + elementwise(2 * 4096, 1)
    assert roofline().price_pass_ms(PassShape(1, 1000)) == pytest.approx(seconds * 1e3, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_run_is_its_passes(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(MODELS))
    decodes = data.draw(st.integers(1, 2000))
    context = decodes * data.draw(st.integers(1, 20_000)) + data.draw(st.integers(0, decodes))
    passes = data.draw(st.integers(1, 40))
    run = model.price_run_ms(decodes, context, -1, passes).tolist()
    assert run == [model.price_pass_ms(PassShape(decodes, context + i * decodes)) for i in range(passes)]


def test_prices_do_not_depend_on_what_was_asked_before() -> None:
    shapes = [PassShape(5, 4000), PassShape(1500, 90_000)]
    shapes.append(PassShape(3, 2000))
    shapes[-1].add_chunk(0, 9000, 9000, True)
    forth = [roofline().price_pass_ms(shape) for shape in shapes]
    model = roofline()
    back = [model.price_pass_ms(shape) for shape in reversed(shapes)]
    assert forth == back[::-1]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.deployment.model.name}-{model.deployment.tp}")
def test_the_checks_for_models_of_users_accept_it(model: RooflineTiming) -> None:
    checked = CheckedTiming(model, "roofline")
    assert checked.price_run_ms(7, 7000, -1, 5).shape == (5,)
    assert checked.price_pass_ms(PassShape()) == 0.0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_more_work_takes_longer_and_a_mixed_pass_reads_its_weights_once(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([m for m in MODELS if not m.cuda_graph_padding]))
    decodes, context = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 30_000))
    tokens, start = data.draw(st.integers(1, 8000)), data.draw(st.integers(0, 8000))
    decode = PassShape(decodes, decodes * context)
    prompt, mixed, longer = PassShape(), PassShape(decodes, decodes * context), PassShape(decodes, decodes * context)
    for shape in (prompt, mixed):
        shape.add_chunk(start, tokens, start + tokens, True)
    longer.add_chunk(start, tokens + 1, start + tokens + 1, True)
    decode_ms, prompt_ms = model.price_pass_ms(decode), model.price_pass_ms(prompt)
    mixed_ms = model.price_pass_ms(mixed)
    assert max(decode_ms, prompt_ms) < mixed_ms < decode_ms + prompt_ms
    assert model.price_pass_ms(longer) > mixed_ms
    assert model.price_pass_ms(PassShape(decodes, decodes * (context + 1))) >= decode_ms


def test_a_layer_with_a_state_costs_by_requests_and_not_by_contexts() -> None:
    # Qwen3.5-397B-A17B on 8 H200: what a context token costs is read by 15 layers with one KV head of 256 on each GPU;
    # what a request costs is a state of 45 layers, read and written.
    model = roofline("Qwen3.5-397B-A17B", "h200", tp=8, dtype="fp8_block")
    rate = load_gpu("h200").memory_bandwidth
    longer = price_decode_ms(model, 64, 9000) - price_decode_ms(model, 64, 8000)
    assert longer == pytest.approx(64 * 1000 * 15 * 2 * 256 * 2 / (rate * 0.92) * 1e3)
    half = roofline("Qwen3.5-397B-A17B", "h200", tp=8, dtype="fp8_block", state_dtype="bf16")
    saved = price_decode_ms(model, 64, 8000) - price_decode_ms(half, 64, 8000)
    assert saved == pytest.approx(64 * 45 * 2 * (64 * 128 * 128 * 2 / 8) / (rate * 0.80) * 1e3)


def test_a_scan_takes_its_longest_chunk() -> None:
    model = roofline("Qwen3.5-27B", "h200")
    one, four = price_prompts_ms(model, 1, 8192), price_prompts_ms(model, 4, 2048)
    attention = 16 * 4.0 * 24 * 256 * (8192**2 - 4 * 2048**2) / 2 / (989e12 * 0.68) * 1e3
    scan = 48 * 20e-6 * (8192 - 2048)
    head, states = price_prompts_ms(model, 4, 2048, sampled=4) - price_prompts_ms(model, 4, 2048, sampled=1), 3
    linear = model._linear
    assert linear is not None
    assert one - four + head + states * linear.per_chunk_ms == pytest.approx(attention + scan)


def test_sparse_attention_reads_an_index_of_everything_and_what_it_picked() -> None:
    # DeepSeek-V3.2: 132 bytes and 64 heads x 128 of index a token, 2,048 tokens of 576 picked, in 61 layers.
    model = roofline("DeepSeek-V3.2", "h200", tp=8)
    rate, flops = load_gpu("h200").memory_bandwidth, load_gpu("h200").flops["fp8"]
    index = 61 * (132 / (rate * 0.42) + 2 * 64 * 128 / (flops * 0.20)) * 1e3
    latent = 61 * 576 * 2 / (rate * 0.92) * 1e3
    beyond = price_decode_ms(model, 10, 9000) - price_decode_ms(model, 10, 8000)
    assert beyond == pytest.approx(10 * 1000 * index)
    within = price_decode_ms(model, 10, 2000) - price_decode_ms(model, 10, 1000)
    assert within == pytest.approx(10 * 1000 * (index + latent), rel=1e-6)
    dense = roofline("DeepSeek-V3", "h200", tp=8)
    assert price_decode_ms(model, 64, 1000) > price_decode_ms(dense, 64, 1000)
    assert price_decode_ms(model, 64, 100_000) < 0.6 * price_decode_ms(dense, 64, 100_000)


def test_a_long_chunk_of_sparse_attention_stays_in_the_latent_space_with_filled_heads() -> None:
    model = roofline("DeepSeek-V3.2", "h200", tp=8)  # 16 heads a GPU are computed as 64
    tokens, start = 4096, 8192
    pairs = tokens * (start + tokens / 2)
    index = pairs * 2 * 64 * 128 / (1979e12 * 0.20)
    latent = tokens * 2048 * 2 * 64 * (2 * 512 + 64) / (989e12 * 0.45)
    assert model.attention.windows_of_chunk_ms(start, tokens) == pytest.approx(61 * (index + latent) * 1e3)
    short = 1024 * 1024 / 2 * 2 * 16 * (128 + 64 + 128) / (989e12 * 0.68)
    assert model.attention.windows_of_chunk_ms(0, 1024) == pytest.approx(61 * short * 1e3)


def test_a_short_prompt_of_sparse_attention_waits_for_its_launches() -> None:
    model = roofline("DeepSeek-V3.2", "h200", tp=8)
    dense = roofline("DeepSeek-V3", "h200", tp=8)
    assert price_prompts_ms(model, 1, 128) > price_prompts_ms(dense, 1, 128) + 61 * 0.3


def test_shared_experts_run_beside_the_routed_ones_in_small_passes() -> None:
    model = deployment("DeepSeek-V3", "h200", tp=8)
    kernels = roofline("DeepSeek-V3", "h200", tp=8).kernels
    alone = deploy(replace(model.model, shared_intermediate=0), model.gpu, tp=8)

    def difference(tokens: float) -> float:
        found = layers_ms(model, kernels, np.array([tokens])) - layers_ms(alone, kernels, np.array([tokens]))
        return float(found[0])

    assert difference(256.0) == pytest.approx(0.0, abs=1e-9)
    assert difference(257.0) > 58 * 0.010


def test_decodes_are_priced_by_logical_contexts() -> None:
    # 106 requests with 4,103 tokens each hold 143,968 distinct ones in the case of Dynamo's change 12583: a third.
    # Priced by those, a step is less than half of what it is.
    model = roofline("Qwen3-1.7B")
    logical = price_decode_ms(model, 106, 434_972 / 106)
    physical = price_decode_ms(model, 106, 143_968 / 106)
    assert 0.50 <= 1.0 - physical / logical <= 0.60


def test_one_row_of_the_head_for_each_sampled_token() -> None:
    model = roofline()
    gap = price_prompts_ms(model, 512, 2) - price_prompts_ms(model, 512, 2, sampled=1)
    kernels = model.kernels
    rows = kernels.gemm_ms(np.array([512.0, 1.0]), 128_256, 4096, "bf16")
    assert gap == pytest.approx(rows[0] - rows[1], rel=1e-9)


def test_experts_that_a_batch_hits() -> None:
    found = expert_coverage(128, 8, np.array([0.0, 1.0, 16.0, 1e6]))
    assert found[0] == 0.0
    assert found[1] == pytest.approx(8.0)
    assert found[3] == pytest.approx(128.0)
    generator = np.random.default_rng(1)
    hit = [len({e for _ in range(16) for e in generator.choice(128, 8, replace=False)}) for _ in range(300)]
    assert found[2] == pytest.approx(np.mean(hit), rel=0.01)


def test_a_layer_with_a_window_reads_no_further() -> None:
    model = windowed()
    rise = price_decode_ms(model, 8, 512) - price_decode_ms(model, 8, 256)
    beyond = price_decode_ms(model, 8, 1024) - price_decode_ms(model, 8, 768)
    assert beyond == pytest.approx(rise / 2, rel=1e-6)  # half of the layers
    prompts = [price_prompts_ms(model, 1, 4096, start) for start in (8192, 16384, 32768)]
    assert prompts[2] - prompts[1] == pytest.approx(2 * (prompts[1] - prompts[0]), rel=1e-6)


def test_more_gpus_take_less_time_but_not_a_share_of_it() -> None:
    times = [price_decode_ms(roofline("Llama-3.1-70B", "h200", tp=tp), 64, 2000) for tp in (1, 2, 4, 8)]
    for one, two in pairwise(times):
        assert one / 2 < two < one


def test_pipeline_stages_do_not_shorten_a_pass() -> None:
    one = price_decode_ms(roofline("Llama-3.1-70B", "h200", tp=2), 64, 2000)
    assert one < price_decode_ms(roofline("Llama-3.1-70B", "h200", tp=2, pp=4), 64, 2000) < 1.05 * one


def test_an_fp8_cache_halves_what_is_read() -> None:
    bf16, fp8 = roofline(), roofline(kv_dtype="fp8")
    assert fp8.attention.per_context_ms == bf16.attention.per_context_ms / 2


def test_latent_attention_is_the_same_on_every_gpu_until_heads_make_it_compute() -> None:
    one, eight = roofline("DeepSeek-V3", "h200", dp=8, ep=8), roofline("DeepSeek-V3", "h200", tp=8, ep=8)
    assert one.attention.per_context_ms > eight.attention.per_context_ms
    assert eight.attention.per_context_ms == roofline("DeepSeek-V3", "h200", tp=4, ep=4).attention.per_context_ms


def test_a_short_chunk_on_a_long_prefix_is_bound_by_reading_it() -> None:
    model = roofline()
    read_ms = 32 * 4096 * 60_000 / (3.35e12 * 0.945) * 1e3
    assert price_prompts_ms(model, 1, 1, 60_000) - price_prompts_ms(model, 1, 1, 0) == pytest.approx(read_ms, rel=0.01)


def test_overhead_is_added_for_the_pass_and_for_each_request() -> None:
    plain = roofline()
    inside = RooflineTiming(deployment(), Overhead(0.5, 0.01))
    around = WithOverhead(plain, Overhead(0.5, 0.01))
    shape = PassShape(5, 5000)
    assert inside.price_pass_ms(shape) == pytest.approx(plain.price_pass_ms(shape) + 0.55)
    assert around.price_pass_ms(shape) == pytest.approx(inside.price_pass_ms(shape))
    shape.add_chunk(0, 100, 100, True)
    shape.add_chunk(0, 100, 200, False)
    assert inside.price_pass_ms(shape) == pytest.approx(plain.price_pass_ms(shape) + 0.57)
    assert around.price_pass_ms(shape) == pytest.approx(inside.price_pass_ms(shape))
    run = around.price_run_ms(5, 5000, -1, 3).tolist()
    assert run == [around.price_pass_ms(PassShape(5, 5000 + 5 * i)) for i in range(3)]
    assert around.price_pass_ms(PassShape()) == 0.0


def test_padding_computes_the_next_captured_batch() -> None:
    padded = RooflineTiming(deployment(), cuda_graph_padding=True)
    plain = roofline()
    assert padded._layers_ms[33] == padded._layers_ms[40] == plain._layers_ms[40]
    assert padded._layers_ms[513] == plain._layers_ms[513]
    assert padded._layers_ms[1] == plain._layers_ms[1]
    assert GRAPH_SIZES[-1] == 512


@pytest.mark.parametrize("gpu", ["h100-sxm", "a10g", "rtx-4090", "b300-sxm", "b200-sxm"])
def test_a_gpu_without_factors_of_its_own_says_so(gpu: str) -> None:
    efficiency = load_efficiency(gpu)
    assert efficiency.is_fitted == (gpu in ("h100-sxm", "b200-sxm", "rtx-4090"))
    shares = [rates.bandwidth for rates in (*efficiency.gemm.values(), *efficiency.experts.values())]
    assert all(0.3 < share < 1.0 for share in shares)
    assert math.isfinite(price_decode_ms(roofline("Qwen3-8B", gpu), 8, 1000))


def test_ranks_that_share_experts_compute_what_all_of_them_have() -> None:
    model = roofline("DeepSeek-V3", "h200", dp=8, ep=8)
    alike, told, alone = PassShape(), PassShape(), PassShape()
    for shape in (alike, told, alone):
        shape.add_chunk(0, 1000, 1000, True)
    told.group_tokens = 8000
    alone.group_tokens = 1070
    assert model.price_pass_ms(told) == pytest.approx(model.price_pass_ms(alike))
    saved = model.price_pass_ms(alike) - model.price_pass_ms(alone)
    experts = sharing_experts_ms(model.deployment, model.kernels, np.array([8000.0, 1070.0]))
    assert saved == pytest.approx(float(experts[0] - experts[1]))
    dense = roofline()
    assert dense.price_pass_ms(alone) == dense.price_pass_ms(alike)
