"""The engine decides what the slow oracle decides, pass by pass, in runs and in single passes.

`WINDTUNNEL_FUZZ=N pytest tests/engine/test_against_oracle.py` tries N new scenarios of each profile.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden.compare import recorded_differences, unobserved_differences
from golden.vllm_playback import Playback
from oracle.random_scenarios import PROFILES, scenarios
from oracle.vllm_rules import VllmRules

FUZZ = os.environ.get("WINDTUNNEL_FUZZ")
settings.register_profile(
    "engine",
    max_examples=int(FUZZ or 40),
    derandomize=FUZZ is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("profile", PROFILES)
@settings(settings.get_profile("engine"))
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides(profile: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(profile))
    oracle = VllmRules(scenario)
    recording = oracle.play()
    for fast_forward in (True, False):
        played = Playback(scenario, fast_forward)
        assert recorded_differences(recording, played.recording) == []
        hashes = [oracle.pool.hashes[block] for block in oracle.pool.free]
        expected_queue = [oracle.log.labels[block_hash] for block_hash in hashes if block_hash is not None]
        assert [played.labels[block_hash] for block_hash in played.queued] == expected_queue
    assert unobserved_differences(played) == []
