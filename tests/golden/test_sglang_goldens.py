"""The recorded decisions of SGLang's own scheduler, reproduced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from golden.compare import main
from golden.compare_sglang import differences, not_modelled
from golden.sglang_playback import Playback
from oracle.sglang_rules import SglangRules

DATA = Path(__file__).parent / "data" / "sglang"
SCENARIOS = DATA / "scenarios"
RECORDINGS = DATA / "golden-0.5.23"
NAMES = sorted(path.stem for path in SCENARIOS.glob("*.json"))
NOT_MODELLED = {"dfs_weight_order": "schedule_policy dfs-weight", "prio_preempt": "priority preemption"}
MODELLED = [name for name in NAMES if name not in NOT_MODELLED]


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return content


def test_what_is_not_modelled_is_named() -> None:
    assert {name: reason for name in NAMES if (reason := not_modelled(read(SCENARIOS, name)))} == NOT_MODELLED


@pytest.mark.parametrize("name", MODELLED)
@pytest.mark.parametrize("mode", ["runs", "stepwise"])
def test_sglang_decides_what_was_recorded(name: str, mode: str) -> None:
    assert differences(read(SCENARIOS, name), read(RECORDINGS, name), stepwise=mode == "stepwise") == []


@pytest.mark.parametrize("name", MODELLED)
def test_oracle_decides_what_was_recorded(name: str) -> None:
    recording = read(RECORDINGS, name)
    played = SglangRules(read(SCENARIOS, name)).play()
    assert played == {key: recording[key] for key in played}
    for expected, got in zip(recording["passes"], played["passes"], strict=True):
        assert list(got.get("batch", ())) == list(expected.get("batch", ()))


@pytest.mark.parametrize(
    ("overlap", "runs", "in_runs", "single"), [(False, 1, 19, 1), (True, 1, 19, 1)], ids=["synchronous", "overlap"]
)
def test_runs_are_played_as_runs(overlap: bool, runs: int, in_runs: int, single: int) -> None:
    alone = {
        "overlap": overlap,
        "requests": [{"id": "a", "arrival_pass": 0, "prompt": [[1, 10]], "output_len": 20}],
    }
    passes = Playback(alone, observed=False, events=False).passes
    assert (passes.decode_runs, passes.passes_in_runs, passes.single_passes) == (runs, in_runs, single)
    passes = Playback(alone, fast_forward=False).passes
    assert (passes.decode_runs, passes.single_passes) == (0, 20)


# --- the command


def compare(*more: str, scenarios: Path = SCENARIOS, recordings: Path = RECORDINGS) -> int:
    return main(["--engine", "sglang", "--scenarios", str(scenarios), "--golden", str(recordings), *more])


@pytest.mark.parametrize("mode", [[], ["--stepwise"]], ids=["runs", "stepwise"])
def test_every_recording_is_reproduced_or_named(mode: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*mode) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not modelled yet: dfs_weight_order: schedule_policy dfs-weight",
        "not modelled yet: prio_preempt: priority preemption",
        "2 not modelled yet, 0 recorded as a crash",
        "56 passed, 0 failed",
    ]


def test_a_difference_in_any_field_of_any_turn_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = read(RECORDINGS, "retract_order")
    scenarios, recordings = tmp_path / "scenarios", tmp_path / "recordings"
    for folder in (scenarios, recordings):
        folder.mkdir()
    (scenarios / "retract_order.json").write_text(json.dumps(read(SCENARIOS, "retract_order")))
    fields = {field for turn in recording["passes"] for field in turn} - {"p"}
    assert {"mode", "batch", "decode", "out", "fin", "avail", "evictable", "protected", "ratio", "ev"} <= fields
    for field in sorted(fields):
        spoiled = json.loads(json.dumps(recording))
        turn = next(turn for turn in reversed(spoiled["passes"]) if field in turn)
        del turn[field]
        (recordings / "retract_order.json").write_text(json.dumps(spoiled))
        assert compare("--behaviour", "0.5.23", scenarios=scenarios, recordings=recordings) == 1
        assert f"failed: retract_order: pass {turn['p']}: {field}: expected nothing" in capsys.readouterr().out


def test_another_release_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        compare("--behaviour", "0.5.6")
