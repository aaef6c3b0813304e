import numpy as np
import pytest
from handmade import FOUR_PASS_ENDS_MS, add_passes, complete, empty_result, end, four_outputs
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.config.schema import SloConfig
from windtunnel.record.columns import Status
from windtunnel.report.distribution import STATISTICS
from windtunnel.report.metrics import TERMINAL_STATES, request_latencies, summarize
from windtunnel.report.token_times import TokenTimes

NS = 1e-6  # the peer's times are rounded to nanoseconds


def summary_of(result, **slo):
    return summarize(result.workload, result.record, SloConfig(**slo))


def test_keys_and_their_order_are_fixed():
    keys = list(summary_of(empty_result(), e2e_ms=1.0))
    assert keys[:8] == [
        "num_requests",
        "completed_requests",
        "rejected_requests",
        "cancelled_requests",
        "failed_requests",
        "unfinished_requests",
        "not_arrived_requests",
        "preemptions",
    ]
    assert keys[8:22] == [
        "total_input_tokens",
        "total_output_tokens",
        "duration_ms",
        "request_throughput_rps",
        "input_throughput_tok_s",
        "output_throughput_tok_s",
        "total_throughput_tok_s",
        "prefill_worker_seconds",
        "decode_worker_seconds",
        "prefill_gpus_per_worker",
        "decode_gpus_per_worker",
        "gpu_hours",
        "goodput_completed_requests",
        "goodput_request_throughput_rps",
    ]
    assert keys[22:26] == [
        "goodput_output_throughput_tok_s",
        "processed_tokens",
        "prefix_cache_hit_ratio",
        "prefix_cache_reused_ratio",
    ]
    metrics = ("ttft_ms", "ttst_ms", "tpot_ms", "itl_ms", "e2e_latency_ms", "output_token_throughput_per_user")
    assert keys[26:] == [f"{statistic}_{metric}" for metric in metrics for statistic in STATISTICS]


def test_nothing_to_report_is_zeros():
    summary = summary_of(empty_result())
    assert summary.pop("decode_gpus_per_worker") == 1
    assert set(summary.values()) == {0}


def test_four_outputs_have_the_measured_latencies():
    summary = summary_of(four_outputs())
    e2e_ms = [56.804864, 63.828752, 83.636422, 108.339926]
    tpot_ms = [7.023888, 6.7078895, 6.44188275]
    assert summary["duration_ms"] == 108.339926
    assert [summary[f"{s}_ttft_ms"] for s in STATISTICS] == [56.804864] * 8 + [0.0]
    assert [summary[f"{s}_ttst_ms"] for s in STATISTICS] == pytest.approx([7.023888] * 8 + [0.0], abs=NS)
    assert summary["mean_e2e_latency_ms"] == pytest.approx(78.152491, abs=NS)
    assert summary["std_e2e_latency_ms"] == pytest.approx(20.0140288833, abs=NS)
    assert summary["median_e2e_latency_ms"] == np.percentile(e2e_ms, 50)
    assert summary["p75_e2e_latency_ms"] == np.percentile(e2e_ms, 75)
    assert summary["p99_e2e_latency_ms"] == np.percentile(e2e_ms, 99)
    assert summary["mean_tpot_ms"] == pytest.approx(6.72455341667, abs=NS)
    assert summary["median_tpot_ms"] == pytest.approx(6.7078895, abs=NS)
    assert summary["std_tpot_ms"] == pytest.approx(0.237894643832, abs=NS)
    assert summary["p90_tpot_ms"] == pytest.approx(np.percentile(tpot_ms, 90), abs=NS)
    assert summary["mean_itl_ms"] == pytest.approx(6.56850061538, abs=NS)
    assert summary["std_itl_ms"] == pytest.approx(0.309555860613, abs=NS)
    assert summary["min_itl_ms"] == pytest.approx(6.17462, abs=NS)
    assert summary["max_itl_ms"] == pytest.approx(7.023888, abs=NS)
    gaps_ms = np.repeat(np.diff(FOUR_PASS_ENDS_MS), [3, 2, 2, 2, 1, 1, 1, 1])
    assert summary["median_itl_ms"] == np.percentile(gaps_ms, 50)
    assert summary["p90_itl_ms"] == np.percentile(gaps_ms, 90)
    assert summary["median_itl_ms"] == pytest.approx(6.59954118374, rel=1e-3)  # the peer's sketch


