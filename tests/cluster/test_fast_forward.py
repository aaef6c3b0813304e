"""Runs of decodes are a way to compute, not a model: whatever happens, the record is that of single passes."""

from __future__ import annotations

from hypothesis import given
from strategies import Scenario, columns_of, fuzz, run, scenarios


def differences(scenario: Scenario) -> list[str]:
    fast = run(scenario, fast_forward=True)
    slow = run(scenario, fast_forward=False)
    assert fast.stall == slow.stall
    found, expected = columns_of(fast.record), columns_of(slow.record)
    assert found.keys() == expected.keys()
    return [f"{name}: runs {found[name]}, passes {expected[name]}" for name in expected if found[name] != expected[name]]


@given(scenarios())
@fuzz(300)
def test_runs_of_decodes_give_the_record_of_single_passes(scenario: Scenario) -> None:
    assert differences(scenario) == []
