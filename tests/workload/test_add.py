"""What `Workload.add` takes, and what it refuses with one line."""

from __future__ import annotations

import math
from typing import Any

import pytest

from windtunnel import Config, InputError, Workload, simulate


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": []}, "request 1: runs: found 0 prompt tokens, expected from 1 to 2147483648"),
        ({"runs": [(0, 0, 10), (1, 0, -3)]}, "runs: found a run of -3 tokens, expected at least 0"),
        (
            {"runs": [(0, 0, 2**40)]},
            "request 1: runs: found 1099511627776 prompt tokens, expected from 1 to 2147483648",
        ),
        ({"output_tokens": -1}, "request 1: output_tokens: found -1, expected from 0 to 2147483648"),
        ({"output_tokens": 2**70}, f"request 1: output_tokens: found {2**70}, expected from 0 to 2147483648"),
        ({"output_tokens": math.nan}, "request 1: output_tokens: found nan, expected from 0 to 2147483648"),
        ({"time_ms": math.inf}, "request 1: time_ms: found inf, expected at most 9007199254740992 ms, or NaN"),
        ({"time_ms": -1e300}, "request 1: time_ms: found -1e+300, expected at most"),
        ({"time_ms": -5.0, "session": 0}, "request 1: time_ms: found -5.0, expected a delay of at least 0"),
        ({"session": 7}, "request 1: session: found 7, expected the number of one of 1 sessions"),
    ],
)
def test_what_no_request_can_have(arguments: dict[str, Any], message: str):
    workload = Workload()
    workload.add([(0, 0, 8)], 2, time_ms=0.0)
    with pytest.raises(InputError) as caught:
        workload.add(**{"runs": [(0, 0, 8)], "output_tokens": 1, **arguments})
    assert str(caught.value).startswith(message)
    assert workload.num_requests == 1  # as if nothing had been added
    workload.add([(0, 0, 8)], 1, time_ms=1.0)
    assert simulate(Config(), workload=workload).record.requests.status.count(2) == 2


def test_an_arrival_before_the_clock_begins():
    workload = Workload("mine")
    workload.add([(0, 0, 8)], 2, time_ms=3.0)
    workload.add([(0, 0, 8)], 2, time_ms=-0.5)
    with pytest.raises(InputError) as caught:
        simulate(Config(), workload=workload)
    assert str(caught.value) == "mine: time_ms: request 1 arrives at -0.5 ms, expected at least 0"
