"""Least squares over five physical parameters, with what is known of them beforehand, and what the data say of it.

A pass takes pass_overhead + request_overhead * requests + decode_scale * kernels of decodes + prefill_scale * kernels
that its prompts add; what a client sees of a first token takes client_ms more. Each parameter starts from what other
machines had (a mean and a width, below): few or one-sided data then move only what they speak of. Outliers count
less than in proportion (soft L1). Intervals come from the curvature at the optimum; a parameter whose interval the data
did not narrow is named, since its value is an assumption. Errors are told on observations that were held out, by
groups of alike ones, because neighbours flatter.
Source of the starting values: an H200 under vLLM (38 decode points) and 7 groups of benchmarks of other deployments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.calibration.observations import Benchmark, Observations, PassObservation
from windtunnel.errors import InputError
from windtunnel.timing.base import FloatArray, TimingModel
from windtunnel.timing.calibrated import CalibratedTiming, parts_ms

IntArray = NDArray[np.int64]
# What a benchmark with such a timing model would measure: mean TTFT and TPOT in ms.
Play = Callable[[Benchmark, TimingModel], tuple[float, float]]


@dataclass(frozen=True)
class Parameter:
    """One number that is fitted.

    Attributes:
        mean, width: what other machines had, and how far they were from each other.
        low, high: what is possible at all.
    """

    name: str
    mean: float
    width: float
    low: float
    high: float


PARAMETERS = (
    Parameter("pass_overhead_ms", 0.65, 0.5, 0.0, 100.0),
    Parameter("request_overhead_ms", 0.016, 0.01, 0.0, 5.0),
    Parameter("decode_scale", 1.0, 0.15, 0.2, 5.0),
    Parameter("prefill_scale", 1.0, 0.15, 0.2, 5.0),
    Parameter("client_ms", 5.0, 10.0, 0.0, 5000.0),
)
PASS, REQUEST, DECODE, PREFILL, CLIENT = range(len(PARAMETERS))

# Relative errors of one observation that nobody can explain: run-to-run noise, and that of a simple model.
PASS_NOISE = 0.03
TPOT_NOISE = 0.03
TTFT_NOISE = 0.10
UNMOVED = 0.7  # an interval this much of what it was before the data: they say little
ENTANGLED = 0.97  # correlation of two parameters that only their sum is known of
MOST_FOLDS = 10
CONTRADICTION = 2.0  # factor between two measurements of the same
POOR = 0.3  # median relative error of a fit that describes nothing


@dataclass(frozen=True)
class FittedParameter:
    """A parameter after the fit.

    Attributes:
        low, high: its 95 % interval. is_fitted: whether any observation depends on it; else it is as it was before.
    """

    name: str
    value: float
    low: float
    high: float
    is_fitted: bool


@dataclass(frozen=True)
class Errors:
    """Relative errors: their median and the one that nine of ten are below, of so many numbers."""

    median: float
    p90: float
    count: int


@dataclass(frozen=True)
class Fit:
    """What came of a calibration.

    Attributes:
        parameters: in the order of `PARAMETERS`.
        fitted: errors on what was fitted. held_out: on what was left out, None if there was one group only.
        before: errors of the parameters that everything started from.
        warnings: what a reader must know, one line each.
    """

    parameters: tuple[FittedParameter, ...]
    before: Errors
    fitted: Errors
    held_out: Errors | None
    warnings: tuple[str, ...]

    def value(self, name: str) -> float:
        """The value of a parameter."""
        return next(parameter.value for parameter in self.parameters if parameter.name == name)


def calibrate(observations: Observations, kernels: TimingModel, play: Play | None = None) -> Fit:
    """Fit the parameters to observations.

    Args:
        kernels: what passes cost without any overhead.
        play: simulates a benchmark; needed if there are any.

    Raises:
        InputError: there is too little to fit, observations contradict each other, or scipy is not installed.
    """
    _check(observations)
    problem = _Problem(observations, kernels, play)
    start = np.zeros(len(PARAMETERS))
    solution, deviations, correlations = problem.solve(np.arange(problem.size))
    fitted = [
        FittedParameter(
            p.name,
            float(p.mean + p.width * solution[i]),
            max(float(p.mean + p.width * (solution[i] - deviations[i])), p.low),
            min(float(p.mean + p.width * (solution[i] + deviations[i])), p.high),
            bool(problem.is_free[i]),
        )
        for i, p in enumerate(PARAMETERS)
    ]
    in_sample = problem.errors(solution)
    warnings = _warnings(problem, solution, deviations, correlations, _summary(in_sample))
    return Fit(
        tuple(fitted),
        _summary(problem.errors(start)),
        _summary(in_sample),
        problem.held_out(),
        tuple(warnings),
    )


class _Problem:
    """Residuals of all observations, as functions of the parameters in widths from their means."""

    def __init__(self, observations: Observations, kernels: TimingModel, play: Play | None) -> None:
        self.kernels = kernels
        self.play = play
        self.benchmarks: list[tuple[Benchmark, bool, bool]] = []
        rows: list[list[float]] = []
        measured: list[float] = []
        noise: list[float] = []
        self.groups: list[str] = []
        for seen in observations.passes:
            rows.append(_features(seen, kernels))
            measured.append(seen.ms)
            noise.append(PASS_NOISE)
            self.groups.append(seen.group)
        self.features = np.array(rows).reshape(len(rows), len(PARAMETERS))
        for benchmark in observations.benchmarks:
            has_ttft, has_tpot = benchmark.ttft_ms is not None, benchmark.tpot_ms is not None
            self.benchmarks.append((benchmark, has_ttft, has_tpot))
            for value, width in ((benchmark.ttft_ms, TTFT_NOISE), (benchmark.tpot_ms, TPOT_NOISE)):
                if value is not None:
                    measured.append(value)
                    noise.append(width)
                    self.groups.append(benchmark.place)
        self.measured = np.array(measured)
        self.noise = np.array(noise)
        self.size = len(measured)
        self.is_free = self._free()
        self._means = np.array([p.mean for p in PARAMETERS])
        self._widths = np.array([p.width for p in PARAMETERS])
        self._low = (np.array([p.low for p in PARAMETERS]) - self._means) / self._widths
        self._high = (np.array([p.high for p in PARAMETERS]) - self._means) / self._widths

    def predict(self, moved: FloatArray, wanted: IntArray | None = None) -> FloatArray:
        """What would be measured, ms, for parameters that are `moved` widths from their means.

        Args:
            wanted: numbers of the observations that are needed; benchmarks of others are not played (NaN).
        """
        values = self._means + self._widths * moved
        predicted = np.full(self.size, math.nan)
        count = len(self.features)
        predicted[:count] = self.features @ values
        needed = np.ones(self.size, dtype=np.bool_) if wanted is None else np.isin(np.arange(self.size), wanted)
        timing = CalibratedTiming(
            self.kernels,
            decode_scale=values[DECODE],
            prefill_scale=values[PREFILL],
            pass_ms=values[PASS],
            request_ms=values[REQUEST],
        )
        at = count
        for benchmark, has_ttft, has_tpot in self.benchmarks:
            width = has_ttft + has_tpot
            if needed[at : at + width].any():
                assert self.play is not None
                ttft, tpot = self.play(benchmark, timing)
                if has_ttft:
                    predicted[at] = ttft + values[CLIENT]
                if has_tpot:
                    predicted[at + width - 1] = tpot
            at += width
        return predicted

    def errors(self, moved: FloatArray, wanted: IntArray | None = None) -> FloatArray:
        """Relative errors of the observations, with their sign."""
        result: FloatArray = self.predict(moved, wanted) / self.measured - 1.0
        return result

    def solve(self, chosen: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Fit to some of the observations.

        Returns:
            The optimum, half its 95 % intervals (both in widths from the means), and the correlations of parameters.
        """
        optimize, special = _scipy()
        free = np.flatnonzero(self.is_free)

        def full(part: FloatArray) -> FloatArray:
            moved = np.zeros(len(PARAMETERS))
            moved[free] = part
            return moved

        def residuals(part: FloatArray) -> FloatArray:
            errors = self.errors(full(part), chosen)[chosen] / self.noise[chosen]
            return np.concatenate([errors, part])

        found = optimize.least_squares(
            residuals,
            np.zeros(len(free)),
            bounds=(self._low[free], self._high[free]),
            loss="soft_l1",
            diff_step=0.05,
            xtol=1e-6,
            max_nfev=60,
        )
        spread = found.fun[: len(chosen)]
        freedom = max(len(chosen) - len(free), 1)
        scale = max(float(np.median(np.abs(spread))) / 0.6745, 1.0)
        precision = found.jac[: len(chosen)].T @ found.jac[: len(chosen)] / scale**2 + np.eye(len(free))
        covariance = np.linalg.inv(precision)
        deviations = np.zeros(len(PARAMETERS))
        deviations[free] = np.sqrt(np.diag(covariance))
        correlations = np.eye(len(PARAMETERS))
        correlations[np.ix_(free, free)] = covariance / np.outer(deviations[free], deviations[free])
        return full(found.x), deviations * float(special.stdtrit(freedom, 0.975)), correlations

    def held_out(self) -> Errors | None:
        """Errors on groups that were left out of the fit, each once."""
        names = sorted(set(self.groups))
        if len(names) < 2:
            return None
        fold_of = {name: i % min(len(names), MOST_FOLDS) for i, name in enumerate(names)}
        folds = np.array([fold_of[group] for group in self.groups])
        errors = []
        for fold in range(folds.max() + 1):
            inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            solution, _, _ = self.solve(inside)
            errors.append(self.errors(solution, outside)[outside])
        return _summary(np.concatenate(errors))

    def _free(self) -> NDArray[np.bool_]:
        """Which parameters any observation depends on."""
        is_free: NDArray[np.bool_] = (self.features != 0.0).any(axis=0)
        for _, has_ttft, has_tpot in self.benchmarks:
            is_free[[PASS, REQUEST, PREFILL]] = True
            is_free[DECODE] |= has_tpot
            is_free[CLIENT] |= has_ttft
        return is_free


