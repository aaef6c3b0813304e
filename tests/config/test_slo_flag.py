"""`--slo` reads limits with their units."""

from __future__ import annotations

import pytest

from windtunnel.config.slo import parse_slo
from windtunnel.errors import InputError


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft=500ms,itl=50ms,e2e=10s", {"slo.ttft_ms": 500.0, "slo.itl_ms": 50.0, "slo.e2e_ms": 10_000.0}),
        ("itl=50", {"slo.itl_ms": 50.0}),
        ("tpot=50,e2el=2s", {"slo.itl_ms": 50.0, "slo.e2e_ms": 2000.0}),
        (" ttft = 0.5 s , e2e=.25s", {"slo.ttft_ms": 500.0, "slo.e2e_ms": 250.0}),
        ("ttft=0", {"slo.ttft_ms": 0.0}),
    ],
)
def test_limits_in_milliseconds(text, limits):
    assert {assignment.path: assignment.value for assignment in parse_slo(text)} == limits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tfft=500ms", "--slo: unknown limit 'tfft': did you mean 'ttft'?"),
        ("x=1", "--slo: unknown limit 'x': expected one of 'ttft', 'itl', 'tpot', 'e2e', 'e2el'"),
        ("ttft=1,ttft=2", "--slo: 'ttft' is given twice"),
        ("ttft=5m", "--slo: ttft: found '5m', expected a time such as 500ms or 10s"),
        ("ttft=-5", "--slo: ttft: found '-5', expected a time such as 500ms or 10s"),
        ("ttft=nan", "--slo: ttft: found 'nan', expected a time such as 500ms or 10s"),
        ("ttft=", "--slo: ttft: found '', expected a time such as 500ms or 10s"),
        ("ttft", "--slo: found 'ttft', expected a limit such as ttft=500ms"),
        ("ttft=1,", "--slo: found '', expected a limit such as ttft=500ms"),
    ],
)
def test_what_is_no_limit(text, expected):
    with pytest.raises(InputError) as caught:
        parse_slo(text)
    assert str(caught.value) == expected
