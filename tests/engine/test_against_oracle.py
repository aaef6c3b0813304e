"""The engine decides what the slow oracle decides, pass by pass, in runs and in single passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.compare import recorded_differences, unobserved_differences
from golden.vllm_playback import Playback
from oracle.random_scenarios import PROFILES, scenarios
from oracle.vllm_rules import VllmRules
from strategies import fuzz


@pytest.mark.parametrize("profile", PROFILES)
@fuzz(40)
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides(profile: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(profile))
    oracle = VllmRules(scenario)
    recording = oracle.play()
    free_hashes = [oracle.pool.hashes[block] for block in oracle.pool.free]
    expected_queue = [oracle.log.label(block_hash) for block_hash in free_hashes if block_hash is not None]
    for fast_forward in (True, False):
        played = Playback(scenario, fast_forward=fast_forward)
        assert recorded_differences(recording, played.recording) == []
        assert [played.labels[block_hash] for block_hash in played.queued] == expected_queue
    assert unobserved_differences(played) == []