def _features(seen: PassObservation, kernels: TimingModel) -> list[float]:
    shape = seen.shape
    decode_ms, prompts_ms = parts_ms(kernels, shape)
    return [1.0, float(shape.num_decodes + len(shape.chunk_tokens)), decode_ms, prompts_ms, float(seen.is_client_time)]


def _check(observations: Observations) -> None:
    count = len(observations.passes) + len(observations.benchmarks)
    if count < 2:
        raise InputError(f"found {count} measurement, expected at least 2 to calibrate with")
    seen: dict[tuple[object, ...], PassObservation] = {}
    for one in observations.passes:
        shape = one.shape
        key = (shape.num_decodes, shape.decode_context_tokens, *shape.chunk_starts, "|", *shape.chunk_tokens)
        other = seen.setdefault((*key, one.is_client_time), one)
        if not 1 / CONTRADICTION < one.ms / other.ms < CONTRADICTION:
            raise InputError(
                f"{other.place} and {one.place} contradict each other: "
                f"the same pass took {other.ms:g} and {one.ms:g} ms"
            )
    runs: dict[tuple[object, ...], Benchmark] = {}
    for run in observations.benchmarks:
        if run.ttft_ms is None and run.tpot_ms is None:
            raise InputError("has neither a mean TTFT nor a mean TPOT above 0", source=run.place)
        before = runs.setdefault((run.concurrency, round(run.input_tokens), round(run.output_tokens)), run)
        if run.tpot_ms and before.tpot_ms and not 1 / CONTRADICTION < run.tpot_ms / before.tpot_ms < CONTRADICTION:
            raise InputError(
                f"{before.place} and {run.place} contradict each other: the same load had a TPOT of "
                f"{before.tpot_ms:g} and {run.tpot_ms:g} ms"
            )