def test_throughput_per_user_is_the_inverse_of_each_requests_tpot():
    summary = summary_of(four_outputs())
    per_user = [1000 / 7.023888, 1000 / 6.7078895, 1000 / 6.44188275]
    assert summary["mean_output_token_throughput_per_user"] == pytest.approx(np.mean(per_user))
    assert summary["max_output_token_throughput_per_user"] == pytest.approx(max(per_user))
    assert summary["p75_output_token_throughput_per_user"] == pytest.approx(np.percentile(per_user, 75))


def test_throughputs_are_totals_over_the_duration():
    summary = summary_of(four_outputs())
    assert summary["total_input_tokens"] == 2048
    assert summary["total_output_tokens"] == 17
    assert summary["processed_tokens"] == 2065
    assert summary["request_throughput_rps"] == pytest.approx(4 / 0.108339926)
    assert summary["input_throughput_tok_s"] == pytest.approx(2048 / 0.108339926)
    assert summary["output_throughput_tok_s"] == pytest.approx(17 / 0.108339926)
    assert summary["total_throughput_tok_s"] == pytest.approx(2065 / 0.108339926)
    assert summary["decode_worker_seconds"] == pytest.approx(0.108339926)
    assert summary["gpu_hours"] == pytest.approx(0.108339926 / 3600)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ({"itl_ms": 6.6}, 2),
        ({"itl_ms": 6.9}, 3),
        ({"itl_ms": 7.1}, 4),
        ({"ttft_ms": 56.0, "itl_ms": 8.0}, 0),
        ({"ttft_ms": 80.0, "itl_ms": 6.6}, 2),
        ({"ttft_ms": 80.0, "itl_ms": 8.0}, 4),
        ({"e2e_ms": 60.0}, 1),
        ({"e2e_ms": 100.0}, 3),
        ({"e2e_ms": 110.0}, 4),
        ({"itl_ms": 6.9, "e2e_ms": 100.0}, 2),
        ({"ttft_ms": 80.0, "itl_ms": 8.0, "e2e_ms": 110.0}, 4),
        ({"ttft_ms": 0.0}, 0),
    ],
)
def test_goodput_counts_requests_within_every_limit(slo, good):
    assert summary_of(four_outputs(), **slo)["goodput_completed_requests"] == good


def test_limit_that_is_met_exactly_holds():
    assert summary_of(four_outputs(), ttft_ms=56.804864)["goodput_completed_requests"] == 4
    assert summary_of(four_outputs(), e2e_ms=108.339926)["goodput_completed_requests"] == 4


def test_goodput_rates_are_over_the_same_duration():
    summary = summary_of(four_outputs(), itl_ms=6.6)
    assert summary["goodput_request_throughput_rps"] == pytest.approx(18.4604150459)
    assert summary["goodput_output_throughput_tok_s"] == pytest.approx(92.3020752294)


def test_no_limit_no_goodput():
    assert not [key for key in summary_of(four_outputs()) if key.startswith("goodput")]


@pytest.mark.parametrize(
    ("slo", "good"),
    [({"e2e_ms": 24.0}, 0), ({"e2e_ms": 25.0}, 1), ({"ttft_ms": 1e9}, 0), ({"itl_ms": 1e9, "e2e_ms": 1e9}, 0)],
)
def test_completion_without_output_is_judged_by_e2e_only(slo, good):
    result = empty_result(1)
    end(result, 0, Status.COMPLETED, at_ms=24.385704)
    assert summary_of(result, **slo)["goodput_completed_requests"] == good


