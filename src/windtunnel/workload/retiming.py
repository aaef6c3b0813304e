"""A trace at other times: its requests as they are, its arrivals from an arrival process.

Decides which request gets which arrival: the one that came first gets the first, those that came at once go by number.
Only what has an arrival of its own is moved; turns and requests with dependencies keep their delays.
"""

from __future__ import annotations

import numpy as np

from windtunnel.config.arrival import ArrivalConfig
from windtunnel.errors import InputError
from windtunnel.workload.arrival_choice import ArrivalChoice, CheckedArrivals
from windtunnel.workload.arrivals import ArrivalProcess
from windtunnel.workload.session import MAX_TIME_MS, Workload
from windtunnel.workload.streams import Streams


def retime(workload: Workload, arrival: ArrivalConfig | ArrivalProcess, *, seed: int = 0, speedup: float = 1.0) -> None:
    """Replace the arrival times of a workload, in place; its clock starts with the process.

    Args:
        workload: what was read from a trace.
        arrival: when its requests arrive instead: what a configuration says, or a process of the user's own.
        seed: of the whole simulation.
        speedup: divides the new arrival times, as it has divided the delays.

    Raises:
        InputError: the process has too few arrivals, times are too large, or a file or an object cannot be used.
        PluginError: a process of the user misbehaved.
    """
    roots = workload.roots()
    field = "workload.arrival"
    if isinstance(arrival, ArrivalConfig):
        times = ArrivalChoice(None, arrival, Streams(seed), field=field).times_ms(len(roots), field=field)
    else:
        times = CheckedArrivals(arrival, type(arrival).__name__).times_ms(len(roots))
    arrivals_ms = np.array(times, dtype=np.float64) / speedup
    if not arrivals_ms.max(initial=0.0) < MAX_TIME_MS:
        message = f"found arrivals up to {arrivals_ms.max():g} ms, expected less than {MAX_TIME_MS:g}"
        raise InputError(message, field=field)
    times_ms = np.frombuffer(workload.time_ms, dtype=np.float64)
    before_ms = times_ms[roots]
    before_ms[np.isnan(before_ms)] = 0.0
    times_ms[roots[np.argsort(before_ms, kind="stable")]] = arrivals_ms
    workload.needs_concurrency = ""
