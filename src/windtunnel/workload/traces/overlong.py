"""What becomes of prompts that an engine's `max_model_len` does not admit.

Decides after reading, on the workload: requests are left for the engine to reject, cut to fit, left out, or an error.
It counts them in `Workload.loading`. A prompt is overlong when it reaches the limit, since it leaves no room for a
token of output; an output that does not fit behind a shorter prompt ends early, as it does in an engine.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from windtunnel.errors import InputError
from windtunnel.workload.content import Run
from windtunnel.workload.renumbering import first_free_origin, renumbered_prompt
from windtunnel.workload.session import Workload

OnOverlong = Literal["reject", "clip", "drop", "error"]


def apply_overlong(workload: Workload, policy: OnOverlong, max_model_len: int | None) -> Workload:
    """The workload with the policy applied: itself, or a new one.

    Args:
        workload: as read; not changed, but for its counts.
        policy: `reject` leaves overlong requests as they are, for the engine to refuse; `clip` keeps the beginning of
            the prompt, so much that the output fits behind it (at least one token); `drop` leaves the request out: the
            next turn of its session waits so much longer, and what depends on it depends on what it depended on;
            `error` refuses the workload.
        max_model_len: longest sequence in tokens; None for no limit.

    Raises:
        InputError: the policy is `error` and there is an overlong request, or nothing is left.
    """
    if max_model_len is None:
        if policy != "reject":
            raise InputError(f"'{policy}' has no effect without a max_model_len of the engine", field="on_overlong")
        return workload
    lengths = np.array(workload.input_tokens, dtype=np.int64)
    overlong = np.flatnonzero(lengths >= max_model_len)
    loading = workload.loading
    if loading is not None:
        loading.overlong = len(overlong)
    if not len(overlong) or policy == "reject":
        return workload
    if policy == "error":
        first = int(overlong[0])
        raise InputError(
            f"request {workload.request_id(first)} has {lengths[first]} prompt tokens, expected fewer than the "
            f"max_model_len of {max_model_len}; so have {len(overlong)} of {len(lengths)} requests",
            source=workload.source,
        )
    if policy == "clip":
        if loading is not None:
            loading.clipped = len(overlong)
        return _rebuilt(workload, set(), max_model_len)
    if loading is not None:
        loading.dropped = len(overlong)
    if len(overlong) == len(lengths):
        message = f"every request reaches the max_model_len of {max_model_len}: nothing is left"
        raise InputError(message, source=workload.source)
    return _rebuilt(workload, set(overlong.tolist()), max_model_len)


def _rebuilt(workload: Workload, dropped: set[int], max_model_len: int) -> Workload:
    """The workload without the dropped requests, its prompts below the limit."""
    result = Workload(workload.source)
    result.origin_ms = workload.origin_ms
    result.accumulates = workload.accumulates
    result.needs_concurrency = workload.needs_concurrency
    result.loading = workload.loading
    number = _new_numbers(workload, dropped)
    fresh = None if workload.accumulates or not dropped else first_free_origin(workload)
    sessions: dict[int, int] = {}
    late_ms: dict[int, float] = {}  # by session: delays of dropped turns since the last one that was kept
    for request in range(workload.num_requests):
        session = workload.session[request]
        time_ms = workload.time_ms[request]
        waits = workload.dependencies.get(request)
        if request in dropped:
            if waits is None and (session in sessions or session not in late_ms):
                late_ms[session] = late_ms.get(session, 0.0) + (0.0 if time_ms != time_ms else time_ms)
            continue
        if waits is None and session in late_ms:
            # the first turn that is left arrives when the first turn would have; a later one waits so much longer
            time_ms = late_ms.pop(session) + (time_ms if session in sessions and time_ms == time_ms else 0.0)
        runs = renumbered_prompt(workload, request, number, fresh)
        if workload.input_tokens[request] >= max_model_len:
            runs = _beginning(runs, max(1, max_model_len - workload.output_tokens[request]))
        after = None
        if waits is not None:
            after, arrival_ms = _kept_dependencies(workload, request, dropped)
            if waits and not after:
                time_ms += arrival_ms  # it is a root now
        result.add(runs, workload.output_tokens[request], session=sessions.get(session), time_ms=time_ms, after=after)
        if session not in sessions:
            sessions[session] = result.num_sessions - 1
            if workload.session_ids:
                result.session_ids.append(workload.session_ids[session])
        if workload.request_ids or dropped:
            result.request_ids.append(workload.request_id(request))
    result.take_over(workload, number)
    return result


def _new_numbers(workload: Workload, dropped: set[int]) -> dict[int, int]:
    kept = (request for request in range(workload.num_requests) if request not in dropped)
    return {request: place for place, request in enumerate(kept)}


def _beginning(runs: list[Run], tokens: int) -> list[Run]:
    result = []
    for origin, start, length in runs:
        if tokens <= 0:
            break
        result.append((origin, start, min(length, tokens)))
        tokens -= length
    return result


def _kept_dependencies(workload: Workload, request: int, dropped: set[int]) -> tuple[list[int], float]:
    """What a request waits for through dropped ones, of those that are left; and the last arrival of dropped roots."""
    found: dict[int, None] = {}
    arrival_ms = 0.0
    seen: set[int] = set()
    todo = list(workload.dependencies[request])
    for before in todo:  # grows while it is read
        if before in seen:
            continue
        seen.add(before)
        if before not in dropped:
            found[before] = None
        elif workload.dependencies.get(before):
            todo += workload.dependencies[before]
        elif workload.time_ms[before] > arrival_ms:
            arrival_ms = workload.time_ms[before]
    return list(found), arrival_ms
