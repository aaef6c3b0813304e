"""Where a trace's own times end up on the clock of a simulation."""

from __future__ import annotations

import pytest

from windtunnel.errors import InputError
from windtunnel.workload.traces import load_trace


def row(timestamp: float | None = None, **fields: object) -> dict[str, object]:
    return {"output_length": 1, "hash_ids": [1], **({} if timestamp is None else {"timestamp": timestamp}), **fields}


def times(path: str, **options: float) -> list[float]:
    return list(load_trace([path], **options).time_ms)  # type: ignore[arg-type]


def test_the_earliest_arrival_is_zero_whatever_the_order_of_rows(write_trace):
    assert times(write_trace(row(3000), row(1000), row(2000))) == [2000.0, 0.0, 1000.0]


def test_a_row_without_timestamp_arrives_at_zero_and_is_the_origin(write_trace):
    assert times(write_trace(row(), row(100))) == [0.0, 100.0]


def test_a_null_timestamp_is_no_timestamp(write_trace):
    assert times(write_trace(row(timestamp=None) | {"timestamp": None}, row(100))) == [0.0, 100.0]


def test_a_row_without_timestamp_is_later_than_one_before_zero(write_trace):
    assert times(write_trace(row(), row(-5))) == [5.0, 0.0]


def test_without_any_timestamp_all_arrive_at_zero(write_trace):
    assert times(write_trace(row(), row(), row())) == [0.0, 0.0, 0.0]


def test_one_negative_timestamp_alone_arrives_at_zero(write_trace):
    assert times(write_trace(row(-5))) == [0.0]


def test_only_first_turns_choose_the_origin(write_trace):
    s = {"session_id": "s"}
    t = {"session_id": "t"}
    path = write_trace(row(500, **s), row(delay=3, **s), row(600, **t))
    assert times(path) == [0.0, 3.0, 100.0]


def test_speedup_divides_arrivals_and_delays(write_trace):
    path = write_trace(row(1000, session_id="s"), row(delay=250, session_id="s"), row(1100, session_id="t"))
    assert times(path, speedup=2.0) == [0.0, 125.0, 50.0]
    assert times(path, speedup=0.5) == [0.0, 500.0, 200.0]


def test_a_speedup_that_overflows_is_an_error(write_trace):
    path = write_trace(row(0), row(100))
    with pytest.raises(InputError) as caught:
        load_trace([path], speedup=1e-307)
    assert (
        str(caught.value)
        == "speedup: 1e-307 stretches the trace beyond 9007199254740992 ms, where milliseconds are no longer told apart"
    )


def test_the_columns_can_grow_after_loading(write_trace):
    workload = load_trace([write_trace(row(0))])
    assert workload.add([(0, 0, 4)], 1, time_ms=7.0) == 1
