"""A part of a workload: what arrives in a window of time, or a sample of its sessions.

Decides which sessions stay. They stay or go whole, together with every session that theirs wait for or that waits for
them, so that nothing that is kept ever waits for something that is not there. A sample draws once for each such group,
in the order of the trace, from a stream of its own: with one seed, a smaller sample is part of a larger one.
"""

from __future__ import annotations

from windtunnel.conversion.structure import like
from windtunnel.errors import InputError
from windtunnel.workload.renumbering import first_free_origin, renumbered_prompt
from windtunnel.workload.session import Workload
from windtunnel.workload.streams import named_stream


def slice_workload(
    workload: Workload,
    *,
    start_ms: float = 0.0,
    duration_ms: float | None = None,
    sample: float | None = None,
    seed: int = 0,
) -> Workload:
    """The workload of the sessions that first arrive in [start_ms, start_ms + duration_ms), or of a share of them.

    Args:
        workload: as `load_trace` returns it; not changed.
        start_ms: the new zero of its clock.
        duration_ms: None for everything from start_ms on.
        sample: probability with which each session is kept, above 0 and at most 1; None for all.
        seed: of the sample.

    Raises:
        InputError: nothing is left.
    """
    if not start_ms and duration_ms is None and sample is None:
        return workload
    group = _groups(workload)
    first_ms: dict[int, float] = {}
    for root in workload.roots().tolist():
        number = group[workload.session[root]]
        first_ms[number] = min(first_ms.get(number, workload.time_ms[root]), workload.time_ms[root])
    end_ms = float("inf") if duration_ms is None else start_ms + duration_ms
    draw = named_stream(seed, "sample").random
    kept = set()
    for number in sorted(first_ms):
        is_drawn = sample is None or draw() < sample
        if is_drawn and start_ms <= first_ms[number] < end_ms:
            kept.add(number)
    if not kept:
        last_ms = max(first_ms.values())
        raise InputError(
            f"nothing is left: {len(first_ms)} sessions arrive from 0 to {last_ms:g} ms, none of them in this slice"
        )
    return _with_requests(workload, [group[session] in kept for session in range(workload.num_sessions)], start_ms)


def _groups(workload: Workload) -> list[int]:
    """By session, the lowest number of the sessions that it belongs together with."""
    parent = list(range(workload.num_sessions))

    def find(session: int) -> int:
        while parent[session] != session:
            parent[session] = session = parent[parent[session]]
        return session

    for request, waits in workload.dependencies.items():
        for other in waits:
            a, b = sorted((find(workload.session[request]), find(workload.session[other])))
            parent[b] = a
    return [find(session) for session in range(workload.num_sessions)]


def _with_requests(workload: Workload, keeps_session: list[bool], start_ms: float) -> Workload:
    number: dict[int, int] = {}
    session_number: dict[int, int] = {}
    kept = [request for request, session in enumerate(workload.session) if keeps_session[session]]
    for request in kept:
        number[request] = len(number)
    result = like(workload)
    fresh = first_free_origin(workload)
    roots = set(workload.roots().tolist())
    for request in kept:
        session = workload.session[request]
        waits = workload.dependencies.get(request)
        result.add(
            renumbered_prompt(workload, request, number, fresh),
            workload.output_tokens[request],
            session=session_number.get(session),
            time_ms=workload.time_ms[request] - (start_ms if request in roots else 0.0),
            after=None if waits is None else [number[other] for other in waits],
        )
        if session not in session_number:
            session_number[session] = result.num_sessions - 1
            if workload.session_ids:
                result.session_ids.append(workload.session_ids[session])
        if workload.request_ids:
            result.request_ids.append(workload.request_ids[request])
    result.take_over(workload, number)
    return result
