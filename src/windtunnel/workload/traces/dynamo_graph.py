"""What the requests of a recorded agent run wait for, worked out from when everything began and ended.

Decides the dependencies between requests of sessions: a request waits for the one before it in its session; the first
one of a child session for the newest request of its parent that had begun by then; the first request of the parent
that began after the child had ended waits for the child's last one as well. Where the harness recorded which request
launched a child session and which one used its result, that replaces the guess. The gap between the recorded end of
the last dependency and the recorded start is the delay, whether the agent thought or its tools ran meanwhile. Source:
Dynamo, lib/data-gen/src/request_trace/agentic.rs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from windtunnel.errors import InputError


@dataclass(frozen=True)
class RequestSpan:
    """When a request was received and ended, in ms since 1970, and whose it is."""

    request_id: str
    session: str
    parent_session: str | None
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class ToolCall:
    """Which request of a session called a tool, which one used its result, and which session it launched."""

    session: str
    source: str
    consumer: str | None = None
    child_session: str | None = None


@dataclass
class Wait:
    """What a request waits for: other requests, by place, and a delay after the last of them."""

    requests: list[int]
    delay_ms: float = 0.0


def wait_of_each(spans: Sequence[RequestSpan], tools: Sequence[ToolCall], source: str) -> list[Wait]:
    """What each request waits for.

    Args:
        spans: requests, sorted by (start, end, id).
        tools: the tool calls of which this is known, in any order.
        source: the files, for errors.

    Raises:
        InputError: sessions or tools contradict each other, or requests wait for each other in a circle.
    """
    place = {span.request_id: number for number, span in enumerate(spans)}
    sessions: dict[str, list[int]] = {}
    parents: dict[str, str] = {}
    for number, span in enumerate(spans):
        sessions.setdefault(span.session, []).append(number)
        parent = span.parent_session
        if parent is not None and parents.setdefault(span.session, parent) != parent:
            raise InputError(
                f"session {span.session!r} has parents {parents[span.session]!r} and {parent!r}, expected one",
                source=source,
                field="parent_session_id",
            )
    waits = [Wait([]) for _ in spans]
    for members in sessions.values():
        for before, number in pairwise(members):
            waits[number].requests.append(before)
    launches = _launches(tools, sessions, place, spans, source)
    for session, parent in parents.items():
        if parent in sessions:
            _link_child(waits, spans, sessions[session], sessions[parent], launches.get(session), place, source)
    _require_no_circle(waits, spans, source)
    for number, wait in enumerate(waits):
        if wait.requests:
            ended_ms = max(spans[before].end_ms for before in wait.requests)
            wait.delay_ms = float(max(0, spans[number].start_ms - ended_ms))
    return waits


def _launches(
    tools: Sequence[ToolCall],
    sessions: dict[str, list[int]],
    place: dict[str, int],
    spans: Sequence[RequestSpan],
    source: str,
) -> dict[str, ToolCall]:
    """The tool call that is known to have launched a child session, by that session."""
    launches: dict[str, ToolCall] = {}
    for tool in tools:
        for request in (tool.source, tool.consumer):
            if request is None:
                continue
            if request not in place:
                message = f"a tool of session {tool.session!r} references unknown request_id {request!r}"
                raise InputError(message, source=source, field="tool")
            if spans[place[request]].session != tool.session:
                message = f"a tool of session {tool.session!r} references request {request!r} of another session"
                raise InputError(message, source=source, field="tool")
        child = tool.child_session
        if child is None or child not in sessions:
            continue
        if child in launches:
            message = f"several tools launch session {child!r}, expected one"
            raise InputError(message, source=source, field="tool")
        launches[child] = tool
    return launches


def _link_child(
    waits: list[Wait],
    spans: Sequence[RequestSpan],
    children: Sequence[int],
    parents: Sequence[int],
    launch: ToolCall | None,
    place: dict[str, int],
    source: str,
) -> None:
    first = children[0]
    last = max(children, key=lambda n: (spans[n].end_ms, spans[n].start_ms, spans[n].request_id))
    spawn: int | None
    join: int | None
    if launch is not None:
        spawn = place[launch.source]
        join = None if launch.consumer is None else place[launch.consumer]
        for request in (spawn, join):
            if request is not None and request not in parents:
                name = spans[request].request_id
                message = f"request {name!r} of a tool is not in the parent of the session that it launched"
                raise InputError(message, source=source, field="tool")
    else:
        started = [number for number in parents if spans[number].start_ms <= spans[first].start_ms]
        spawn = max(started, key=lambda n: (spans[n].start_ms, n), default=None)
        later = [number for number in parents if spans[number].start_ms >= spans[last].end_ms]
        join = min(later, key=lambda n: (spans[n].start_ms, n), default=None)
    if spawn is not None and spawn not in waits[first].requests:
        waits[first].requests.append(spawn)
    if join is not None and last not in waits[join].requests:
        waits[join].requests.append(last)


def _require_no_circle(waits: Sequence[Wait], spans: Sequence[RequestSpan], source: str) -> None:
    missing = [len(wait.requests) for wait in waits]
    dependents: list[list[int]] = [[] for _ in waits]
    for number, wait in enumerate(waits):
        for before in wait.requests:
            dependents[before].append(number)
    free = [number for number, count in enumerate(missing) if not count]
    for number in free:  # grows while it is read
        for dependent in dependents[number]:
            missing[dependent] -= 1
            if not missing[dependent]:
                free.append(dependent)
    if len(free) < len(waits):
        stuck = [spans[number].request_id for number, count in enumerate(missing) if count]
        message = f"{len(stuck)} requests wait for each other in a circle: {', '.join(stuck[:5])}"
        raise InputError(message, source=source)
