"""Fits find the parameters that made the data, keep to what was assumed where data are silent, and say so."""

from __future__ import annotations

import random
from importlib.resources import files

import numpy as np
import pytest

from windtunnel import Config, InputError
from windtunnel.assembly import build_kernels
from windtunnel.calibration import Benchmark, Fit, Observations, PassObservation, calibrate, read_observations
from windtunnel.calibration.closed_loop import play_benchmark
from windtunnel.timing.base import PassShape, TimingModel
from windtunnel.timing.calibrated import CalibratedTiming

pytest.importorskip("scipy")

H200 = str(files("windtunnel.validation") / "data" / "dynamo-h200-llama-3.1-8b-fp8.json")
TRUE = {"pass_ms": 1.4, "request_ms": 0.03, "decode_scale": 1.2, "prefill_scale": 0.85}


@pytest.fixture(scope="module")
def kernels() -> TimingModel:
    options = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h200", "dtype": "fp8"}
    model, _ = build_kernels(Config.model_validate({"timing": options}))
    return model


def passes(kernels: TimingModel, count: int, noise: float = 0.0, prompts: bool = True) -> list[PassObservation]:
    draw = random.Random(3)
    truth = CalibratedTiming(kernels, **TRUE)
    seen = []
    for number in range(count):
        decodes = draw.choice((1, 2, 8, 32, 128, 256))
        shape = PassShape(decodes, decodes * draw.choice((100, 500, 2000, 8000)) + number)
        if prompts and number % 3 == 0:
            shape.add_chunk(draw.choice((0, 1000)), draw.choice((100, 500, 2000)), 10**6, sampled=False)
        seen.append(PassObservation(shape, truth.price_pass_ms(shape) * draw.gauss(1.0, noise), f"row {number}"))
    return seen


def assert_holds(fit: Fit, name: str, value: float) -> None:
    found = next(parameter for parameter in fit.parameters if parameter.name == name)
    assert found.low <= value <= found.high
    assert found.is_fitted


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_passes_give_back_what_made_them(kernels: TimingModel, noise: float) -> None:
    fit = calibrate(Observations(passes=passes(kernels, 200, noise)), kernels)
    assert_holds(fit, "pass_overhead_ms", TRUE["pass_ms"])
    assert_holds(fit, "request_overhead_ms", TRUE["request_ms"])
    assert_holds(fit, "decode_scale", TRUE["decode_scale"])
    assert_holds(fit, "prefill_scale", TRUE["prefill_scale"])
    assert fit.value("decode_scale") == pytest.approx(1.2, rel=0.02)
    assert fit.value("prefill_scale") == pytest.approx(0.85, rel=0.03)
    assert fit.held_out is not None
    assert fit.held_out.median < 0.01 + noise
    assert fit.before.median > fit.fitted.median
    assert fit.warnings == ()


def test_outliers_move_little(kernels: TimingModel) -> None:
    clean = passes(kernels, 150, 0.02)
    hiccups = [PassObservation(one.shape, one.ms * (5 if i % 20 == 0 else 1), one.place) for i, one in enumerate(clean)]
    with_them, without = (calibrate(Observations(passes=data), kernels) for data in (hiccups, clean))
    assert with_them.value("decode_scale") == pytest.approx(without.value("decode_scale"), rel=0.03)


def test_what_the_data_do_not_tell_is_named(kernels: TimingModel) -> None:
    truth = CalibratedTiming(kernels, **TRUE)
    shapes = [PassShape(16, 16 * context) for context in (1000, 1001, 1002, 1003)]
    seen = [PassObservation(shape, truth.price_pass_ms(shape), "row") for shape in shapes]
    fit = calibrate(Observations(passes=seen), kernels)
    assert "nothing in the data depends on prefill_scale: 1 is an assumption" in fit.warnings
    assert any(warning.startswith("the data say little about pass_overhead_ms") for warning in fit.warnings)
    assert fit.value("prefill_scale") == 1.0
    assert fit.held_out is None


