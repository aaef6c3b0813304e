"""How rows of one session become turns, and the delays between them."""

from __future__ import annotations

from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace


def turn(session: str | None = "s", **fields: object) -> dict[str, object]:
    named = {} if session is None else {"session_id": session}
    return {"input_length": 512, "output_length": 1, "hash_ids": [1], **named, **fields}


def turns(workload: Workload, session: int) -> list[int]:
    result = []
    request = workload.first_turn[session]
    while request >= 0:
        result.append(request)
        request = workload.next_turn[request]
    return result


def test_rows_of_sessions_may_interleave(write_trace):
    path = write_trace(turn("s"), turn("t"), turn("s"), turn(None), turn("t"), turn("s"))
    workload = load_trace([path])
    assert [turns(workload, session) for session in range(3)] == [[0, 2, 5], [1, 4], [3]]
    assert list(workload.turn) == [0, 0, 1, 0, 1, 2]


def test_rows_without_session_are_independent(write_trace):
    workload = load_trace([write_trace(turn(None), turn(None))])
    assert workload.num_sessions == 2
    assert not workload.has_turns


def test_an_empty_session_id_is_a_name_like_another(write_trace):
    assert load_trace([write_trace(turn(""), turn(""))]).num_sessions == 1


def test_an_explicit_delay_wins_over_the_timestamps(write_trace):
    path = write_trace(turn(timestamp=1000), turn(timestamp=5000, delay=250))
    assert list(load_trace([path]).time_ms) == [0.0, 250.0]


def test_timestamps_of_a_session_become_delays(write_trace):
    path = write_trace(turn(timestamp=1000), turn(timestamp=1400), turn(timestamp=1400))
    assert list(load_trace([path]).time_ms) == [0.0, 400.0, 0.0]


def test_a_turn_with_neither_follows_at_once(write_trace):
    assert list(load_trace([write_trace(turn(timestamp=1000), turn())]).time_ms) == [0.0, 0.0]


def test_a_row_with_a_delay_only_leaves_the_sessions_timestamp_alone(write_trace):
    path = write_trace(turn(timestamp=1000), turn(delay=250), turn(timestamp=5000))
    assert list(load_trace([path]).time_ms) == [0.0, 250.0, 4000.0]


def test_a_row_with_both_moves_the_sessions_timestamp(write_trace):
    path = write_trace(turn(timestamp=1000), turn(timestamp=2000, delay=250), turn(timestamp=5000))
    assert list(load_trace([path]).time_ms) == [0.0, 250.0, 3000.0]


def test_a_delay_of_zero_is_allowed_on_a_first_row(write_trace):
    assert list(load_trace([write_trace(turn(timestamp=3, delay=0))]).time_ms) == [0.0]


def test_a_first_row_without_timestamp_may_be_followed_by_one_with_delay_and_timestamp(write_trace):
    path = write_trace(turn(), turn(timestamp=100, delay=5), turn(timestamp=130))
    assert list(load_trace([path]).time_ms) == [0.0, 5.0, 30.0]


def test_a_mixed_trace_in_file_order(write_trace):
    path = write_trace(
        turn("s", timestamp=1000), turn("s", delay=250), turn("t", timestamp=1100), turn("s", input_length=512)
    )
    workload = load_trace([path])
    assert list(workload.time_ms) == [0.0, 250.0, 100.0, 0.0]
    assert workload.session_ids == ["s", "t"]
    assert list(load_trace([path], speedup=2.0).time_ms) == [0.0, 125.0, 50.0, 0.0]
