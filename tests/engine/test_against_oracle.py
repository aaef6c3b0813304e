"""The engine decides what the slow oracle decides, pass by pass, in runs and in single passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.compare import recorded_differences, unobserved_differences
from golden.vllm_format import OUTPUT_SEED, Scenario
from golden.vllm_playback import Playback
from oracle.random_scenarios import PROFILES, scenarios
from oracle.shared_outputs import share_outputs
from oracle.vllm_rules import VllmRules
from strategies import fuzz

# Decisions that random scenarios meet too rarely. (Requests are [arrival pass, prompt, output tokens], and perhaps the
# segments that they generate.)
QUOTE = 1_000_000  # + r: the output of request r
CORNERS: dict[str, tuple[Scenario, list[tuple[Any, ...]]]] = {
    "of two that generate the same, the first one's blocks are hit, although the other ends first": (
        {"block_size": 4, "num_gpu_blocks": 30},
        [
            (0, [[1, 9]], 20),
            (0, [[1, 9]], 10, [[QUOTE, 10]]),
            (0, [[5, 12]], 15),
            (30, [[1, 9], [QUOTE, 8]], 3),
            (40, [[2, 62]], 2),
            (45, [[5, 12], [QUOTE + 2, 12]], 2),
        ],
    ),
    "a prompt quotes the block that a decode before it fills in the same pass": (
        {"block_size": 1, "max_num_batched_tokens": 3, "long_prefill_token_threshold": 1, "num_gpu_blocks": 8},
        [(1, [[9, 1]], 2), (0, [[9, 1]], 1), (1, [[2, 1], [QUOTE, 1]], 1), (0, [[1, 1], [9, 2]], 1)],
    ),
    "chunking is off, and a prompt that exceeds the budget quotes an output that becomes a hit": (
        {"max_num_batched_tokens": 8, "enable_chunked_prefill": False},
        [(0, [[0, 8]], 9), (0, [[0, 8], [QUOTE, 9]], 1)],
    ),
    "an arrival shrinks the chunk of a refused head, which fits then": (
        {
            "block_size": 8,
            "num_gpu_blocks": 26,
            "max_num_batched_tokens": 64,
            "long_prefill_token_threshold": 1,
            "long_prefill_token_threshold_adaptive": True,
            "scheduler_reserve_full_isl": False,
        },
        [(12, [[7, 1]], 1), (9, [[2, 57]], 1), (7, [[3, 136]], 4)],
    ),
    "a prompt as long as the model allows is never done, and those behind it go on": (
        {"max_num_batched_tokens": 4, "max_model_len": 8},
        [(0, [[1, 8]], 1), (0, [[2, 2]], 5)],
    ),
}


def differences_from_oracle(scenario: Scenario, release: str = "0.33") -> list[str]:
    """How the engine departs from the oracle, in any mode; empty if it does not."""
    oracle = VllmRules(scenario, release)
    recording = oracle.play()
    free_hashes = [oracle.pool.hashes[block] for block in oracle.pool.free]
    expected_queue = [oracle.log.label(block_hash) for block_hash in free_hashes if block_hash is not None]
    lines: list[str] = []
    for fast_forward in (True, False):
        played = Playback(scenario, fast_forward=fast_forward, behaviour=release)
        lines += recorded_differences(recording, played.recording)
        queue = [played.labels[block_hash] for block_hash in played.queued]
        if queue != expected_queue:
            lines.append(f"free queue: expected {expected_queue}, got {queue}")
    return lines + unobserved_differences(played)


@pytest.mark.parametrize("name", CORNERS)
def test_engine_decides_what_the_oracle_decides_in_a_corner(name: str) -> None:
    geometry, rows = CORNERS[name]
    requests = [
        {"id": f"r{number}", "arrival_pass": row[0], "prompt": row[1], "output_len": row[2]}
        | ({"output": row[3]} if len(row) > 3 else {})
        for number, row in enumerate(rows)
    ]
    assert differences_from_oracle({**geometry, "requests": requests}) == []


@pytest.mark.parametrize("profile", PROFILES)
@fuzz(25)
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides(profile: str, data: st.DataObject) -> None:
    assert differences_from_oracle(data.draw(scenarios(profile))) == []


@pytest.mark.parametrize("profile", PROFILES)
@fuzz(8)
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides_where_outputs_are_equal(profile: str, data: st.DataObject) -> None:
    scenario = share_outputs(data, data.draw(scenarios(profile)), OUTPUT_SEED)
    assert differences_from_oracle(scenario) == []


@pytest.mark.parametrize("release", ["0.20", "0.11"])
@fuzz(25)
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides_for_an_older_release(release: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(data.draw(st.sampled_from(PROFILES))))
    assert differences_from_oracle(scenario, release) == []
