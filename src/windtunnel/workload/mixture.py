"""A mixed load: classes of clients, each with its own arrivals, lengths, sessions and service levels.

Decides how classes share one workload: their sessions stand in it class after class, so at equal times the class that
is named first goes first, and no two classes have any content in common. Every stream of a class is named after it, so
a change to one class leaves the draws of the others as they are. A class with a random constant rate begins with a gap,
not with an arrival at zero: all classes at once there would be a burst that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.config.synthetic import ClassConfig
from windtunnel.workload.arrival_choice import ArrivalChoice
from windtunnel.workload.closed_loop import ClosedLoop
from windtunnel.workload.session import Workload
from windtunnel.workload.streams import Streams
from windtunnel.workload.synthetic import add_sessions


def mixed_workload(
    classes: Mapping[str, ClassConfig], *, block_size: int, seed: int = 0, speedup: float = 1.0
) -> Workload:
    """Build the requests of all classes.

    Args:
        classes: the classes by name.
        block_size: tokens per block of the engine; `prefix_ratio` counts its blocks.
        seed: of the whole simulation.
        speedup: divides arrival times and turn delays.

    Raises:
        InputError: times are too large, there are too many requests, or a file or an object cannot be used.
    """
    workload = Workload("mixed")
    origin = 0
    for name, config in classes.items():
        field = f"workload.classes.{name}"
        streams = Streams(seed, f"class/{name}")
        arrival_ms = None
        if config.concurrency is None:
            choice = ArrivalChoice(
                config,
                config.arrival,
                streams,
                field=f"{field}.arrival",
                starts_with_gap=True,
                start_s=config.start_s,
            )
            arrival_ms = choice.times_ms(config.requests, config.duration_s, field=field)
        first = workload.num_sessions
        origin = add_sessions(
            workload,
            config,
            arrival_ms,
            streams,
            block_size=block_size,
            speedup=speedup,
            first_origin=origin,
            field=field,
        )
        workload.end_class(name)
        if config.concurrency is not None:
            loop = ClosedLoop(config.concurrency, first, workload.num_sessions, config.concurrency_by)
            workload.closed_loops.append(loop)
    return workload
