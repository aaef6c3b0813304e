"""Loads of several classes of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from windtunnel import Config, load_workload, simulate
from windtunnel.workload.session import Workload

CHAT = {
    "isl": "lognormal:median=200,sigma=0.7,max=2000",
    "osl": "geometric:mean=20,max=100",
    "turns": "geometric:mean=2,max=5",
    "turn_delay_ms": "exponential:mean=500",
    "accumulate": True,
    "prefix_tokens": 64,
    "prefix_groups": 4,
    "prefix_zipf": 1.0,
    "requests": 30,
    "rate": 4.0,
}
CODE = {"isl": 500, "osl": "uniform:min=1,max=30", "requests": 40, "rate": 5.0, "burstiness": 0.5}
BATCH = {"isl": 900, "osl": 40, "requests": 12, "concurrency": 2}


def config(classes: dict[str, Any], **more: Any) -> Config:
    return Config.model_validate({"workload": {"classes": classes}, "engine": {"async_scheduling": False}, **more})


def load(**classes: Any) -> Workload:
    return load_workload(config(classes))


def sessions_of(workload: Workload, name: str) -> list[list[tuple[Any, ...]]]:
    """What a class sends: per session, lengths, times and the shape of the content of each turn."""
    place = workload.class_names.index(name)
    numbers = np.flatnonzero(workload.class_of_requests() == place)
    first_origin = min(run[0] for r in numbers for run in workload.prompt_runs(r) if run[0] >= 0)
    sessions: dict[int, list[tuple[Any, ...]]] = {}
    for r in numbers.tolist():
        runs = [
            (origin - first_origin if origin >= 0 else origin + int(numbers[0]), start, length)
            for origin, start, length in workload.prompt_runs(r)
        ]
        turn = (workload.input_tokens[r], workload.output_tokens[r], repr(workload.time_ms[r]), runs)
        sessions.setdefault(workload.session[r], []).append(turn)
    return list(sessions.values())


def test_a_change_to_one_class_leaves_the_draws_of_the_others_untouched():
    before = load(chat=CHAT, code=CODE)
    after = load(
        new={"isl": "uniform:min=1,max=9", "osl": 2, "requests": 17, "rate": 1.0},
        chat=CHAT,
        code={**CODE, "rate": 9.0, "osl": 5, "requests": 100},
    )
    assert sessions_of(before, "chat") == sessions_of(after, "chat")
    assert sessions_of(before, "code") != sessions_of(after, "code")


def test_equal_classes_of_different_names_send_different_things():
    workload = load(a=CHAT, b=CHAT)
    assert sessions_of(workload, "a") != sessions_of(workload, "b")


def test_no_two_classes_have_content_in_common():
    workload = load(chat=CHAT, code=CODE, other=CHAT)
    origins: dict[int, set[int]] = {}
    for r, place in enumerate(workload.class_of_requests().tolist()):
        origins.setdefault(place, set()).update(run[0] for run in workload.prompt_runs(r) if run[0] >= 0)
    assert len(set.union(*origins.values())) == sum(map(len, origins.values()))


def test_each_request_has_its_class():
    workload = load(chat=CHAT, code=CODE, batch=BATCH)
    assert workload.class_names == ["chat", "code", "batch"]
    number = workload.class_of_requests()
    assert sorted(number.tolist()) == number.tolist()
    assert np.bincount(number)[1:].tolist() == [40, 12]


def test_classes_do_not_all_begin_at_zero_but_those_with_a_schedule_do():
    workload = load(chat=CHAT, code=CODE, tick={"isl": 1, "osl": 1, "requests": 3, "interval_ms": 10.0, "start_s": 2.0})
    firsts = [workload.time_ms[r] for r in (0, workload.first_turn[30], workload.first_turn[70])]
    assert firsts[0] > 0.0
    assert firsts[1] > 0.0
    assert firsts[0] != firsts[1]
    assert firsts[2] == 2000.0


def test_superposed_poisson_classes_are_poisson():
    rates = {"a": 3.0, "b": 7.0}
    workload = load(**{n: {"isl": 1, "osl": 1, "duration_s": 2000.0, "rate": rate} for n, rate in rates.items()})
    counts = np.histogram(np.array(workload.time_ms), bins=2000, range=(0.0, 2e6))[0]
    assert counts.mean() == pytest.approx(10.0, rel=0.03)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)


def test_a_closed_class_keeps_its_places_while_an_open_one_comes_and_goes():
    result = simulate(config({"code": CODE, "batch": BATCH}))
    requests = result.record.requests
    first = 40
    batch = sorted((requests.arrival_ms[r], requests.terminal_ms[r]) for r in range(first, first + 12))
    assert [arrival for arrival, _ in batch[:2]] == [0.0, 0.0]
    ends = sorted(end for _, end in batch)
    assert [arrival for arrival, _ in batch[2:]] == ends[:10]  # each at the instant that an earlier one ended
    assert list(requests.arrival_ms)[:40] == list(result.workload.time_ms)[:40]


def test_stepwise_gives_the_same_record_for_a_mixed_load():
    def columns(fast_forward: bool) -> list[Any]:
        wanted = config({"chat": CHAT, "batch": BATCH, "code": CODE})
        wanted.engine.fast_forward = fast_forward
        requests = simulate(wanted).record.requests
        return [requests.status, requests.arrival_ms, requests.first_token_ms, requests.last_token_ms]

    assert columns(True) == columns(False)
