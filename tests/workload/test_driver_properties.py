"""Invariants of the driver over random workloads, against a model that scans everything."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.workload.driver import Driver
from windtunnel.workload.session import Workload

TIMES = st.integers(0, 6).map(float)


@dataclass
class Case:
    """A workload, and how its server ends each request."""

    workload: Workload
    duration_ms: list[float]
    cancelled: list[bool]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    workload = Workload()
    left = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    numbers: dict[int, int] = {}
    while any(left):
        chosen = draw(st.sampled_from([key for key, count in enumerate(left) if count]))
        left[chosen] -= 1
        workload.add([(0, 0, 8)], 1, session=numbers.get(chosen), time_ms=draw(TIMES))
        numbers.setdefault(chosen, workload.num_sessions - 1)
    count = workload.num_requests
    durations = draw(st.lists(TIMES, min_size=count, max_size=count))
    cancelled = draw(st.lists(st.sampled_from([False, False, False, True]), min_size=count, max_size=count))
    return Case(workload, durations, cancelled)


@dataclass
class Model:
    """The same rules, one session at a time: it looks at all sessions at every step."""

    case: Case
    concurrency: int | None
    ready_ms: dict[int, float] = field(default_factory=dict)  # by session
    request: dict[int, int] = field(default_factory=dict)  # by session: the turn that waits or is in flight
    waiting_sessions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        workload = self.case.workload
        for session in range(workload.num_sessions):
            self.request[session] = workload.first_turn[session]
            if self.concurrency is None:
                self.ready_ms[session] = workload.time_ms[workload.first_turn[session]]
            elif session < self.concurrency:
                self.ready_ms[session] = 0.0
            else:
                self.waiting_sessions.append(session)

    def release(self, now_ms: float) -> list[int]:
        due = sorted((ready, session) for session, ready in self.ready_ms.items() if ready <= now_ms)
        for _, session in due:
            del self.ready_ms[session]
        return [self.request[session] for _, session in due]

    def finished(self, request: int, now_ms: float, cancelled: bool) -> None:
        workload = self.case.workload
        session = workload.session[request]
        turns = [r for r in range(workload.num_requests) if workload.session[r] == session and r > request]
        if turns and not cancelled:
            self.request[session] = turns[0]
            self.ready_ms[session] = now_ms + workload.time_ms[turns[0]]
        elif self.waiting_sessions:
            self.ready_ms[self.waiting_sessions.pop(0)] = now_ms


@settings(max_examples=200, deadline=None)
@given(cases(), st.one_of(st.none(), st.integers(1, 4)))
def test_releases_follow_the_rules(case: Case, concurrency: int | None):
    workload = case.workload
    driver = Driver(workload, concurrency)
    model = Model(case, concurrency)
    ends: list[tuple[float, int]] = []
    sent_by_session: dict[int, list[int]] = {}
    now_ms = 0.0
    while not driver.exhausted:
        ready_ms = driver.next_ready_ms()
        assert ready_ms == min(model.ready_ms.values(), default=math.inf)
        now_ms = max(now_ms, min(ready_ms, min(ends, default=(math.inf, 0))[0]))
        assert now_ms < math.inf
        for end in sorted(end for end in ends if end[0] <= now_ms):
            ends.remove(end)
            driver.finished(end[1], now_ms, cancelled=case.cancelled[end[1]])
            model.finished(end[1], now_ms, case.cancelled[end[1]])
        scheduled = {model.request[session]: ready for session, ready in model.ready_ms.items()}
        sent = driver.release(now_ms)
        assert sent == model.release(now_ms)
        for request in sent:
            sent_by_session.setdefault(workload.session[request], []).append(request)
            ends.append((now_ms + case.duration_ms[request], request))
            assert driver.arrival_ms[request] == (scheduled[request] if concurrency is None else now_ms)
        in_flight = {workload.session[request] for _, request in ends}
        assert len(in_flight) == len(ends) == driver.in_flight
        if concurrency is not None:
            assert len(in_flight | set(model.ready_ms)) <= concurrency
    assert model.ready_ms == {}
    assert not ends
    assert sum(len(requests) for requests in sent_by_session.values()) == driver.released
    assert sorted(sent_by_session) == list(range(workload.num_sessions))
    for session, requests in sent_by_session.items():
        turns = [r for r in range(workload.num_requests) if workload.session[r] == session]
        assert requests == turns[: len(requests)]
        assert len(requests) == len(turns) or case.cancelled[requests[-1]]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=60))
def test_sessions_that_have_not_arrived_do_not_wait_in_the_heap(arrivals: list[float]):
    workload = Workload()
    for time_ms in arrivals:
        workload.add([(0, 0, 8)], 1, time_ms=time_ms)
    driver = Driver(workload)
    order = []
    while not driver.exhausted:
        assert len(driver._ready) <= 1
        now_ms = driver.next_ready_ms()
        for request in driver.release(now_ms):
            order.append((now_ms, request))
            driver.finished(request, now_ms)
    assert order == sorted((time_ms, request) for request, time_ms in enumerate(arrivals))
