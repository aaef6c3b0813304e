"""Measured profiles: every measurement is met, what lies between and beyond is sane, nonsense is one clear line."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel import Config, InputError, simulate
from windtunnel.timing.base import PassShape
from windtunnel.timing.mixed_pass import mixed_pass_ms
from windtunnel.timing.mocker_profile import MockerProfile
from windtunnel.timing.planner_profile import PlannerProfile
from windtunnel.timing.profile import load_profile
from windtunnel.timing.scattered import ScatteredDecodes
from windtunnel.timing.tabulated import TabulatedTiming

H200 = str(files("windtunnel.validation") / "data" / "dynamo-h200-llama-3.1-8b-fp8.json")


def arrays_of_h200() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(H200).read_text())
    return document


def prompt(tokens: int, start: int = 0, num_decodes: int = 0, context: int = 0) -> PassShape:
    shape = PassShape(num_decodes, num_decodes * context)
    shape.add_chunk(start, tokens, 10**6, sampled=False)
    return shape


@pytest.fixture(scope="module")
def h200() -> PlannerProfile:
    profile = load_profile(H200)
    assert isinstance(profile, PlannerProfile)
    return profile


# --- a planner's sweep


def test_every_decode_that_was_measured_costs_what_was_measured(h200: PlannerProfile) -> None:
    timing = TabulatedTiming(h200)
    assert len(h200.batches) == 39
    for batch, context, itl in zip(h200.batches, h200.contexts, h200.itl_ms, strict=True):
        assert timing.price_pass_ms(PassShape(int(batch), int(batch * context))) == pytest.approx(itl, rel=1e-12)


def test_every_prompt_that_was_measured_costs_what_was_measured(h200: PlannerProfile) -> None:
    timing = TabulatedTiming(h200)
    raw = arrays_of_h200()
    for length, ttft in zip(raw["prefill_isl"], raw["prefill_ttft"], strict=True):
        assert timing.price_pass_ms(prompt(length)) == pytest.approx(ttft, rel=1e-12)


def test_decodes_beyond_the_engines_own_limit_are_left_out_and_named(h200: PlannerProfile) -> None:
    assert h200.measured.decodes == (1, 1049)
    assert h200.notes == [
        f"{H200}: left out decodes that more requests did not slow down: the engine ran fewer "
        "(1311 at 350, 1573 at 350)"
    ]


def test_a_context_that_was_held_out_is_predicted_from_the_others(h200: PlannerProfile) -> None:
    errors = []
    for context in np.unique(h200.contexts):
        kept = h200.contexts != context
        surface = ScatteredDecodes(h200.batches[kept], h200.contexts[kept], h200.itl_ms[kept])
        for batch, itl in zip(h200.batches[~kept], h200.itl_ms[~kept], strict=True):
            errors.append(abs(surface.at(int(batch), np.array([context]))[0] / itl - 1))
    assert np.mean(errors) < 0.06  # a fitted plane: 0.059


def test_a_later_chunk_costs_more_than_a_first_one_of_its_size(h200: PlannerProfile) -> None:
    timing = TabulatedTiming(h200)
    assert timing.price_pass_ms(prompt(2000, start=12000)) > timing.price_pass_ms(prompt(2000)) * 1.1
    whole = timing.price_pass_ms(prompt(4000))
    halves = timing.price_pass_ms(prompt(2000)) + timing.price_pass_ms(prompt(2000, start=2000))
    assert whole < halves < whole + 2 * h200.prefill.fixed_ms


def test_two_prompts_in_a_pass_share_its_fixed_cost(h200: PlannerProfile) -> None:
    timing = TabulatedTiming(h200)
    both = prompt(1000)
    both.add_chunk(0, 1000, 10**6, sampled=False)
    one = timing.price_pass_ms(prompt(1000))
    assert 1.3 * one < timing.price_pass_ms(both) < 2 * one - 0.8 * h200.prefill.fixed_ms


@given(
    tokens=st.integers(1, 8000),
    num_decodes=st.integers(1, 600),
    context=st.integers(1, 20000),
    start=st.integers(0, 9000),
)
def test_a_mixed_pass_costs_at_least_each_part_and_at_most_both(
    h200: PlannerProfile, tokens: int, num_decodes: int, context: int, start: int
) -> None:
    timing = TabulatedTiming(h200)
    mixed = timing.price_pass_ms(prompt(tokens, start, num_decodes, context))
    prompts = timing.price_pass_ms(prompt(tokens, start))
    decodes = timing.price_pass_ms(PassShape(num_decodes, num_decodes * context))
    assert max(prompts, decodes) <= mixed <= prompts + decodes


def test_the_weights_of_a_mixed_pass_are_read_once() -> None:
    assert mixed_pass_ms(20.0, 9.0, 4.0) == 25.0
    assert mixed_pass_ms(2.0, 9.0, 4.0) == 9.0


@given(num_decodes=st.integers(1, 1200), mean=st.integers(1, 30000), passes=st.integers(1, 80))
def test_a_run_costs_what_its_passes_cost_bit_for_bit(
    h200: PlannerProfile, num_decodes: int, mean: int, passes: int
) -> None:
    timing = TabulatedTiming(h200)
    start = num_decodes * mean
    single = [timing.price_pass_ms(PassShape(num_decodes, start + i * num_decodes)) for i in range(passes)]
    assert timing.price_run_ms(num_decodes, start, -1, passes).tolist() == single


@given(num_decodes=st.integers(1, 1049))
def test_a_longer_context_never_costs_less(h200: PlannerProfile, num_decodes: int) -> None:
    timing = TabulatedTiming(h200)
    prices = timing.price_run_ms(num_decodes, 350 * num_decodes, -1, 4000)
    assert (np.diff(prices) >= -1e-9 * prices[:-1]).all()


@given(
    points=st.lists(
        st.tuples(st.integers(1, 512), st.integers(1, 100_000), st.floats(0.5, 500)),
        min_size=1,
        max_size=20,
        unique_by=lambda p: p[:2],
    )
)
def test_points_at_no_grid_at_all_are_met(points: list[tuple[int, int, float]]) -> None:
    batches, contexts, ms = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    surface = ScatteredDecodes(batches, contexts, ms)
    for batch, context, measured in points:
        assert surface.at(batch, np.array([float(context)]))[0] == pytest.approx(measured, rel=1e-6)


def test_the_directory_of_a_sweep_is_read_as_npz_or_as_json(tmp_path: Path) -> None:
    raw = arrays_of_h200()
    decode = {key: raw[key] for key in ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens")}
    prefill = {key: raw[key] for key in ("prefill_isl", "prefill_ttft")}
    (tmp_path / "decode_raw_data.json").write_text(json.dumps(decode))
    (tmp_path / "selected_prefill_interpolation").mkdir()
    np.savez(tmp_path / "selected_prefill_interpolation" / "raw_data.npz", **prefill)
    one, other = TabulatedTiming(load_profile(str(tmp_path))), TabulatedTiming(load_profile(H200))
    shape = prompt(777, 100, 17, 4000)
    assert one.price_pass_ms(shape) == other.price_pass_ms(shape)


def test_a_simulation_is_priced_by_the_profile_that_its_configuration_names() -> None:
    load = {"synthetic": {"isl": 2134, "osl": 3, "requests": 1, "interval_ms": 0}}
    config = Config.model_validate({"workload": load, "timing": {"kind": f"profile:{H200}", "speedup": 2.0}})
    result = simulate(config)
    timing = TabulatedTiming(load_profile(H200))
    decodes = timing.price_pass_ms(PassShape(1, 2135)) + timing.price_pass_ms(PassShape(1, 2136))
    assert result.record.end_ms == pytest.approx((49.968438 + decodes) / 2)


# --- a mocker's grid


def mocker_arrays() -> dict[str, Any]:
    kv = np.array([0.0, 10_000, 40_000, 100_000])
    context = np.array([1.0, 500, 1000, 8000])
    itl = 5 + 2e-4 * kv[:, None] + 1e-3 * context[None, :] + 1e-9 * kv[:, None] * context[None, :]
    itl[2, 2] += 3.0
    return {
        "prefill_isl": np.array([100.0, 1000, 4000]),
        "prefill_ttft_ms": np.array([10.0, 20, 60]),
        "decode_active_kv_tokens": kv,
        "decode_context_length": context,
        "decode_itl": itl,
    }


def bilinear(arrays: dict[str, Any], tokens: float, context: float) -> float:
    """The interpolation as its owner does it: cell by cell, and the edge cells go on for ever."""
    k, c, z = arrays["decode_active_kv_tokens"], arrays["decode_context_length"], arrays["decode_itl"]
    i = min(max(int(np.searchsorted(k, tokens, side="right")) - 1, 0), len(k) - 2)
    j = min(max(int(np.searchsorted(c, context, side="right")) - 1, 0), len(c) - 2)
    u, v = (tokens - k[i]) / (k[i + 1] - k[i]), (context - c[j]) / (c[j + 1] - c[j])
    low = z[i, j] + v * (z[i, j + 1] - z[i, j])
    high = z[i + 1, j] + v * (z[i + 1, j + 1] - z[i + 1, j])
    return max(float(low + u * (high - low)), 1.0)


@given(num_decodes=st.integers(1, 500), mean=st.integers(1, 20_000))
def test_a_grid_is_bilinear_in_active_tokens_and_mean_context(num_decodes: int, mean: int) -> None:
    arrays = mocker_arrays()
    timing = TabulatedTiming(MockerProfile(arrays, "grid"))
    tokens = num_decodes * mean
    assert timing.price_pass_ms(PassShape(num_decodes, tokens)) == pytest.approx(
        bilinear(arrays, tokens, mean), rel=1e-9
    )


@given(num_decodes=st.integers(1, 500), mean=st.integers(1, 9000), passes=st.integers(1, 80))
def test_a_run_on_a_grid_costs_what_its_passes_cost(num_decodes: int, mean: int, passes: int) -> None:
    timing = TabulatedTiming(MockerProfile(mocker_arrays(), "grid"))
    start = num_decodes * mean
    single = [timing.price_pass_ms(PassShape(num_decodes, start + i * num_decodes)) for i in range(passes)]
    assert timing.price_run_ms(num_decodes, start, -1, passes).tolist() == single


def test_contexts_below_the_second_line_of_a_grid_are_not_measured(tmp_path: Path) -> None:
    np.savez(tmp_path / "perf_data.npz", **mocker_arrays())
    profile = load_profile(str(tmp_path / "perf_data.npz"))
    assert "below a mean context of 500 tokens" in profile.notes[0]
    assert not profile.measured.holds_decodes(4, 4 * 499)
    assert profile.measured.holds_decodes(4, 4 * 500)
    assert not profile.measured.holds_prompts(4001)


# --- nonsense


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z_itl": None}, "expected z_itl too"),
        ({"z_itl": [1.0, 2.0]}, "z_itl: found shape (2,), expected one axis as long as x_kv_usage: (41,)"),
        ({"z_itl": [[1.0] * 41]}, "z_itl: found shape (1, 41), expected one axis as long as x_kv_usage: (41,)"),
        ({"y_context_length": [0.0] * 41}, "y_context_length: entry 0 is 0, expected a number above 0"),
        ({"z_itl": "much"}, "z_itl: expected an array of numbers"),
        ({"z_itl": [float("nan")] * 41}, "z_itl: entry 0 is nan, expected a number above 0"),
        ({"max_kv_tokens": [1, 2]}, "max_kv_tokens: expected one number of at least 1"),
        ({"prefill_isl": [5], "prefill_ttft": [9.0]}, "prefill_isl: expected at least 2 different lengths"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    raw = arrays_of_h200()
    raw.update(change)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    with pytest.raises(InputError) as caught:
        load_profile(str(path))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"decode_itl": np.ones((4, 3))},
            "decode_itl: found shape (4, 3), expected (4, 4): active KV tokens by context",
        ),
        ({"decode_itl": np.zeros((4, 4))}, "decode_itl: expected finite ms above 0 everywhere"),
        ({"decode_context_length": [1.0, 1, 2, 3]}, "decode_context_length: expected increasing numbers"),
        ({"prefill_ttft_ms": [1.0]}, "prefill_ttft_ms: found shape (1,), expected (3,), that of prefill_isl"),
        ({"decode_active_kv_tokens": None}, "expected decode_active_kv_tokens too"),
    ],
)
def test_a_grid_that_makes_no_sense_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {**mocker_arrays(), **change}
    np.savez(tmp_path / "grid.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(InputError, match=r"grid\.npz") as caught:
        load_profile(str(tmp_path / "grid.npz"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"", "cannot be read as npz or JSON"),
        ("a.npz", b"PK\x03\x04nothing", "cannot be read as npz or JSON"),
        ("a.json", b"{", "cannot be read as JSON"),
        ("a.json", b"[1]", "expected a JSON object of arrays"),
        ("a.json", b'{"rows": [1]}', "found rows; expected the arrays of a Dynamo planner profile"),
    ],
)
def test_a_file_that_is_no_profile_is_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_profile(str(tmp_path / name))


def test_an_npz_of_python_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z_itl=np.array([print], dtype=object))
    with pytest.raises(InputError, match="cannot be read as npz"):
        load_profile(str(tmp_path / "a.npz"))


def test_a_path_where_nothing_is_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory, expected a measured profile"):
        load_profile(str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"expected selected_prefill_interpolation/raw_data\.npz or prefill_raw_data"):
        load_profile(str(tmp_path))