def test_a_benchmark_gives_back_what_made_it(kernels: TimingModel) -> None:
    config = Config.model_validate({"engine": {"block_size": 16, "num_gpu_blocks": 50_000}})
    truth = CalibratedTiming(kernels, **TRUE)
    runs = []
    for concurrency in (1, 8, 64):
        asked = Benchmark(concurrency, 3 * concurrency, 1000, 60, None, None, f"c{concurrency}")
        ttft, tpot = play_benchmark(asked, truth, config)
        runs.append(Benchmark(concurrency, asked.requests, 1000, 60, ttft + 12.0, tpot, asked.place))
    fit = calibrate(Observations(benchmarks=runs), kernels, lambda run, timing: play_benchmark(run, timing, config))
    assert fit.fitted.median < 0.02 < fit.before.median
    assert_holds(fit, "prefill_scale", TRUE["prefill_scale"])
    assert_holds(fit, "client_ms", 12.0)
    assert_holds(fit, "decode_scale", TRUE["decode_scale"])


def test_a_closed_loop_has_so_many_requests_in_flight(kernels: TimingModel) -> None:
    config = Config()
    truth = CalibratedTiming(kernels)
    alone, many = (play_benchmark(Benchmark(c, 20, 500, 50, None, None, ""), truth, config) for c in (1, 20))
    assert alone[1] < many[1]
    assert many[0] > 5 * alone[0]  # all are sent at once and wait for each other


# --- real data: the H200 sweep, 38 decodes up to the engine's 1,024 requests


def test_held_out_contexts_of_a_real_sweep(kernels: TimingModel) -> None:
    """100 seeded halves of the six contexts, fitted on one and judged on the other."""
    seen = [one for one in read_observations([H200]).passes if one.shape.num_decodes and one.shape.num_decodes <= 1024]
    assert len(seen) == 38
    groups = sorted({one.group for one in seen})
    errors = []
    for seed in range(100):
        half = set(random.Random(seed).sample(groups, 3))
        fit = calibrate(Observations(passes=[one for one in seen if one.group in half]), kernels)
        timing = CalibratedTiming(
            kernels,
            decode_scale=fit.value("decode_scale"),
            pass_ms=fit.value("pass_overhead_ms"),
            request_ms=fit.value("request_overhead_ms"),
        )
        rest = [one for one in seen if one.group not in half]
        errors.append(np.mean([abs(timing.price_pass_ms(one.shape) / one.ms - 1) for one in rest]))
    assert np.median(errors) <= 0.05


# --- nonsense


def test_contradictions_are_named(kernels: TimingModel) -> None:
    shape = PassShape(4, 4000)
    seen = [PassObservation(shape, 8.0, "a.csv:2"), PassObservation(shape, 20.0, "a.csv:9")]
    with pytest.raises(
        InputError, match=r"a\.csv:2 and a\.csv:9 contradict each other: the same pass took 8 and 20 ms"
    ):
        calibrate(Observations(passes=seen), kernels)
    runs = [Benchmark(4, 10, 100, 10, 5.0, tpot, place) for tpot, place in ((8.0, "a"), (20.0, "b"))]
    with pytest.raises(InputError, match="a and b contradict each other: the same load had a TPOT of 8 and 20 ms"):
        calibrate(Observations(benchmarks=runs), kernels)


def test_too_little_is_one_line(kernels: TimingModel) -> None:
    with pytest.raises(InputError, match="found 1 measurement, expected at least 2"):
        calibrate(Observations(passes=passes(kernels, 1)), kernels)
    runs = [Benchmark(4, 10, 100, 10, None, None, "x.json")] * 2
    with pytest.raises(InputError, match=r"x\.json: has neither a mean TTFT nor a mean TPOT above 0"):
        calibrate(Observations(benchmarks=runs), kernels)


def test_data_of_something_else_are_distrusted(kernels: TimingModel) -> None:
    draw = random.Random(0)
    wild = [PassObservation(one.shape, one.ms * draw.choice((0.2, 1, 20)), one.place) for one in passes(kernels, 60)]
    assert any(
        "may be of another model, GPU or engine" in line
        for line in calibrate(Observations(passes=wild), kernels).warnings
    )
