"""Holds our engines to the recorded decisions of real schedulers, pass by pass and field by field.

    python tests/golden/compare.py --engine vllm --behaviour 0.33 --scenarios DIR --golden DIR [--stepwise]
    python tests/golden/compare.py --engine sglang --scenarios DIR --golden DIR [--stepwise]

Each scenario is played with an observer, in runs of decodes or (`--stepwise`) pass by pass, and every field of every
recorded pass is compared; only physical block ids (`alloc`, `final.free_queue`) have no counterpart in our pool. It
is played again with nobody watching, in runs and in single passes, which must leave the same record, pool and
order of events. What the engine does not model yet, and runs that crashed the real scheduler, are listed by name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a script

from golden import compare_sglang
from golden.vllm_format import Recording, Scenario, count_compact
from golden.vllm_playback import Playback
from windtunnel.engine.behaviour import BEHAVIOURS

PASS_FIELDS_WITHOUT_COUNTERPART = frozenset({"alloc"})
MISSING = "nothing"
NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
RELEASES = {"vllm": tuple(BEHAVIOURS), "sglang": (compare_sglang.RELEASE,)}  # that were recorded, by engine


def differences(scenario: Scenario, recording: Recording, stepwise: bool = False, behaviour: str = "0.33") -> list[str]:
    """How the engine departs from a recording, one line a field of the first pass that differs; empty if it does not.

    Raises:
        ValueError: the scenario has an unknown key.
    """
    played = Playback(scenario, fast_forward=not stepwise, behaviour=behaviour)
    return recorded_differences(recording, played.recording) or unobserved_differences(played)


def recorded_differences(expected: Recording, got: Recording) -> list[str]:
    """Differences between a recording and a playback."""
    for expected_pass, got_pass in zip(expected["passes"], got["passes"], strict=False):
        lines = [
            f"pass {expected_pass['p']}: {line}"
            for line in _field_differences(expected_pass, got_pass, PASS_FIELDS_WITHOUT_COUNTERPART)
        ]
        if lines:
            return lines
    final = dict(expected["final"])
    final.pop("free_queue", None)
    final["cached"] = count_compact(final["cached"])
    lines = [f"final {line}" for line in _field_differences(final, got["final"])]
    for field in ("num_passes", "stalled"):
        lines += _field_differences({field: expected[field]}, {field: got[field]})
    if len(expected["passes"]) != len(got["passes"]):
        lines.append(f"passes: expected {len(expected['passes'])}, got {len(got['passes'])}")
    return lines


def unobserved_differences(observed: Playback) -> list[str]:
    """Differences between a playback and the same one with nobody watching, in runs and in single passes."""
    scenario, behaviour = observed.scenario, observed.behaviour

    def play(**how: bool) -> Playback:
        return Playback(scenario, observed=False, behaviour=behaviour, **how)

    variants = {
        "runs": play(events=False),
        "runs with early arrivals": play(events=False, arrive_early=True),
        "runs with events": play(),
        "single passes": play(fast_forward=False, events=False),
    }
    lines: list[str] = []
    for name, played in variants.items():
        expected, got = _left_behind(observed), _left_behind(played)
        if played.scheduler.pool.log_events:
            expected["events"], got["events"] = observed.events, played.events
        lines += [f"nobody watching, {name}: {row}" for row in _field_differences(expected, got)]
    return lines


def _left_behind(played: Playback) -> dict[str, Any]:
    """What a playback leaves whether it was observed or not: its record and its pool."""
    recording = played.recording
    pool = {"free": recording["final"]["free"], "queue": played.queued, "copies": played.copies}
    return {**played.record, **pool, "stalled": recording["stalled"], "num_passes": recording["num_passes"]}


def _field_differences(
    expected: dict[str, Any], got: dict[str, Any], ignored: frozenset[str] = frozenset()
) -> list[str]:
    lines = []
    for field in [*expected, *(field for field in got if field not in expected)]:
        before, after = expected.get(field, MISSING), got.get(field, MISSING)
        if field not in ignored and not _same(before, after):
            lines.append(f"{field}: expected {_shown(before)}, got {_shown(after)}")
    return lines


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, dict) and isinstance(got, dict) and list(expected) != list(got):
        return False  # the order of a batch is a decision too
    return bool(expected == got)


def _shown(value: Any) -> str:
    return value if value == MISSING else json.dumps(value)


def _judged(engine: str, scenario: Scenario, golden: Path, behaviour: str, stepwise: bool) -> tuple[str, list[str]]:
    """What to say about one scenario, and the lines that explain it."""
    if not golden.is_file():
        return "failed", [f"no recording {golden}"]
    recording = json.loads(golden.read_text(encoding="utf-8"))
    release = recording.get(engine, behaviour)
    if not release.startswith(behaviour):
        return "failed", [f"recorded by {NAMES[engine]} {release}, expected {behaviour}"]
    reason = compare_sglang.not_modelled(scenario) if engine == "sglang" else ""
    if reason:
        return "not modelled yet", [reason]
    if "error" in recording:
        return "recorded crash", [recording["error"]]
    if engine == "sglang":
        lines = compare_sglang.differences(scenario, recording, stepwise)
    else:
        lines = differences(scenario, recording, stepwise, behaviour)
    return ("failed" if lines else "passed"), lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 if all is equal, 1 if anything differs or is missing, 2 if the arguments make no sense."""
    parser = argparse.ArgumentParser(description="Compare an engine with the recorded decisions of a real scheduler.")
    parser.add_argument("--engine", required=True, choices=list(RELEASES))
    parser.add_argument("--behaviour", help="the release that was recorded")
    parser.add_argument("--scenarios", required=True, type=Path, metavar="DIR")
    parser.add_argument("--golden", required=True, type=Path, metavar="DIR", help="recordings, one a scenario")
    parser.add_argument("--stepwise", action="store_true", help="observe single passes instead of runs of decodes")
    options = parser.parse_args(arguments)
    releases = RELEASES[options.engine]
    behaviour = options.behaviour or releases[0]
    if behaviour not in releases:
        parser.error(f"{NAMES[options.engine]} {behaviour} is unknown, expected {' or '.join(releases)}")
    for folder in (options.scenarios, options.golden):
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    counts = {"passed": 0, "failed": 0, "recorded crash": 0, "not modelled yet": 0}
    for path in sorted(options.scenarios.glob("*.json")):
        try:
            scenario = json.loads(path.read_text(encoding="utf-8"))
            golden = options.golden / path.name
            verdict, lines = _judged(options.engine, scenario, golden, behaviour, options.stepwise)
        except Exception as error:  # whatever goes wrong is this scenario's failure; the others are still judged
            verdict, lines = "failed", [f"{type(error).__name__}: {error}"]
        counts[verdict] += 1
        if verdict != "passed":
            print(f"{verdict}: {path.stem}: " + "\n    ".join(lines))
    if not sum(counts.values()):
        print(f"no scenario in {options.scenarios}")
    print(f"{counts['not modelled yet']} not modelled yet, {counts['recorded crash']} recorded as a crash")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] or not sum(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