def _warnings(
    problem: _Problem, moved: FloatArray, deviations: FloatArray, correlations: FloatArray, errors: Errors
) -> list[str]:
    warnings = []
    for i, parameter in enumerate(PARAMETERS):
        value = parameter.mean + parameter.width * moved[i]
        if not problem.is_free[i]:
            if i != CLIENT:
                warnings.append(f"nothing in the data depends on {parameter.name}: {value:g} is an assumption")
        elif deviations[i] / 1.96 > UNMOVED:
            warnings.append(f"the data say little about {parameter.name}: {value:.3g} is mostly an assumption")
        elif value <= parameter.low * (1 + 1e-6) + 1e-9 or value >= parameter.high * (1 - 1e-6):
            warnings.append(f"{parameter.name} is at the edge of what is possible, {value:g}")
    for i in range(len(PARAMETERS)):
        for j in range(i):
            if abs(correlations[i, j]) > ENTANGLED:
                names = f"{PARAMETERS[j].name} and {PARAMETERS[i].name}"
                warnings.append(f"the data tell {names} hardly apart: trust their sum, not each")
    if errors.median > POOR:
        warnings.append(
            f"half of the measurements are off by more than {errors.median:.0%} after the fit: they may be of another "
            "model, GPU or engine than the one named"
        )
    return warnings


def _summary(errors: FloatArray) -> Errors:
    sizes = np.abs(errors)
    return Errors(float(np.median(sizes)), float(np.percentile(sizes, 90)), len(sizes))


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, special
    except ImportError:
        raise InputError(
            "calibration needs scipy, which is not installed: pip install 'windtunnel[calibration]'"
        ) from None
    return optimize, special
