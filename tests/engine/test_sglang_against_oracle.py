"""The SGLang engine decides what the slow oracle decides, turn by turn, in runs and in single turns.

`WINDTUNNEL_FUZZ=N pytest tests/engine/test_sglang_against_oracle.py` tries N times as many scenarios of each profile.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.compare_sglang import recorded_differences, unobserved_differences
from golden.sglang_format import OUTPUT_SEED, Scenario
from golden.sglang_playback import Playback
from oracle.random_sglang_scenarios import PROFILES, sglang_scenarios
from oracle.sglang_rules import OutOfMemory, SglangRules
from oracle.shared_outputs import share_outputs
from strategies import fuzz
from windtunnel.engine.sglang_invariants import check_invariants


@pytest.mark.parametrize("profile", PROFILES)
@fuzz(16)
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides(profile: str, data: st.DataObject) -> None:
    check_against_oracle(data.draw(sglang_scenarios(profile)))


@pytest.mark.parametrize("profile", PROFILES)
@fuzz(8)
@given(data=st.data())
def test_engine_decides_what_the_oracle_decides_where_outputs_are_equal(profile: str, data: st.DataObject) -> None:
    check_against_oracle(share_outputs(data, data.draw(sglang_scenarios(profile)), OUTPUT_SEED))


def check_against_oracle(scenario: Scenario) -> None:
    try:
        recording = SglangRules(scenario).play()
    except OutOfMemory:  # SGLang crashes: we give up the request that would not fit, and go on
        played = Playback(scenario, after_turn=check_invariants)
        assert any("out of memory" in failure for failure in played.record["failures"])
    else:
        for fast_forward in (True, False):
            played = Playback(scenario, fast_forward, after_turn=check_invariants)
            assert recorded_differences(recording, played.recording) == []
    assert unobserved_differences(played) == []
