"""What a workload means, in a form that two workloads can be compared in, whatever their content is called."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from windtunnel.conversion import Loss, WriteOptions, write_trace, writer_called
from windtunnel.workload.content import output_origin
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace


@dataclass
class Meaning:
    """Everything that a driver, an engine or a report could tell apart; tokens by the order in which they appear."""

    input_tokens: list[int]
    output_tokens: list[int]
    session: list[int]
    turn: list[int]
    waits: list[set[int]]
    by_name: list[bool]  # whether it waits for requests by name, and is not sent if they fail
    time_ms: list[float]
    request_ids: list[str]
    session_ids: list[str | None]
    tokens: list[list[int]]


def tokens_of(workload: Workload, *, with_outputs: bool = True) -> list[list[int]]:
    """Every prompt token by token, equal numbers for equal tokens, in order of appearance."""
    number: dict[tuple[int, int], int] = {}
    result = []
    for request in range(workload.num_requests):
        runs = workload.prompt_runs(request)
        if with_outputs:
            runs = [*runs, (output_origin(request), 0, workload.output_tokens[request])]
        tokens = [(origin, start + i) for origin, start, length in runs for i in range(length)]
        result.append([number.setdefault(token, len(number)) for token in tokens])
    return result


def meaning(workload: Workload, *, with_outputs: bool = True) -> Meaning:
    waits: list[set[int]] = [set() for _ in range(workload.num_requests)]
    for request, following in enumerate(workload.next_turn):
        if following >= 0:
            waits[following].add(request)
    for request, others in workload.dependencies.items():
        waits[request] = set(others)
    first = [workload.first_turn[session] for session in workload.session]
    names = [workload.session_ids[s] if workload.session_ids else None for s in range(workload.num_sessions)]
    return Meaning(
        list(workload.input_tokens),
        list(workload.output_tokens),
        list(workload.session),
        list(workload.turn),
        waits,
        [bool(workload.dependencies.get(request)) for request in range(workload.num_requests)],
        list(workload.time_ms),
        [workload.request_id(request) for request in range(workload.num_requests)],
        [None if name == str(first[workload.first_turn[s]]) else name for s, name in enumerate(names)],
        tokens_of(workload, with_outputs=with_outputs),
    )


def written(workload: Workload, to: str, path: Path, **options: Any) -> list[Loss]:
    """Write a workload to a file; what is lost."""
    file = io.BytesIO()
    losses = write_trace(workload, writer_called(to), file, WriteOptions(**options))
    path.write_bytes(file.getvalue())
    return losses


def converted(workload: Workload, to: str, path: Path, *, block_size: int | None = None, **options: Any) -> Workload:
    """A workload after it was written and read."""
    written(workload, to, path, block_size=block_size, **options)
    return load_trace([path], format=to, block_size=block_size)


BLOCK = 4


@st.composite
def block_workloads(
    draw: st.DrawFn, *, graph: bool = False, named: bool = True, max_requests: int = 8, delays: Any = None
) -> Workload:
    """Workloads whose prompts are hash ids of `BLOCK` tokens: sessions of turns, or requests that wait for others."""
    workload = Workload("drawn")
    times = st.integers(0, 50).map(float) if delays is None else delays
    count = draw(st.integers(1, max_requests))
    for request in range(count):
        ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
        cut = draw(st.integers(0, BLOCK - 1))
        runs = [(0, block * BLOCK, BLOCK) for block in ids[:-1]] + [(0, ids[-1] * BLOCK, BLOCK - cut)]
        session = draw(st.none() | st.integers(0, workload.num_sessions - 1)) if workload.num_sessions else None
        after = None
        if graph:
            after = draw(st.lists(st.integers(0, request - 1), max_size=2, unique=True)) if request else []
        workload.add(runs, draw(st.integers(0, 3)), session=session, time_ms=draw(times), after=after)
    roots = workload.roots()
    earliest = min(workload.time_ms[root] for root in roots.tolist())
    for root in roots.tolist():
        workload.time_ms[root] -= earliest
    if named and draw(st.booleans()):
        names = draw(st.lists(st.text('ab,"é ', min_size=1, max_size=4), min_size=count, max_size=count, unique=True))
        workload.request_ids = [f"r{name}.{number}" for number, name in enumerate(names)]
    if (named and draw(st.booleans())) or workload.has_turns:
        workload.session_ids = [f"s{number}" for number in range(workload.num_sessions)]
    return workload