def test_completion_without_output_counts_but_has_no_latencies():
    result = empty_result(1)
    end(result, 0, Status.COMPLETED, at_ms=24.385704)
    summary = summary_of(result)
    assert summary["completed_requests"] == 1
    assert summary["total_input_tokens"] == 10
    assert summary["duration_ms"] == 24.385704
    assert summary["max_ttft_ms"] == summary["max_e2e_latency_ms"] == summary["max_itl_ms"] == 0.0


def test_one_token_has_ttft_and_e2e_but_no_gaps():
    result = empty_result(1)
    add_passes(result, 0, [30.0])
    complete(result, 0, [0])
    summary = summary_of(result)
    assert summary["mean_ttft_ms"] == summary["mean_e2e_latency_ms"] == 30.0
    assert summary["max_ttst_ms"] == summary["max_tpot_ms"] == summary["max_itl_ms"] == 0.0
    assert summary["max_output_token_throughput_per_user"] == 0.0


def test_latencies_count_from_arrival():
    result = empty_result(2)
    add_passes(result, 0, [30.0, 50.0, 60.0])
    complete(result, 0, [0, 1, 2], arrival_ms=10.0)
    complete(result, 1, [1, 2], arrival_ms=15.0)
    summary = summary_of(result)
    assert summary["mean_ttft_ms"] == (20.0 + 35.0) / 2
    assert summary["mean_ttst_ms"] == (20.0 + 10.0) / 2
    assert summary["mean_tpot_ms"] == (15.0 + 10.0) / 2
    assert summary["mean_itl_ms"] == (20.0 + 10.0 + 10.0) / 3
    assert summary["mean_e2e_latency_ms"] == (50.0 + 45.0) / 2


def test_duration_runs_from_the_first_arrival_to_the_last_completion():
    result = empty_result(3)
    add_passes(result, 0, [130.0, 150.0])
    end(result, 0, Status.REJECTED, at_ms=100.0, arrival_ms=100.0)
    complete(result, 1, [0, 1], arrival_ms=110.0)
    end(result, 2, Status.CANCELLED, at_ms=900.0, arrival_ms=120.0)
    assert summary_of(result)["duration_ms"] == 50.0


def test_only_completed_requests_make_tokens_latencies_and_hits():
    result = empty_result(2)
    add_passes(result, 0, [30.0, 40.0, 1000.0])
    complete(result, 0, [0, 1], input_tokens=100)
    complete(result, 1, [0, 2], input_tokens=900)
    requests = result.record.requests
    requests.hit_tokens[0], requests.reused_tokens[0], requests.hit_tokens[1] = 25, 50, 900
    requests.preemptions[0], requests.preemptions[1] = 1, 2
    requests.status[1] = Status.CANCELLED
    summary = summary_of(result)
    assert summary["max_e2e_latency_ms"] == 40.0
    assert summary["max_itl_ms"] == 10.0
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (100, 2)
    assert (summary["prefix_cache_hit_ratio"], summary["prefix_cache_reused_ratio"]) == (0.25, 0.5)
    assert summary["preemptions"] == 3


def test_latencies_of_unfinished_requests_are_those_they_have_reached():
    result = empty_result(1)
    add_passes(result, 0, [30.0, 40.0])
    complete(result, 0, [0, 1])
    result.record.requests.status[0] = Status.UNFINISHED
    latencies = request_latencies(result.record, TokenTimes(result.record))
    assert (latencies.ttft_ms[0], latencies.ttst_ms[0], latencies.tpot_ms[0]) == (30.0, 10.0, 10.0)
    assert np.isnan(latencies.e2e_ms[0])


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(Status)), max_size=30))
def test_terminal_states_add_up_to_all_requests(statuses):
    result = empty_result(len(statuses))
    for request, status in enumerate(statuses):
        if status is not Status.NOT_ARRIVED:
            end(result, request, status, at_ms=1.0)
    summary = summary_of(result)
    counts = {status: summary[f"{status.label}_requests"] for status in TERMINAL_STATES}
    assert sum(counts.values()) == summary["num_requests"] == len(statuses)
    assert counts == {status: statuses.count(status) for status in Status}


def test_values_are_plain_numbers():
    assert {type(value) for value in summary_of(four_outputs(), e2e_ms=1.0).values()} == {int, float}
