import io
import json
import math

import pytest
from handmade import HandmadeResult, add_passes, complete, empty_result, end, four_outputs
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel._version import __version__
from windtunnel.config.schema import Config, OutputConfig, SloConfig, SyntheticConfig, WorkloadConfig
from windtunnel.record.columns import Status
from windtunnel.report.document import build_report, encode_report
from windtunnel.report.metrics import summarize
from windtunnel.report.requests import write_requests


def test_report_has_its_five_sections_in_order():
    report = build_report(four_outputs())
    assert list(report) == ["version", "config", "workload", "summary", "run"]
    assert report["version"] == __version__
    summary = summarize(four_outputs().workload, four_outputs().record, SloConfig())
    assert {key: report["summary"][key] for key in summary} == summary
    assert list(report["summary"])[: len(summary)] == list(summary)


def test_config_of_the_report_runs_the_same_simulation():
    result = four_outputs()
    result.config = Config(workload=WorkloadConfig(path=["a.jsonl"], speedup=2.0), slo=SloConfig(ttft_ms=80.0), seed=7)
    assert Config.model_validate(build_report(result)["config"]) == result.config


def test_config_of_the_report_does_not_depend_on_where_files_go():
    result = four_outputs()
    before = build_report(result)["config"]
    result.config = Config(output=OutputConfig(report="elsewhere.json", run_info=False))
    assert build_report(result)["config"] == before


def test_workload_section_describes_what_was_asked_for():
    result = empty_result(4)
    for request, (inputs, outputs) in enumerate(((10, 1), (20, 2), (30, 3), (100, 10))):
        result.workload.input_tokens[request] = inputs
        result.workload.output_tokens[request] = outputs
        if request:
            end(result, request, Status.UNFINISHED, at_ms=90.0, arrival_ms=10.0 * request)
    assert build_report(result)["workload"] == {
        "source": "handmade",
        "requests": 4,
        "sessions": 4,
        "total_input_tokens": 160,
        "total_output_tokens": 16,
        "mean_input_tokens": 40.0,
        "median_input_tokens": 25.0,
        "p90_input_tokens": pytest.approx(79.0),
        "max_input_tokens": 100.0,
        "mean_output_tokens": 4.0,
        "median_output_tokens": 2.5,
        "p90_output_tokens": pytest.approx(7.9),
        "max_output_tokens": 10.0,
        "arrival_span_ms": 20.0,
        "loop": "open",
    }


def test_closed_loop_says_what_its_concurrency_counts():
    result = empty_result(1)
    result.config = Config(
        workload=WorkloadConfig(synthetic=SyntheticConfig(isl=10, osl=1, requests=1), concurrency=16)
    )
    workload = build_report(result)["workload"]
    assert workload["loop"] == "closed"
    assert workload["concurrency"] == 16
    assert workload["concurrency_counts"] == "sessions"


def test_run_section_counts_the_simulators_work():
    result = four_outputs()
    for passes in result.record.passes:
        passes.decode_runs, passes.passes_in_runs, passes.single_passes, passes.cuts = 3, 8, 1, 2
    run = build_report(result)["run"]
    assert run.pop("peak_memory_mb") > 1.0
    assert run == {
        "wall_time_ms": 250.0,
        "requests_per_s": 16.0,
        "processed_tokens_per_s": 2065 / 0.25,
        "engine_passes": 9,
        "decode_runs": 3,
        "passes_in_decode_runs": 8,
        "single_passes": 1,
        "cuts": 2,
    }


def test_run_section_can_be_left_out():
    result = four_outputs()
    result.config = Config(output=OutputConfig(run_info=False))
    assert list(build_report(result)) == ["version", "config", "workload", "summary"]


def test_interrupted_simulation_says_why():
    result = four_outputs()
    assert "interrupted" not in build_report(result)["summary"]
    result.record.interrupted = "time cap"
    assert build_report(result)["summary"]["interrupted"] == "time cap"


def test_encoding_is_indented_and_ends_with_a_newline():
    assert encode_report({"b": 1, "a": {"é": None}}) == '{\n  "b": 1,\n  "a": {\n    "é": null\n  }\n}\n'.encode()


def test_number_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        encode_report({"a": math.nan})


@st.composite
def results(draw) -> HandmadeResult:
    statuses = draw(st.lists(st.sampled_from(list(Status)), max_size=8))
    result = empty_result(len(statuses))
    add_passes(result, 0, [10.0, 17.5, 25.0, 100.0])
    for request, status in enumerate(statuses):
        passes = draw(st.sets(st.integers(0, 3)).map(sorted))
        if status is Status.NOT_ARRIVED:
            continue
        if passes and status is not Status.REJECTED:
            complete(result, request, passes)
            result.record.requests.status[request] = status
        else:
            end(result, request, status, at_ms=10.0)
    result.config = Config(slo=SloConfig(itl_ms=draw(st.none() | st.floats(0.0, 30.0))))
    return result


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in JSON")


@settings(deadline=None)
@given(results())
def test_no_report_and_no_record_has_a_number_that_is_not_finite(result):
    file = io.BytesIO()
    write_requests(result, file)
    for text in (encode_report(build_report(result)), *file.getvalue().splitlines()):
        json.loads(text, parse_constant=refuse)


@settings(deadline=None)
@given(results())
def test_reports_of_one_result_are_the_same_bytes(result):
    result.config = result.config.model_copy(update={"output": OutputConfig(run_info=False)})
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        file.write(encode_report(build_report(result)))
        write_requests(result, file)
    assert files[0].getvalue() == files[1].getvalue()
