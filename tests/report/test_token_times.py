import math
from collections import Counter

import numpy as np
import pytest
from handmade import add_passes, complete, empty_result, end, four_outputs
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.config.schema import SloConfig
from windtunnel.record.columns import Status
from windtunnel.report.metrics import summarize
from windtunnel.report.token_times import TokenTimes


def gap_counts(times: TokenTimes, chosen: list[bool]) -> Counter[float]:
    gaps, counts = times.gaps_ms(np.array(chosen, dtype=np.bool_))
    assert (counts > 0).all()
    result: Counter[float] = Counter()
    for gap, count in zip(gaps.tolist(), counts.tolist(), strict=True):
        result[gap] += count
    return result


def test_tokens_of_a_request_are_a_slice_of_the_passes():
    result = empty_result(1)
    add_passes(result, 0, [1.0, 3.0, 7.0, 15.0])
    complete(result, 0, [1, 2, 3])
    assert TokenTimes(result.record).of_request(0).tolist() == [3.0, 7.0, 15.0]


def test_a_break_takes_its_passes_out_of_the_slice():
    result = empty_result(1)
    add_passes(result, 0, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    complete(result, 0, [0, 1, 4, 5])
    times = TokenTimes(result.record)
    assert times.of_request(0).tolist() == [1.0, 2.0, 16.0, 32.0]
    assert gap_counts(times, [True]) == {1.0: 1, 14.0: 1, 16.0: 1}


def test_gap_counts_how_many_requests_emitted_on_both_its_sides():
    result = empty_result(3)
    add_passes(result, 0, [1.0, 3.0, 7.0, 15.0])
    complete(result, 0, [0, 1, 2, 3])
    complete(result, 1, [1, 2])
    complete(result, 2, [3])
    assert gap_counts(TokenTimes(result.record), [True] * 3) == {2.0: 1, 4.0: 2, 8.0: 1}


def test_gaps_of_requests_that_are_not_chosen_do_not_count():
    result = empty_result(2)
    add_passes(result, 0, [1.0, 3.0, 7.0, 15.0])
    complete(result, 0, [0, 3])
    complete(result, 1, [0, 1])
    times = TokenTimes(result.record)
    assert gap_counts(times, [False, True]) == {2.0: 1}
    assert gap_counts(times, [True, False]) == {14.0: 1}


def test_pass_numbers_belong_to_the_worker_of_the_request():
    result = empty_result(2, num_workers=3)
    add_passes(result, 0, [1.0, 2.0])
    add_passes(result, 2, [10.0, 30.0, 70.0])
    complete(result, 0, [0, 1], worker=0)
    complete(result, 1, [0, 2], worker=2)
    times = TokenTimes(result.record)
    assert times.of_request(1).tolist() == [10.0, 70.0]
    assert gap_counts(times, [True, True]) == {1.0: 1, 60.0: 1}


def test_second_token_comes_one_pass_after_the_first():
    result = four_outputs()
    second_ms = TokenTimes(result.record).second_ms()
    assert math.isnan(second_ms[0])
    assert second_ms[1:].tolist() == [63.828752] * 3


def test_second_token_comes_after_a_break_that_starts_at_the_first():
    result = empty_result(2)
    add_passes(result, 0, [1.0, 2.0, 4.0, 8.0, 16.0])
    complete(result, 0, [0, 3, 4])
    complete(result, 1, [0, 1, 4])
    assert TokenTimes(result.record).second_ms().tolist() == [8.0, 2.0]


def test_request_without_tokens_has_no_times_and_no_gaps():
    result = empty_result(1)
    end(result, 0, Status.COMPLETED, at_ms=5.0)
    times = TokenTimes(result.record)
    assert times.of_request(0).tolist() == []
    assert np.isnan(times.second_ms()).all()
    assert gap_counts(times, [True]) == {}


def test_record_without_workers_or_requests_has_no_gaps():
    assert gap_counts(TokenTimes(empty_result(0, num_workers=0).record), []) == {}


@st.composite
def runs(draw):
    """Engines with random pass durations, and requests that each emit in a random choice of their passes."""
    durations = st.sampled_from([0.0, 5.74, 6.0, 6.170433, 40.0]) | st.floats(1e-6, 1e4)
    num_workers = draw(st.integers(1, 3))
    ends = [np.cumsum(draw(st.lists(durations, min_size=1, max_size=25))).tolist() for _ in range(num_workers)]
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        worker = draw(st.integers(0, num_workers - 1))
        passes = draw(st.sets(st.integers(0, len(ends[worker]) - 1), min_size=1).map(sorted))
        requests.append((worker, passes, draw(st.sampled_from([True, True, False]))))
    return ends, requests


@settings(deadline=None)
@given(runs())
def test_summary_equals_the_one_computed_from_every_single_token(run):
    ends, requests = run
    result = empty_result(len(requests), num_workers=len(ends))
    for worker, ends_ms in enumerate(ends):
        add_passes(result, worker, ends_ms)
    gaps: list[float] = []
    ttst: list[float] = []
    for number, (worker, passes, completed) in enumerate(requests):
        complete(result, number, passes, worker=worker)
        tokens_ms = [ends[worker][p] for p in passes]
        assert TokenTimes(result.record).of_request(number).tolist() == tokens_ms
        if completed:
            gaps += np.diff(tokens_ms).tolist()
            ttst += np.diff(tokens_ms)[:1].tolist()
        else:
            result.record.requests.status[number] = Status.CANCELLED
    summary = summarize(result.workload, result.record, SloConfig())
    assert summary["total_output_tokens"] - summary["completed_requests"] == len(gaps)
    for metric, samples in (("itl_ms", gaps), ("ttst_ms", ttst)):
        if not samples:
            assert summary[f"max_{metric}"] == 0.0
            continue
        assert summary[f"mean_{metric}"] == pytest.approx(np.mean(samples), rel=1e-12)
        assert summary[f"std_{metric}"] == pytest.approx(np.std(samples), rel=1e-9, abs=1e-9)
        assert summary[f"min_{metric}"] == min(samples)
        assert summary[f"max_{metric}"] == max(samples)
        for name, percent in {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}.items():
            assert summary[f"{name}_{metric}"] == np.percentile(samples, percent)
