"""The recorded decisions of the real vLLM scheduler, reproduced, and the command that compares them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from golden.compare import differences, main
from golden.vllm_playback import Playback
from oracle.vllm_rules import VllmRules

DATA = Path(__file__).parent / "data" / "vllm"
SCENARIOS = DATA / "scenarios"
RECORDINGS = DATA / "golden-0.33"
RELEASES = ("0.33", "0.20", "0.11")
CRASHED = "model_len_prompt_longer"  # except in 0.11
NAMES = sorted(path.stem for path in SCENARIOS.glob("*.json"))


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return content


RECORDED = [(release, name) for release in RELEASES for name in NAMES if name != CRASHED or release == "0.11"]


@pytest.mark.parametrize(("release", "name"), RECORDED)
@pytest.mark.parametrize("mode", ["runs", "stepwise"])
def test_vllm_decides_what_was_recorded(release: str, name: str, mode: str) -> None:
    recording = read(DATA / f"golden-{release}", name)
    assert differences(read(SCENARIOS, name), recording, mode == "stepwise", release) == []


@pytest.mark.parametrize(("release", "name"), RECORDED)
def test_oracle_decides_what_was_recorded_down_to_the_physical_block(release: str, name: str) -> None:
    recording = read(DATA / f"golden-{release}", name)
    played = VllmRules(read(SCENARIOS, name), release).play()
    assert played == {key: recording[key] for key in played}
    for expected, got in zip(recording["passes"], played["passes"], strict=True):
        assert list(got.get("sched", ())) == list(expected.get("sched", ()))


def test_runs_are_played_as_runs() -> None:
    alone = {"requests": [{"id": "a", "arrival_pass": 0, "prompt": [[1, 10]], "output_len": 20}]}
    passes = Playback(alone).passes
    assert (passes.single_passes, passes.decode_runs, passes.passes_in_runs) == (1, 1, 19)
    passes = Playback(alone, fast_forward=False).passes
    assert (passes.single_passes, passes.decode_runs, passes.passes_in_runs) == (1, 19, 19)


# --- the command


def compare(scenarios: Path, recordings: Path, *more: str) -> int:
    return main(
        [
            "--engine",
            "vllm",
            "--behaviour",
            "0.33",
            "--scenarios",
            str(scenarios),
            "--golden",
            str(recordings),
            *more,
        ]
    )


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One small scenario with its recording, to be spoiled."""
    folders = tmp_path / "scenarios", tmp_path / "recordings"
    for source, folder in zip((SCENARIOS, RECORDINGS), folders, strict=True):
        folder.mkdir()
        shutil.copy(source / "preempt_two.json", folder)
    return folders


def spoil(folder: Path, **changes: Any) -> None:
    path = folder / "preempt_two.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_recording_is_reproduced_or_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(SCENARIOS, RECORDINGS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "112 passed, 0 failed"
    assert not [line for line in lines if line.startswith("not modelled yet: ")]
    assert f"recorded crash: {CRASHED}: IndexError: list index out of range at block_pool.py:cache_full_blocks" in lines


def test_the_first_pass_that_differs_is_shown(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    passes = read(folders[1], "preempt_two")["passes"]
    passes[3]["free"] += 1
    passes[4]["free"] += 1
    spoil(folders[1], passes=passes)
    assert compare(*folders, "--stepwise") == 1
    free = passes[3]["free"]
    assert capsys.readouterr().out.splitlines() == [
        f"failed: preempt_two: pass 3: free: expected {free}, got {free - 1}",
        "0 not modelled yet, 0 recorded as a crash",
        "0 passed, 1 failed",
    ]


def test_the_order_of_a_batch_is_compared(folders: tuple[Path, Path]) -> None:
    passes = read(folders[1], "preempt_two")["passes"]
    busy = next(entry for entry in passes if len(entry["sched"]) > 1)
    busy["sched"] = dict(reversed(busy["sched"].items()))
    spoil(folders[1], passes=passes)
    assert compare(*folders) == 1


def test_a_pass_too_few_is_a_failure(folders: tuple[Path, Path]) -> None:
    spoil(folders[1], passes=read(folders[1], "preempt_two")["passes"][:-1])
    assert compare(*folders) == 1


def test_the_recording_of_another_release_is_a_failure(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folders[1], vllm="0.20.2")
    assert compare(*folders) == 1
    assert "preempt_two: recorded by vLLM 0.20.2, expected 0.33" in capsys.readouterr().out


def test_an_unknown_scenario_key_is_a_failure(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    spoil(folders[0], sliding_window=128)
    assert compare(*folders) == 1
    assert "failed: preempt_two: ValueError: unknown scenario key 'sliding_window'" in capsys.readouterr().out


def test_a_scenario_without_recording_is_a_failure(folders: tuple[Path, Path]) -> None:
    (folders[1] / "preempt_two.json").unlink()
    assert compare(*folders) == 1


def test_an_empty_folder_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path, RECORDINGS) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 0 failed"


@pytest.mark.parametrize("arguments", [["--engine", "orca"], ["--behaviour", "0.1"], ["--scenarios", "nowhere"]])
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare(SCENARIOS, RECORDINGS, *arguments)
