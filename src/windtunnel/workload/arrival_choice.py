"""From the configuration of an arrival process to arrival times.

Decides which process a configuration means, and how many of its arrivals are wanted: a number of them, those before
a time, or all that were recorded.
"""

from __future__ import annotations

import inspect
from array import array
from math import isfinite

import numpy as np

from windtunnel.config.arrival import ARRIVALS, ArrivalConfig
from windtunnel.config.synthetic import MAX_SYNTHETIC_REQUESTS, GeneratedLoad
from windtunnel.errors import InputError, PluginError
from windtunnel.plugins import load_object
from windtunnel.workload.arrivals import (
    INFINITE,
    ArrivalProcess,
    Constant,
    EvenGaps,
    GammaGaps,
    Modulated,
    Poisson,
    Recorded,
    Renewal,
    Shifted,
    WeibullGaps,
    times_before_ms,
)
from windtunnel.workload.rates import Diurnal, ExponentialRamp, PiecewiseLinear, Rate
from windtunnel.workload.streams import Streams
from windtunnel.workload.traces import load_trace

DAY_S = 86_400.0
MOST_OF_A_PLUGIN = 10_000_000  # arrivals before a time, which may never come
_CONSTANT_RATE = ("constant", "poisson", "gamma", "weibull")
_STREAM = "arrival-times"


class ArrivalChoice:
    """The arrival process of a load.

    Args:
        load: its `rate`, `burstiness` and `interval_ms` say what it is, if `arrival` does not.
        arrival: what it is.
        streams: where its draws come from.
        field: where `arrival` stands in the configuration, for errors.
        starts_with_gap: whether processes of a constant random rate begin with a gap instead of an arrival at zero.
        start_s: added to all arrivals.
    """

    def __init__(
        self,
        load: GeneratedLoad | None,
        arrival: ArrivalConfig | None,
        streams: Streams,
        *,
        field: str,
        starts_with_gap: bool = False,
        start_s: float = 0.0,
    ) -> None:
        if arrival is None:
            assert load is not None
            if load.interval_ms is not None:
                arrival = ArrivalConfig(kind="constant", interval_ms=load.interval_ms)
            elif load.burstiness is not None:
                arrival = ArrivalConfig(kind="gamma", rate=load.rate, burstiness=load.burstiness)
            else:
                arrival = ArrivalConfig(kind="poisson", rate=load.rate)
        self._arrival = arrival
        self._streams = streams
        self._field = field
        self._starts_with_gap = starts_with_gap
        self._start_ms = start_s * 1000.0

    def times_ms(self, count: int | None, duration_s: float | None = None, *, field: str) -> array[float]:
        """Arrival times in ms, never decreasing.

        Args:
            count: how many; None for those before `duration_s`, or without it all that were recorded.
            duration_s: see `count`.
            field: what errors about the number of arrivals are about.

        Raises:
            InputError: there are fewer than `count`, or none or too many before `duration_s`, or a file or an object
                cannot be used.
            PluginError: a process of the user misbehaved.
        """
        if count is None and duration_s is not None:
            most = MAX_SYNTHETIC_REQUESTS if self._arrival.kind in ARRIVALS else MOST_OF_A_PLUGIN
            try:
                if self._expects_more_than(most, duration_s * 1000.0):
                    raise InputError(
                        f"more than {most:,} arrivals are to be expected, expected fewer: they fit in memory"
                    )
                return times_before_ms(self.process, duration_s * 1000.0, most)
            except InputError as error:
                raise InputError(error.message, field=f"{field}.duration_s") from None
        process = self.process()
        if count is None:
            assert isinstance(process, Recorded)
            count = len(process.recorded_ms)
        times = process.times_ms(count)
        if count and times[-1] == INFINITE and self._arrival.kind != "constant":
            available = int(np.searchsorted(np.array(times), INFINITE))
            raise InputError(f"has {available:,} arrivals, expected the {count:,} that are needed", field=self._field)
        return times

    def _expects_more_than(self, count: int, end_ms: float) -> bool:
        """Whether so many arrivals are to be expected before `end_ms`, as far as that is known without drawing them."""
        arrival = self._arrival
        if arrival.kind in _CONSTANT_RATE:
            rate = arrival.rate or (1000.0 / arrival.interval_ms if arrival.interval_ms else 0.0)
            return rate * end_ms > count * 1000.0
        if arrival.kind in ARRIVALS and arrival.kind != "recorded":
            return bool(_rate(arrival).times_ms(np.array([float(count)]))[0] < end_ms)
        return False

    def process(self) -> ArrivalProcess:
        """The process, at its beginning."""
        process = self._built_in() if self._arrival.kind in ARRIVALS else self._plugin()
        return Shifted(process, self._start_ms) if self._start_ms else process

    def _built_in(self) -> ArrivalProcess:
        arrival = self._arrival
        streams = self._streams
        gap_first = self._starts_with_gap
        rate = arrival.rate or 0.0
        if arrival.kind == "constant":
            return Constant(1000.0 / rate if arrival.interval_ms is None else arrival.interval_ms)
        if arrival.kind == "poisson" and not arrival.fit_rate:
            return Poisson(rate, streams.stream(_STREAM), starts_with_gap=gap_first)
        if arrival.kind == "recorded":
            return Recorded(_recorded_ms(arrival.path or "", self._field))
        rng = streams.generator(_STREAM)
        if arrival.kind == "weibull":
            gaps = WeibullGaps(arrival.shape or 1.0, rng)
            return Renewal(rate, gaps, starts_with_gap=gap_first, fits_rate=arrival.fit_rate)
        shape = arrival.burstiness or 1.0
        if arrival.kind in ("poisson", "gamma"):
            if shape == 1.0 and not arrival.fit_rate:
                return Poisson(rate, streams.stream(_STREAM), starts_with_gap=gap_first)
            return Renewal(rate, GammaGaps(shape, rng), starts_with_gap=gap_first, fits_rate=arrival.fit_rate)
        return Modulated(_rate(arrival), EvenGaps() if arrival.evenly else GammaGaps(shape, rng))

    def _plugin(self) -> ArrivalProcess:
        name = self._arrival.kind
        found = load_object(name, f"{self._field}.kind", ARRIVALS)
        made = found
        if callable(found) and (inspect.isclass(found) or not hasattr(found, "times_ms")):
            try:
                takes_rng = "rng" in inspect.signature(found).parameters
            except ValueError:  # some builtins do not tell
                takes_rng = False
            try:
                made = found(rng=self._streams.stream(_STREAM)) if takes_rng else found()
            except (Exception, SystemExit) as error:
                raise PluginError(f"{name}: making it raised {error!r}") from error
        if not callable(getattr(made, "times_ms", None)):
            message = f"{name!r} is no arrival process: it has no method times_ms(count)"
            raise InputError(message, field=f"{self._field}.kind")
        return CheckedArrivals(made, name)  # type: ignore[arg-type]  # its method was looked up just above


