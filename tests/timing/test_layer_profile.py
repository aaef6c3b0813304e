"""Times of single layers add up to passes, and tables that do not fit their model are one clear line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel import Config, InputError
from windtunnel.assembly import build_timing
from windtunnel.timing.attention_table import AttentionTable
from windtunnel.timing.base import PassShape
from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.deployment import deploy
from windtunnel.timing.layer_profile import TABLES, LayerProfile, LayerStack, layer_stack, read_skew
from windtunnel.timing.profile import load_profile
from windtunnel.timing.tabulated import TabulatedTiming

TOKENS = (1, 16, 64, 256, 1024)


def attention_us(tokens: int, cached: int, decodes: int, context: int) -> float:
    """A kernel that is linear in what it reads and multiplies, and slower at decodes when prompts are with them."""
    prompts = 4 + 1e-3 * tokens * (tokens + 2 * cached) if tokens else 0.0
    return 2 + prompts + decodes * context * (0.004 if tokens else 0.002)


def tables(experts: bool = False) -> dict[str, list[list[Any]]]:
    dense = ["embedding", "final_layernorm", "layernorm", "qkv_proj", "rotary_emb", "o_proj"]
    if not experts:
        dense += ["gate_up_proj", "act_fn", "down_proj"]
    rows: list[list[Any]] = [[c, k, 0, 0, attention_us(c, k, 0, 0)] for c in (16, 64, 256, 1024) for k in (0, 64, 512)]
    for n in (1, 4, 16):
        rows += [[0, 0, n, v, attention_us(0, 0, n, v)] for v in (16, 128, 1024)]
        rows += [
            [c, k, n, v, attention_us(c, k, n, v)]
            for c in (16, 64, 256, 1024)
            for k in (0, 64, 512)
            for v in (16, 128, 1024)
        ]
    found: dict[str, list[list[Any]]] = {
        "dense": [[name, t, 10.0 + 0.1 * t] for name in dense for t in TOKENS],
        "per_sequence": [[name, n, 20.0 + n] for name in ("lm_head", "sampler") for n in (1, 8, 64)],
        "attention": rows,
    }
    if experts:
        found["moe"] = [[t, e, 5.0 + 2.0 * e + 0.01 * t] for t in TOKENS for e in (2, 4, 8)]
    return found


def profile(stack: LayerStack | None = None, **changes: Any) -> LayerProfile:
    stack = stack or LayerStack(num_layers=3)
    return LayerProfile({**tables(bool(stack.num_experts)), **changes}, stack, "layers")


def prompt(tokens: int, start: int = 0, num_decodes: int = 0, context: int = 0) -> PassShape:
    shape = PassShape(num_decodes, num_decodes * context)
    shape.add_chunk(start, tokens, 10**6, sampled=False)
    return shape


def test_a_decode_pass_is_its_layers_and_its_head() -> None:
    price = TabulatedTiming(profile()).price_pass_ms(PassShape(4, 4 * 500))
    dense = 10.0 + 0.4
    layer = 8 * dense + attention_us(0, 0, 4, 500)
    assert price == pytest.approx((2 * dense + 3 * layer + 2 * 24.0) / 1000)


@pytest.mark.parametrize(("tokens", "start"), [(64, 0), (256, 64), (300, 100), (1024, 512), (700, 0)])
def test_a_prompt_pass_is_its_layers_and_one_row_of_the_head(tokens: int, start: int) -> None:
    price = TabulatedTiming(profile()).price_pass_ms(prompt(tokens, start))
    dense = 10.0 + 0.1 * tokens
    layer = 8 * dense + attention_us(tokens, start, 0, 0)
    assert price == pytest.approx((2 * dense + 3 * layer + 2 * 21.0) / 1000)


def test_a_mixed_launch_costs_what_was_measured_of_it() -> None:
    price = TabulatedTiming(profile()).price_pass_ms(prompt(256, 64, num_decodes=4, context=128))
    dense = 10.0 + 26.0
    layer = 8 * dense + attention_us(256, 64, 4, 128)
    assert price == pytest.approx((2 * dense + 3 * layer + 2 * 25.0) / 1000)


@given(
    tokens=st.integers(16, 1024),
    start=st.integers(0, 512),
    num_decodes=st.integers(1, 16),
    context=st.integers(16, 1024),
)
def test_between_measurements_attention_is_what_lies_between(
    tokens: int, start: int, num_decodes: int, context: int
) -> None:
    table = AttentionTable([(a, b, c, d, t) for a, b, c, d, t in tables()["attention"]])
    decodes = float(np.interp(context, table.contexts, table.decodes_at(num_decodes)))
    together = table.prompt(tokens, start) + decodes + table.extra(tokens, start, num_decodes, context)
    assert together == pytest.approx(attention_us(tokens, start, num_decodes, context), rel=0.01)


def test_collectives_and_experts_come_from_the_deployment() -> None:
    told = LayerStack(num_layers=3, collective_ms=lambda tokens: 0.5 * tokens)
    assert TabulatedTiming(profile(told)).price_pass_ms(PassShape(2, 200)) == pytest.approx(
        TabulatedTiming(profile()).price_pass_ms(PassShape(2, 200)) + 3 * 0.5 * 2
    )
    moe = LayerStack(num_layers=3, num_experts=8, experts_per_token=2)
    one, many = (TabulatedTiming(profile(moe)).price_pass_ms(PassShape(n, n * 100)) for n in (1, 16))
    dense = 10.1
    expected = 2 * dense + 3 * (5 * dense + attention_us(0, 0, 1, 100) + 5.0 + 2.0 * 2 + 0.01) + 2 * 21.0
    assert one == pytest.approx(expected / 1000)  # one token hits two experts
    assert many - one > 3 * 2.0 * 5.5 / 1000  # sixteen hit nearly all eight


def test_ranks_that_share_experts_hit_more_of_fewer() -> None:
    alone = LayerStack(num_layers=3, num_experts=16, experts_per_token=2)
    shared = LayerStack(num_layers=3, num_experts=16, experts_per_token=2, ep=2)
    shape = PassShape(4, 400)
    # 16 (1 - (7/8)^4) = 6.6 distinct experts on one GPU; 16 (1 - (7/8)^8) / 2 = 5.3 on each of two
    a, b = (TabulatedTiming(profile(stack)).price_pass_ms(shape) for stack in (alone, shared))
    assert a - b == pytest.approx(3 * 2.0 * (6.621 - 5.251) / 1000, rel=1e-2)


def test_a_deployment_tells_what_tables_do_not() -> None:
    dense = layer_stack(deploy(load_model("Qwen/Qwen3-32B"), load_gpu("rtx-pro-6000"), tp=2))
    assert dense.num_layers == 64
    assert dense.collective_ms is not None
    assert 0.02 < dense.collective_ms(128) < 1.0
    moe = layer_stack(deploy(load_model("Qwen/Qwen3-30B-A3B"), load_gpu("rtx-pro-6000"), dp=2, ep=2))
    assert (moe.num_layers, moe.num_experts, moe.experts_per_token, moe.ep) == (48, 128, 8, 2)
    assert moe.collective_ms is not None
    assert layer_stack(deploy(load_model("Qwen/Qwen3-8B"), load_gpu("h100"))).collective_ms is None
    with pytest.raises(InputError, match=r"timing\.pp: tables of layers are composed to one pipeline stage only"):
        layer_stack(deploy(load_model("Qwen/Qwen3-8B"), load_gpu("h100"), pp=2))


@given(num_decodes=st.integers(1, 40), mean=st.integers(1, 2000), passes=st.integers(1, 50))
def test_a_run_costs_what_its_passes_cost_bit_for_bit(num_decodes: int, mean: int, passes: int) -> None:
    timing = TabulatedTiming(profile())
    start = num_decodes * mean
    single = [timing.price_pass_ms(PassShape(num_decodes, start + i * num_decodes)) for i in range(passes)]
    assert timing.price_run_ms(num_decodes, start, -1, passes).tolist() == single


@given(tokens=st.integers(1, 5000), start=st.integers(0, 5000), num_decodes=st.integers(1, 40))
def test_a_mixed_pass_costs_at_least_each_part(tokens: int, start: int, num_decodes: int) -> None:
    timing = TabulatedTiming(profile())
    mixed = timing.price_pass_ms(prompt(tokens, start, num_decodes, 300))
    assert mixed >= timing.price_pass_ms(prompt(tokens, start)) - 1e-9
    assert mixed >= timing.price_pass_ms(PassShape(num_decodes, num_decodes * 300)) - 1e-9


def written(directory: Path, as_json: bool) -> Path:
    if as_json:
        path = directory / "layers.json"
        form = {name: {"columns": list(TABLES[name]), "rows": rows} for name, rows in tables().items()}
        path.write_text(json.dumps({"tables": form}))
        return path
    for name, rows in tables().items():
        with (directory / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([TABLES[name], *rows])
    return directory


@pytest.mark.parametrize("as_json", [True, False])
def test_tables_are_read_from_json_or_from_a_directory_of_csv(tmp_path: Path, as_json: bool) -> None:
    path = written(tmp_path, as_json)
    read = load_profile(str(path), LayerStack(num_layers=3))
    shape = prompt(300, 100, 3, 700)
    assert TabulatedTiming(read).price_pass_ms(shape) == TabulatedTiming(profile()).price_pass_ms(shape)
    with pytest.raises(InputError, match=r"timing\.model and timing\.gpu must say how many there are"):
        load_profile(str(path))


def test_a_profile_of_layers_is_priced_with_the_overhead_of_an_engine(tmp_path: Path) -> None:
    timing = {"kind": f"profile:{written(tmp_path, True)}", "model": "Qwen/Qwen3-8B", "gpu": "h100"}
    built = build_timing(Config.model_validate({"timing": timing}))
    kernels = TabulatedTiming(profile(LayerStack(num_layers=36)))
    shape = PassShape(4, 4000)
    assert built.price_pass_ms(shape) == pytest.approx(kernels.price_pass_ms(shape) + 0.65 + 4 * 0.016)


@pytest.mark.parametrize(
    ("stack", "changes", "message"),
    [
        (LayerStack(3), {"attention": []}, "layers: expected tables attention too"),
        (LayerStack(3), {"moe": [[1, 2, 3.0]]}, "layers: has a table moe, but the model no experts"),
        (LayerStack(3, 8, 2), {"moe": []}, "layers: has no table moe for the model's experts"),
        (LayerStack(3), {"dense": [["conv", 1, 2.0]]}, "layers: dense: unknown layer 'conv': expected embedding"),
        (LayerStack(3), {"dense": [["layernorm", 1, "x"]]}, "layers: dense: row 0 holds [1, 'x'], expected numbers"),
        (
            LayerStack(3),
            {"dense": [["layernorm", 1, 0.0]]},
            "layers: dense: row 0 holds [1, 0.0], expected a time above 0",
        ),
        (LayerStack(3), {"per_sequence": [["pool", 1, 1.0]]}, "per_sequence: expected the layers lm_head and sampler"),
        (LayerStack(3), {"attention": [[0, 0, 1, 16, 1.0]]}, "layers: attention: no launch of prompts alone"),
        (LayerStack(3), {"attention": [[16, 0, 0, 0, 1.0]]}, "layers: attention: no launch of decodes alone"),
    ],
)
def test_tables_that_make_no_sense_are_one_line(stack: LayerStack, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        profile(stack, **changes)
    assert message in str(caught.value)


def test_ranks_compute_the_prompts_of_one_of_them_together() -> None:
    """The rank with prompts has experts for half of what both compute, and not for as many tokens as its own."""
    model = profile(LayerStack(num_layers=3, num_experts=8, experts_per_token=2, ep=2))
    alike, alone = PassShape(), PassShape()
    for shape in (alike, alone):
        shape.add_chunk(0, 100, 100, True)
    alone.group_tokens = 100
    both = PassShape()
    both.add_chunk(0, 100, 100, True)
    both.group_tokens = 200
    assert model.price_prompts_ms(alone, 0.0) < model.price_prompts_ms(alike, 0.0)
    assert model.price_prompts_ms(both, 0.0) == pytest.approx(model.price_prompts_ms(alike, 0.0))


def test_unequal_contexts_cost_part_of_the_way_to_the_longest() -> None:
    even = TabulatedTiming(profile())
    skewed_profile = profile()
    skewed_profile.skew = 0.25
    skewed = TabulatedTiming(skewed_profile)
    assert skewed.needs_longest_context
    assert not even.needs_longest_context
    shape = PassShape(4, 400)
    assert skewed.price_pass_ms(shape) == even.price_pass_ms(shape)  # nobody said
    shape.longest_context_tokens = 200
    mean, longest = even.price_pass_ms(PassShape(4, 400)), even.price_pass_ms(PassShape(4, 800))
    assert longest > mean
    assert skewed.price_pass_ms(shape) == pytest.approx(mean + 0.25 * (longest - mean))
    shape.longest_context_tokens = 100  # all alike
    assert skewed.price_pass_ms(shape) == mean


def test_the_profilers_own_fit_is_read() -> None:
    meta = "skew_fit: {per_tp: {1: {alpha_default: 0.0543}, 2: {alpha_default: 0.0654}}}"
    assert (read_skew(meta, 1), read_skew(meta, 2), read_skew(meta, 4)) == (0.0543, 0.0654, 0.0)
    assert read_skew("", 1) == read_skew("[", 1) == read_skew("skew_fit: 3", 1) == 0.0
