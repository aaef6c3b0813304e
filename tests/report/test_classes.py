"""Classes of clients in reports: each judged by its own limits, all of them adding up to the whole."""

from __future__ import annotations

import json

import pytest
from handmade import FOUR_PASS_ENDS_MS, HandmadeResult, add_passes, complete, empty_result

from windtunnel import simulate
from windtunnel.config.schema import Config
from windtunnel.report.classes import summarize_classes
from windtunnel.report.document import build_report, encode_report, summarize_result
from windtunnel.report.requests import request_records
from windtunnel.report.table import class_lines
from windtunnel.workload.session import Workload

LOAD = {"isl": 8, "osl": 1, "requests": 2, "rate": 1.0}


def two_classes(fast: dict[str, float] | None, slow: dict[str, float] | None, **slo: float) -> HandmadeResult:
    """Dynamo's measured run of four prompts with 1, 2, 5 and 9 tokens: TTFT 56.804864, E2E 56.8, 63.8, 83.6, 108.3."""
    result = empty_result(4)
    add_passes(result, 0, list(FOUR_PASS_ENDS_MS))
    for request, tokens in enumerate((1, 2, 5, 9)):
        complete(result, request, list(range(tokens)), input_tokens=512)
    result.workload.class_names = ["fast", "slow"]
    result.workload.class_ends.extend((2, 4))
    classes = {"fast": {**LOAD, "slo": fast}, "slow": {**LOAD, "slo": slow}}
    result.config = Config.model_validate({"workload": {"classes": classes}, "slo": slo})
    return result


@pytest.mark.parametrize(
    ("fast", "slow", "slo", "good"),
    [
        ({"e2e_ms": 60.0}, {"e2e_ms": 100.0}, {}, [1, 1]),
        ({"e2e_ms": 60.0}, {"e2e_ms": 110.0}, {}, [1, 2]),
        ({"ttft_ms": 50.0}, {"ttft_ms": 60.0}, {}, [0, 2]),
        ({"ttft_ms": 60.0, "e2e_ms": 60.0}, {"itl_ms": 6.6}, {}, [1, 1]),
        ({"e2e_ms": 60.0}, None, {}, [1, 2]),  # nothing limits the other class
        ({"e2e_ms": 60.0}, None, {"e2e_ms": 100.0}, [1, 1]),  # what limits all limits it
        (None, None, {"e2e_ms": 100.0}, [2, 1]),
    ],
)
def test_each_class_is_judged_by_its_own_limits(fast, slow, slo, good):
    report = build_report(two_classes(fast, slow, **slo))
    classes = report["summary"]["classes"]
    assert [classes[name]["goodput_completed_requests"] for name in ("fast", "slow")] == good
    assert report["summary"]["goodput_completed_requests"] == sum(good)


def test_without_any_limit_there_is_no_goodput():
    report = build_report(two_classes(None, None))
    assert "goodput_completed_requests" not in report["summary"]
    assert "goodput_completed_requests" not in report["summary"]["classes"]["fast"]


def test_classes_add_up_to_the_whole():
    result = two_classes({"e2e_ms": 60.0}, {"e2e_ms": 100.0})
    whole = summarize_result(result)
    classes = list(build_report(result)["summary"]["classes"].values())
    added = [key for key in classes[0] if key.endswith(("_requests", "_tok_s", "_rps", "_tokens", "preemptions"))]
    assert len(added) > 12
    for key in added:
        assert sum(one[key] for one in classes) == pytest.approx(whole[key]), key


def test_the_latencies_of_a_class_are_those_of_its_requests():
    classes = build_report(two_classes(None, None))["summary"]["classes"]
    assert classes["fast"]["max_e2e_latency_ms"] == pytest.approx(63.828752)
    assert classes["slow"]["min_e2e_latency_ms"] == pytest.approx(83.636422)
    assert classes["slow"]["mean_tpot_ms"] == pytest.approx((6.7078895 + 6.44188275) / 2)