class CheckedArrivals:
    """A user's process, whose answers are looked at."""

    def __init__(self, process: ArrivalProcess, name: str) -> None:
        self._process = process
        self._name = name

    def times_ms(self, count: int) -> array[float]:
        try:
            answer = [float(time_ms) for time_ms in self._process.times_ms(count)]
        except (Exception, SystemExit) as error:
            raise PluginError(f"{self._name}: times_ms({count}) raised {error!r}") from error
        problem = ""
        if len(answer) != count:
            problem = f"returned {len(answer)} times, expected {count}"
        for number, time_ms in enumerate(answer):
            if not isfinite(time_ms) or time_ms < 0.0:
                problem = f"returned {time_ms} for arrival {number}, expected a finite number of at least 0"
            elif number and time_ms < answer[number - 1]:
                problem = f"returned {time_ms} for arrival {number}, after {answer[number - 1]}: expected no decrease"
            if problem:
                break
        if problem:
            raise PluginError(f"{self._name}: times_ms({count}) {problem}")
        return array("d", answer)


def _rate(arrival: ArrivalConfig) -> Rate:
    """The rate over time of a process whose rate changes."""
    rate = arrival.rate or 0.0
    if arrival.kind == "diurnal":
        period_s = arrival.period_s or DAY_S
        peak_s = period_s / 2.0 if arrival.peak_s is None else arrival.peak_s
        return Diurnal(rate, arrival.amplitude or 0.0, period_s, peak_s)
    if arrival.kind == "ramp":
        start, end, ramp_s = arrival.start_rate or 0.0, arrival.end_rate or 0.0, arrival.ramp_s or 0.0
        if arrival.curve == "exponential":
            return ExponentialRamp(start, end, ramp_s)
        return PiecewiseLinear([(ramp_s, start, end)], end)
    if arrival.kind == "step":
        steps = arrival.rates or []
        pieces = [(arrival.step_s or 0.0, step, step) for step in steps]
        return PiecewiseLinear(pieces, None if arrival.repeat else steps[-1])
    start_s, spike_s, spike = arrival.spike_start_s or 0.0, arrival.spike_s or 0.0, arrival.spike_rate or 0.0
    pieces = [(start_s, rate, rate), (spike_s, spike, spike)]
    if arrival.period_s is not None:
        pieces.append((arrival.period_s - start_s - spike_s, rate, rate))
    return PiecewiseLinear([piece for piece in pieces if piece[0] > 0.0], None if arrival.period_s else rate)


def _recorded_ms(path: str, field: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The arrival times of what a trace sends on its own account."""
    workload = load_trace([path])
    if workload.needs_concurrency or (workload.loading is not None and workload.loading.without_arrival):
        raise InputError(f"{path} has requests without an arrival time, expected one for each", field=f"{field}.path")
    return np.array(workload.time_ms, dtype=np.float64)[workload.roots()]
