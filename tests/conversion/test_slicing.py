"""A slice keeps sessions whole, and everything that waits for each other together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversion.meaning import BLOCK, block_workloads, meaning, tokens_of, written
from windtunnel.conversion import rescale, slice_workload
from windtunnel.errors import InputError
from windtunnel.workload.content import output_origin
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import load_trace


def three() -> Workload:
    """Sessions at 0, 1000 and 2000 ms; the first has a second turn, the last quotes an output of the first."""
    workload = Workload("three")
    workload.add([(0, 0, 8)], 2, time_ms=0.0)
    workload.add([(0, 0, 4)], 2, time_ms=1000.0)
    workload.add([(0, 0, 8), (0, 40, 4)], 2, session=0, time_ms=5000.0)
    workload.add([(0, 0, 8), (output_origin(0), 0, 2)], 2, time_ms=2000.0)
    workload.session_ids = ["a", "1", "c"]
    return workload


def test_a_window_keeps_the_sessions_that_begin_in_it_and_its_start_is_zero():
    part = slice_workload(three(), start_ms=0.0, duration_ms=1000.0)
    assert list(part.time_ms) == [0.0, 5000.0]
    assert list(part.session) == [0, 0]
    part = slice_workload(three(), start_ms=900.0)
    assert list(part.time_ms) == [100.0, 1100.0]
    assert part.session_ids == ["1", "c"]


def test_what_quotes_an_output_that_is_gone_keeps_its_tokens():
    part = slice_workload(three(), start_ms=2000.0)
    assert part.prompt_runs(0) == [(0, 0, 8), (1, 0, 2)]
    assert part.input_tokens[0] == 10


def test_what_quotes_an_output_that_is_there_quotes_it_under_its_new_number():
    workload = three()
    workload.session_ids = []
    workload.add([(output_origin(1), 0, 2), (0, 0, 4)], 1, time_ms=1500.0)
    part = slice_workload(workload, start_ms=1000.0, duration_ms=900.0)
    assert part.prompt_runs(1) == [(output_origin(0), 0, 2), (0, 0, 4)]


def test_sessions_that_wait_for_each_other_stay_together():
    workload = Workload("graph")
    workload.add([(0, 0, 4)], 1, time_ms=0.0, after=[])
    workload.add([(0, 0, 4)], 1, time_ms=10.0, after=[])
    workload.add([(0, 0, 4)], 1, time_ms=5.0, after=[0])
    part = slice_workload(workload, duration_ms=5.0)
    assert part.dependencies == {0: (), 1: (0,)}
    with pytest.raises(InputError, match="nothing is left: 2 sessions arrive from 0 to 10 ms"):
        slice_workload(workload, start_ms=11.0)


@settings(max_examples=60, deadline=None)
@given(
    workload=block_workloads(max_requests=12) | block_workloads(max_requests=12, graph=True),
    small=st.floats(0.05, 0.9),
    seed=st.integers(0, 5),
)
def test_a_smaller_sample_is_part_of_a_larger_one(workload: Workload, small: float, seed: int):
    workload.request_ids = [f"r{number}" for number in range(workload.num_requests)]

    def names(share: float) -> set[str]:
        try:
            return set(slice_workload(workload, sample=share, seed=seed).request_ids)
        except InputError:
            return set()

    assert names(small) <= names(min(1.0, small * 1.5)) <= names(1.0) == set(workload.request_ids)
    sampled = names(small)
    for request, following in enumerate(workload.next_turn):
        if following >= 0:
            assert (f"r{request}" in sampled) == (f"r{following}" in sampled)


def test_another_seed_is_another_sample():
    workload = Workload("many")
    for number in range(200):
        workload.add([(number, 0, 4)], 1, time_ms=float(number))
    samples = [list(slice_workload(workload, sample=0.5, seed=seed).time_ms) for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    assert 70 < len(samples[0]) < 130


def test_rescaling_divides_arrivals_and_delays():
    assert list(rescale(three(), speedup=2.0).time_ms) == [0.0, 500.0, 2500.0, 1000.0]
    scaled = rescale(three(), rate_per_s=3.0)  # 3 sessions in 2 s before
    assert list(scaled.time_ms) == [0.0, 500.0, 2500.0, 1000.0]
    assert list(three().time_ms) == [0.0, 1000.0, 5000.0, 2000.0]
    workload = Workload("burst")
    workload.add([(0, 0, 4)], 1, time_ms=0.0)
    with pytest.raises(InputError, match="at one instant, so their rate cannot be scaled"):
        rescale(workload, rate_per_s=1.0)


@settings(max_examples=80, deadline=None)
@given(workload=block_workloads())
def test_anonymous_traces_share_exactly_what_they_did(workload: Workload, tmp_path_factory: pytest.TempPathFactory):
    path: Path = tmp_path_factory.getbasetemp() / "anonymous"
    assert written(workload, "mooncake", path, block_size=BLOCK, anonymise=True) == []
    back = load_trace([path], block_size=BLOCK)
    before, after = meaning(workload), meaning(back)
    assert (after.tokens, after.waits, after.time_ms) == (before.tokens, before.waits, before.time_ms)
    assert tokens_of(back, with_outputs=False) == tokens_of(workload, with_outputs=False)
    assert not back.request_ids
    assert set(back.session_ids) <= {str(r) for r in range(8)} | {f"session-{s}" for s in range(8)}
    ids = [start // BLOCK for request in range(back.num_requests) for _, start, _ in back.prompt_runs(request)]
    assert ids[0] == 0
