"""Workloads in the forms that formats can say: requests of their own, sessions of turns, or requests that wait.

Decides what becomes of turns and of waiting where a format has neither. Requests keep their numbers and their order.
The nominal time of a request is when it would be sent if every request took no time: the arrival of a root plus the
delays since; where a trace stated timestamps of turns, it is that timestamp.
"""

from __future__ import annotations

from windtunnel.conversion.losses import Losses
from windtunnel.workload.session import Workload


def nominal_times_ms(workload: Workload) -> list[float]:
    """Nominal time of each request."""
    times_ms = list(workload.time_ms)
    before = _predecessors(workload)
    missing = [len(waits) for waits in before]
    dependents: list[list[int]] = [[] for _ in before]
    for request, waits in enumerate(before):
        for other in waits:
            dependents[other].append(request)
    free = [request for request, count in enumerate(missing) if not count]
    for request in free:  # grows while it is read
        for dependent in dependents[request]:
            missing[dependent] -= 1
            if not missing[dependent]:
                times_ms[dependent] += max(times_ms[other] for other in before[dependent])
                free.append(dependent)
    return times_ms


def as_requests(workload: Workload, losses: Losses) -> Workload:
    """Every request on its own, sent at its nominal time."""
    later = workload.num_requests - len(workload.roots())
    losses.note(
        later,
        workload.num_requests,
        "requests",
        "follow others, which the format cannot say: they are sent at the time that the delays before them add up to",
    )
    times_ms = nominal_times_ms(workload) if later else workload.time_ms
    result = like(workload)
    for request in range(workload.num_requests):
        result.add(workload.stated_runs(request), workload.output_tokens[request], time_ms=times_ms[request])
    result.request_ids = workload.request_ids
    result.take_over(workload)
    return result


def as_sessions(workload: Workload, losses: Losses) -> Workload:
    """Sessions of turns: of several requests that a request waits for, the last one of its own session is left."""
    if not workload.dependencies:
        return workload
    times_ms = nominal_times_ms(workload)
    follows = {following: request for request, following in enumerate(workload.next_turn) if following >= 0}
    result = like(workload)
    open_session: dict[int, int] = {}  # by request that nothing follows yet: its session in the result
    taken: set[str] = set()
    turns = left_out = parted = 0
    for request in range(workload.num_requests):
        waits = workload.dependencies.get(request)
        before = follows.get(request)
        if waits:
            own = [other for other in waits if workload.session[other] == workload.session[request]]
            ends = [other for other in own if other in open_session and workload.next_turn[other] < 0]
            before = max(ends, default=None)
            turns += before is not None
            left_out += len(waits) - (before is not None)
        session = None if before is None else open_session.pop(before)
        is_root = before is None and not waits
        parted += before is None and not is_root
        time_ms = times_ms[request] if session is None else workload.time_ms[request]
        runs = workload.stated_runs(request)
        result.add(runs, workload.output_tokens[request], session=session, time_ms=time_ms)
        if session is None and workload.session_ids:
            name = workload.session_ids[workload.session[request]]
            result.session_ids.append(name if name not in taken else f"{name}/{request}")
            taken.add(result.session_ids[-1])
        open_session[request] = result.session[request]
    result.request_ids = workload.request_ids
    result.take_over(workload)
    total = workload.num_requests
    message = "wait for the one before in their session by name: they become turns, which are sent even if it fails"
    losses.note(turns, total, "requests", message)
    losses.note(left_out, sum(map(len, workload.dependencies.values())), "waits", "for other requests are left out")
    message = "follow none of their session: they are sent at the time that the delays before them add up to"
    losses.note(parted, total, "requests", message)
    return result


def as_graph(workload: Workload, losses: Losses) -> list[list[int]]:
    """What each request waits for; turns wait for the turn before."""
    turns = sum(following >= 0 for following in workload.next_turn)
    message = "become requests that wait for the turn before by name: they are not sent if it fails"
    losses.note(turns, workload.num_requests, "turns", message)
    return _predecessors(workload)


def like(workload: Workload) -> Workload:
    """An empty workload with what a workload says of itself as a whole."""
    result = Workload(workload.source)
    result.accumulates = workload.accumulates
    result.needs_concurrency = workload.needs_concurrency
    result.loading = workload.loading
    return result


def _predecessors(workload: Workload) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in range(workload.num_requests)]
    for request, following in enumerate(workload.next_turn):
        if following >= 0:
            before[following].append(request)
    for request, waits in workload.dependencies.items():
        before[request] = list(waits)
    return before
