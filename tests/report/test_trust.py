"""What reports say about how far they can be trusted: ranges that were left, overhead, saturation, memory."""

from __future__ import annotations

import numpy as np
import pytest

from report.handmade import add_passes, complete, empty_result
from windtunnel import Config, simulate
from windtunnel.report.deployment import deployment_lines, describe_deployment
from windtunnel.report.document import build_report
from windtunnel.report.metrics import summarize
from windtunnel.report.table import fact_lines
from windtunnel.report.trust import trust_facts, trust_lines
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.overhead import Overhead


def result_with_range():  # type: ignore[no-untyped-def]
    """Two requests that decode together from pass 1 to 3, one of them alone until pass 6; passes take 1 s."""
    result = empty_result(2)
    add_passes(result, 0, [1000.0 * (i + 1) for i in range(7)])
    complete(result, 0, [0, 1, 2, 3], input_tokens=100)
    complete(result, 1, [0, 1, 2, 3, 4, 5, 6], input_tokens=1000)
    return result


def facts(result, measured):  # type: ignore[no-untyped-def]
    result.record.timing_range = measured
    return trust_facts(result.config, result.workload, result.record)


def test_contexts_are_counted_token_by_token() -> None:
    result = result_with_range()
    # decoded with contexts 102-104 and 1002-1007
    assert facts(result, MeasuredRange((1, 9), (1.0, 5000.0), (1, 9000)))["beyond_measured_contexts_ratio"] == 0.0
    assert facts(result, MeasuredRange((1, 9), (1.0, 1004.0), (1, 9000)))["beyond_measured_contexts_ratio"] == 3 / 9
    assert facts(result, MeasuredRange((1, 9), (103.5, 1004.0), (1, 9000)))["beyond_measured_contexts_ratio"] == 5 / 9
    assert facts(result, MeasuredRange((1, 9), (1.0, 50.0), (1, 9000)))["beyond_measured_contexts_ratio"] == 1.0


def test_batches_are_counted_in_time() -> None:
    result = result_with_range()
    assert facts(result, MeasuredRange((1, 2), (1.0, 5000.0), (1, 9000)))["beyond_measured_batches_ratio"] == 0.0
    assert facts(result, MeasuredRange((1, 1), (1.0, 5000.0), (1, 9000)))["beyond_measured_batches_ratio"] == 0.5
    assert facts(result, MeasuredRange((2, 9), (1.0, 5000.0), (1, 9000)))["beyond_measured_batches_ratio"] == 0.5


def test_prompts_are_counted_by_what_is_left_of_them() -> None:
    result = result_with_range()
    measured = MeasuredRange((1, 9), (1.0, 5000.0), (1, 500))
    assert facts(result, measured)["beyond_measured_prompts_ratio"] == 1000 / 1100
    result.record.requests.hit_tokens[1] = 600
    assert facts(result, measured)["beyond_measured_prompts_ratio"] == 0.0
    result.record.requests.hit_tokens[1] = 0
    result.config = Config.model_validate({"engine": {"max_num_batched_tokens": 256}})
    assert facts(result, measured)["beyond_measured_prompts_ratio"] == 0.0


def test_words() -> None:
    result = result_with_range()
    inside = facts(result, MeasuredRange((1, 9), (1.0, 5000.0), (1, 9000)))
    assert trust_lines(result.record, inside) == [
        ("Timing data", "measured: contexts within 1-5,000, batches within 1-9, prompts within 9,000 tokens a pass")
    ]
    outside = facts(result, MeasuredRange((1, 1), (1.0, 1004.0), (1, 9000)))
    result.record.timing_notes = ["a guess"]
    result.record.timing_overhead = Overhead(0.5, 0.01)
    assert trust_lines(result.record, outside) == [
        ("Overhead", "0.5 ms a pass and 0.01 ms a request in it, besides kernels"),
        (
            "Timing data",
            "extrapolated: 33.3% of output tokens had contexts outside 1-1,004; 50.0% of the time batches were outside "
            "1-1",
        ),
        ("Timing note", "a guess"),
    ]


def test_a_model_that_says_nothing_is_not_said_to_be_measured() -> None:
    result = result_with_range()
    assert not [key for key in facts(result, None) if key.startswith("beyond")]
    assert trust_lines(result.record, facts(result, None)) == []


def test_an_empty_simulation() -> None:
    result = empty_result(0)
    assert set(facts(result, MeasuredRange((1, 1), (1.0, 10.0), (1, 10))).values()) == {0.0}


def config_at(rate: float) -> Config:
    return Config.model_validate(
        {
            "workload": {"synthetic": {"isl": 2000, "osl": 200, "requests": 150, "rate": rate}},
            "timing": {"model": "Llama-3.1-8B", "gpu": "h100-sxm"},
        }
    )


def test_near_saturation() -> None:
    flags = []
    for rate in (1.0, 5.0, 40.0):
        config = config_at(rate)
        result = simulate(config)
        found = trust_facts(config, result.workload, result.record)
        assert 0.0 <= found["prompt_busy_ratio"] <= 1.0
        flags.append(found["near_saturation"])
    assert flags[0] == 0
    assert flags[-1] == 1


def test_busy_time_counts_overlaps_once() -> None:
    result = empty_result(3)
    add_passes(result, 0, [2000.0, 4000.0, 20_000.0])
    complete(result, 0, [0, 1], arrival_ms=0.0)
    complete(result, 1, [1, 2], arrival_ms=1000.0)
    complete(result, 2, [2], arrival_ms=10_000.0)
    # 0 to 4 s of 10 s of arrivals
    assert facts(result, None)["prompt_busy_ratio"] == pytest.approx(0.4)


def test_a_closed_loop_is_saturated_on_purpose() -> None:
    result = result_with_range()
    result.config = Config.model_validate({"workload": {"path": ["t.jsonl"], "concurrency": 4}})
    assert facts(result, None) == {}


def test_the_deployment_in_reports() -> None:
    config = config_at(1.0)
    found = describe_deployment(config)
    assert found is not None
    assert found["model"] == "meta-llama/Meta-Llama-3.1-8B"
    assert found["kv_cache_from"] == "memory plan"
    assert found["memory_plan"]["weight_bytes"] == pytest.approx(16.06e9, rel=0.001)
    taken = sum(found["memory_plan"][f"{name}_bytes"] for name in ("weight", "activation", "runtime", "kv_cache"))
    assert taken == pytest.approx(0.9 * found["memory_plan"]["memory_bytes"], abs=4)
    lines = dict(deployment_lines(config))
    assert lines["KV cache"] == (
        f"{config.engine.num_gpu_blocks:,} x 64 tokens: 90% of 85.0 GB - 16.1 weights - 0.8 activations - "
        "0.7 graphs and libraries = 58.9 GB, 131,072 bytes a token"
    )
    given = Config.model_validate({**config.model_dump(), "engine": {"num_gpu_blocks": 100}})
    assert "100 x 64 tokens, as given; " in dict(deployment_lines(given))["KV cache"]
    assert describe_deployment(Config()) is None


def test_a_report_that_is_given_back_says_the_same() -> None:
    result = simulate(config_at(2.0))
    report = build_report(result)
    again = build_report(simulate(Config.model_validate(report["config"])))
    report.pop("run"), again.pop("run")
    assert report == again
    assert report["summary"]["pass_overhead_ms"] == 0.65
    text = "\n".join(fact_lines(result, summarize(result.workload, result.record, result.config.slo), 120))
    assert "Deployment" in text
    assert "Timing data" in text
    assert np.isfinite(report["summary"]["kv_occupancy_ratio"])
