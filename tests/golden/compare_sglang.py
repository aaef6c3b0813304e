"""Holds our SGLang engine to the recorded decisions of SGLang's own scheduler, turn by turn and field by field.

`compare.py --engine sglang` judges with the functions of this module. Each scenario is played with an observer, in runs
of decodes or (`stepwise`) turn by turn, and every field of every recorded turn is compared. It is played again with
nobody watching, in runs and in single turns, which must leave the same record, pool and order of events. What the
engine does not model is listed by name.
"""

from __future__ import annotations

import json
from typing import Any

from golden.sglang_format import Recording, Scenario, with_defaults
from golden.sglang_playback import Playback

RELEASE = "0.5.23"
PREEMPTION_THRESHOLD = 10  # how much more urgent a request must be for SGLang to preempt one that runs
MISSING = "nothing"


def not_modelled(scenario: Scenario) -> str:
    """What of a scenario the engine does not model, "" if it models all of it."""
    scenario = with_defaults(scenario)
    reasons = []
    if scenario["schedule_policy"] not in ("fcfs", "lpm", "lof"):
        reasons.append(f"schedule_policy {scenario['schedule_policy']}")
    if scenario["enable_priority_scheduling"]:
        priorities = [request.get("priority", 0) for request in scenario["requests"]]
        if max(priorities) - min(priorities) > PREEMPTION_THRESHOLD:
            reasons.append("priority preemption")
    return ", ".join(reasons)


def differences(scenario: Scenario, recording: Recording, stepwise: bool = False) -> list[str]:
    """How the engine departs from a recording, one line a field of the first turn that differs; empty if it does not.

    Raises:
        ValueError: the scenario has an unknown key.
    """
    played = Playback(scenario, fast_forward=not stepwise)
    return recorded_differences(recording, played.recording) or unobserved_differences(played)


def recorded_differences(expected: Recording, got: Recording) -> list[str]:
    """Differences between a recording and a playback."""
    for expected_turn, got_turn in zip(expected["passes"], got["passes"], strict=False):
        lines = [f"pass {expected_turn['p']}: {line}" for line in _field_differences(expected_turn, got_turn)]
        if lines:
            return lines
    lines = [f"final {line}" for line in _field_differences(expected["final"], got["final"])]
    for field in ("num_passes", "stalled"):
        lines += _field_differences({field: expected[field]}, {field: got[field]})
    if len(expected["passes"]) != len(got["passes"]):
        lines.append(f"passes: expected {len(expected['passes'])}, got {len(got['passes'])}")
    return lines


def unobserved_differences(observed: Playback) -> list[str]:
    """Differences between a playback and the same one with nobody watching, in runs and in single turns."""
    variants = {
        "runs": Playback(observed.scenario, observed=False),
        "runs without events": Playback(observed.scenario, observed=False, events=False),
        "single turns": Playback(observed.scenario, fast_forward=False, observed=False),
    }
    lines: list[str] = []
    for name, played in variants.items():
        expected, got = _left_behind(observed), _left_behind(played)
        if not played.scheduler.pool.log_events:
            expected["pages"] = got["pages"]
        lines += [f"nobody watching, {name}: {line}" for line in _field_differences(expected, got)]
    return lines


def _left_behind(played: Playback) -> dict[str, Any]:
    """What a playback leaves whether it was observed or not: its record, its pool and its events."""
    recording = {name: played.recording[name] for name in ("stalled", "num_passes", "final")}
    return {**played.record, **recording, "pages": played.pages}


def _field_differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    lines = []
    for field in [*expected, *(field for field in got if field not in expected)]:
        before, after = expected.get(field, MISSING), got.get(field, MISSING)
        if not _same(before, after):
            lines.append(f"{field}: expected {_shown(before)}, got {_shown(after)}")
    return lines


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, dict) and isinstance(got, dict) and list(expected) != list(got):
        return False  # the order of a batch is a decision too
    return bool(expected == got)


def _shown(value: Any) -> str:
    return value if value == MISSING else json.dumps(value)