def test_one_class_of_everything_has_the_numbers_of_the_whole():
    result = two_classes(None, None)
    result.workload.class_names = ["all"]
    result.workload.class_ends = result.workload.class_ends[1:]
    result.config = Config.model_validate({"workload": {"classes": {"all": LOAD}}, "slo": {"e2e_ms": 100.0}})
    whole = summarize_result(result)
    (alone,) = summarize_classes(result.workload, result.record, result.config.slo, [result.config.slo]).values()
    assert {key: whole[key] for key in alone} == alone
    assert len(alone) > 60


def test_the_class_of_each_request_is_in_its_record():
    records = list(request_records(two_classes(None, None)))
    assert [record["class"] for record in records] == ["fast", "fast", "slow", "slow"]
    assert "class" not in next(iter(request_records(empty_result(1))))


def test_the_table_has_a_line_for_each_class():
    header, fast, slow = class_lines(two_classes({"e2e_ms": 60.0}, None), 160)
    assert header.split()[:4] == ["Class", "requests", "completed", "within"]
    assert fast.split()[:4] == ["fast", "2", "2", "1"]
    assert slow.split()[:4] == ["slow", "2", "2", "2"]
    assert "within" not in class_lines(two_classes(None, None), 160)[0]


def test_classes_of_a_workload_made_in_python():
    workload = Workload("mine")
    for name, tokens in (("short", 8), ("long", 800)):
        for _ in range(3):
            workload.add([(tokens, 0, tokens)], 2, time_ms=0.0)
        workload.end_class(name)
    workload.add([(9, 0, 9)], 2, time_ms=0.0)
    report = build_report(simulate(Config.model_validate({"slo": {"ttft_ms": 1e6}}), workload=workload))
    assert report["workload"]["classes"]["long"]["total_input_tokens"] == 2400
    assert [one["goodput_completed_requests"] for one in report["summary"]["classes"].values()] == [3, 3]
    assert report["summary"]["goodput_completed_requests"] == 7
    records = request_records(simulate(Config(), workload=workload))
    assert [record["class"] for record in records] == ["short"] * 3 + ["long"] * 3 + [None]


def test_columns_go_where_the_terminal_does_not_hold_them():
    wide, narrow = (class_lines(two_classes(None, None), width) for width in (160, 60))
    assert all(len(line) <= 60 for line in narrow)
    assert all(long.startswith(short) for long, short in zip(wide, narrow, strict=True))


def test_the_report_of_a_mixed_load_says_what_each_class_sends():
    config = Config.model_validate(
        {
            "workload": {
                "classes": {
                    "open": {"isl": 100, "osl": 5, "requests": 10, "rate": 20.0, "slo": {"ttft_ms": 100.0}},
                    "sessions": {"isl": 50, "osl": 3, "requests": 4, "turns": 2, "concurrency": 2},
                    "requests": {
                        "isl": 50,
                        "osl": 3,
                        "requests": 4,
                        "turns": 2,
                        "concurrency": 3,
                        "concurrency_by": "request",
                    },
                }
            },
            "output": {"run_info": False},
        }
    )
    report = build_report(simulate(config))
    assert encode_report(report) == encode_report(build_report(simulate(config)))
    assert json.loads(encode_report(report))["workload"]["loop"] == "mixed"
    assert report["workload"]["classes"] == {
        "open": {
            "requests": 10,
            "sessions": 10,
            "total_input_tokens": 1000,
            "total_output_tokens": 50,
            "loop": "open",
        },
        "sessions": {
            "requests": 8,
            "sessions": 4,
            "total_input_tokens": 400,
            "total_output_tokens": 24,
            "loop": "closed",
            "concurrency": 2,
            "concurrency_counts": "sessions",
        },
        "requests": {
            "requests": 8,
            "sessions": 4,
            "total_input_tokens": 400,
            "total_output_tokens": 24,
            "loop": "closed",
            "concurrency": 3,
            "concurrency_counts": "requests",
        },
    }


def test_the_report_of_a_closed_loop_says_what_it_counts():
    workload = {"concurrency": 2, "synthetic": {"isl": 8, "osl": 2, "requests": 3, "turns": 2}}
    for by in ("session", "request"):
        config = Config.model_validate({"workload": {**workload, "concurrency_by": by}})
        assert build_report(simulate(config))["workload"]["concurrency_counts"] == f"{by}s"
