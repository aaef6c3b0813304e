"""Every scenario that the compiled peer was measured on, and the list of what is meant to differ.

Those of `scenarios.yaml` are played here; `ELSEWHERE` says where those of clusters are that need more than a trace and
a report.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.comparison import (
    REPOSITORY,
    Difference,
    agrees,
    answer,
    by_the_peers_rule,
    differences,
    known_differences,
    read,
    rules,
    scenarios,
    table,
)

QUICK = list(scenarios())
SHARED = list(scenarios(shared=True))
STATISTICS = [entry for entry in known_differences() if entry["rule"] in ("percentiles", "per-user")]

# Scenarios, and sections of the peer's engine (7.5: hand-offs in time; 10: data-parallel ranks), by test.
ELSEWHERE = {
    "34, 36": "cluster/test_kv_router.py::test_ties_are_even_draws_if_asked_for_and_else_the_lowest",
    "36": "cluster/test_kv_router.py::test_the_first_request_goes_anywhere_by_a_draw",
    "37": "cluster/test_kv_router.py::test_a_temperature_splits_two_workers_by_their_order_alone",
    "40": "cluster/test_kv_router.py::test_classes_share_by_deficit_round_robin",
    "40, limits": "cluster/test_kv_router.py::test_a_full_queue_rejects_the_request_and_the_run_goes_on",
    "43": "cluster/test_kv_router.py::test_the_overlap_credit_decays_with_prompt_work",
    "44": "cluster/test_kv_router.py::test_prompt_work_decays_over_the_time_that_is_expected_of_it",
    "45": "cluster/test_kv_router.py::test_sent_prompts_are_believed_until_their_time_rounded_up",
    "46": "cluster/test_kv_router.py::test_a_prompt_costs_fractions_of_blocks_but_holds_whole_ones",
    "49": "cluster/test_handoffs.py::test_sglang_reserves_before_it_computes",
    "54": "parity/test_parity.py::test_a_kv_router_on_mooncake_is_within_what_the_peer_varies",
    "55": "parity/test_parity.py::test_two_workers_on_the_start_of_mooncake_traces",
    "56": "cluster/test_scaling.py::test_a_replayed_schedule_takes_the_peers_times",
    "69": "cluster/test_scaling.py::test_who_is_starting_is_given_up_first_and_was_paid_for",
    "70": "cluster/test_scaling.py::test_the_highest_numbers_drain_first_and_numbers_are_never_used_again",
    "71": "cluster/test_scaling.py::test_a_window_averages_the_hit_shares_of_requests",
    "76": "cluster/test_scaling.py::test_round_robin_goes_on_among_those_that_are_left",
    "80": "cluster/test_bypass.py::test_little_is_few_tokens_that_are_a_small_share",
    "7.5": "cluster/test_handoffs.py::test_three_requests_that_share_a_prompt_take_the_peers_times",
    "10.2": "cluster/test_rank_groups.py::test_who_arrives_at_an_idle_rank_waits_for_the_others",
    "10.3": "cluster/test_rank_groups.py::test_ranks_take_the_peers_times_where_workers_of_their_own_do_not",
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_is_held_elsewhere_is_held(what: str) -> None:
    file, name = ELSEWHERE[what].split("::")
    assert f"def {name}(" in (REPOSITORY / "tests" / file).read_text()


def test_all_scenarios_of_clusters_are_somewhere() -> None:
    played = {re.split(r"[-,]", name)[0] for name in (*QUICK, *SHARED, *ELSEWHERE)}
    assert {str(number) for number in (*range(31, 57), 69, 70, 71, 76, 80)} <= played


def check(name: str, folder: Path) -> None:
    """Fail unless the differences of a scenario are exactly those of the list."""
    scenario = {**scenarios(), **scenarios(shared=True)}[name]
    found = {difference.field: difference for difference in differences(scenario, answer(scenario, folder))}
    listed = {entry["field"]: entry for entry in known_differences() if entry["scenario"] == name}
    unlisted = [difference for field, difference in found.items() if field not in listed]
    assert not unlisted, "the peer answers otherwise, and differences.yaml does not say why"
    assert not listed.keys() - found.keys(), "listed in differences.yaml, but there is no difference any more"
    for field, difference in found.items():
        entry = listed[field]
        assert agrees(field, entry["peer"], difference.peer), f"{field}: differences.yaml misquotes the peer"
        assert as_listed(difference, entry["ours"]), f"{field}: our value is not the listed one: {difference.ours}"


def as_listed(difference: Difference, listed: float | str | None) -> bool:
    """Whether our value is the one listed; of a refusal, the list has the part that matters."""
    if isinstance(listed, str) and isinstance(difference.ours, str):
        return listed in difference.ours
    return agrees(difference.field, listed, difference.ours)


@pytest.mark.parametrize("name", QUICK)
def test_answers_differ_from_the_peers_only_where_listed(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.shared
@pytest.mark.parametrize("name", SHARED)
def test_answers_on_mooncake_differ_from_the_peers_only_where_listed(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def by_peers_rule_agrees(entry: dict[str, object], folder: Path) -> bool:
    scenario = {**scenarios(), **scenarios(shared=True)}[str(entry["scenario"])]
    field = str(entry["field"])
    return agrees(field, entry["peer"], by_the_peers_rule(answer(scenario, folder), field))  # type: ignore[arg-type]


def ids(entry: dict[str, object]) -> str:
    return f"{entry['scenario']}-{entry['field']}"


@pytest.mark.parametrize("entry", [e for e in STATISTICS if e["scenario"] in QUICK], ids=ids)
def test_our_samples_give_the_peers_statistics_by_its_definitions(entry: dict[str, object], tmp_path: Path) -> None:
    assert by_peers_rule_agrees(entry, tmp_path)


@pytest.mark.shared
@pytest.mark.parametrize("entry", [e for e in STATISTICS if e["scenario"] in SHARED], ids=ids)
def test_our_samples_of_mooncake_give_the_peers_statistics(entry: dict[str, object], tmp_path: Path) -> None:
    assert by_peers_rule_agrees(entry, tmp_path)


@pytest.mark.parametrize(
    "name", [name for name, s in scenarios().items() if re.search(r"\bline \d", s.get("error", ""))]
)
def test_refusals_name_the_same_line_as_the_peers(name: str, tmp_path: Path) -> None:
    scenario = scenarios()[name]
    line = re.search(r"line (\d+)", scenario["error"])
    ours = answer(scenario, tmp_path).error
    assert line is not None
    assert ours is not None
    assert ours.startswith(f"line {scenario.get('line', line[1])}:")


def test_a_row_without_a_timestamp_arrives_at_zero(tmp_path: Path) -> None:
    ours = answer(scenarios()["2-a"], tmp_path)
    assert ours.value("requests.arrival_ms[0]") == 0.0
    assert agrees("first_token_ms", 23.848302, ours.value("requests.first_token_ms[0]"))


def test_combined_limits_count_what_each_limit_leaves(tmp_path: Path) -> None:
    good = [
        answer(scenarios()[name], tmp_path).value("summary.goodput_completed_requests") for name in ("26-j", "26-k")
    ]
    assert good == [2, 4]  # what release 1.4.2 of the peer, which still combined them, counts


@pytest.mark.parametrize("seed", [42, 7])
def test_poisson_arrivals_have_the_moments_of_scenario_24(seed: int, tmp_path: Path) -> None:
    load = {"isl": 64, "osl": 1, "requests": 2000, "rate": 10}
    config = {"workload": {"synthetic": load}, "engine": {"num_gpu_blocks": 4000}, "seed": seed}
    ours = answer({"id": 24, "config": config}, tmp_path)
    arrivals_ms = np.array(ours.requests["arrival_ms"], dtype=np.float64)
    gaps_ms = np.diff(arrivals_ms)
    assert arrivals_ms[0] == 0.0
    assert abs(ours.summary["request_throughput_rps"] - 10.0) < 0.5
    assert gaps_ms.std() / gaps_ms.mean() == pytest.approx(1.0, abs=0.1)
    assert np.median(gaps_ms) == pytest.approx(100.0 * np.log(2.0), rel=0.1)


@pytest.mark.shared
@pytest.mark.parametrize(
    "draws", [{}, *({"cluster": {"router": {"tie_break": "random"}}, "seed": n} for n in range(4))]
)
def test_a_kv_router_on_mooncake_is_within_what_the_peer_varies(draws: dict[str, Any], tmp_path: Path) -> None:
    """Scenario 54: the peer breaks ties by chance; these are the ranges of 200 runs."""
    router = {"kind": "kv", **draws.get("cluster", {}).get("router", {})}
    config = {
        "workload": {"limit": 200},
        "engine": {"num_gpu_blocks": 16384},
        "cluster": {"workers": 4, "router": router},
        "seed": draws.get("seed", 0),
    }
    summary = answer(
        {"id": 54, "shared": "traces/mooncake_conversation_trace.jsonl", "config": config}, tmp_path
    ).summary
    assert 514.507 <= summary["mean_ttft_ms"] <= 524.749
    assert 0.04287 <= summary["prefix_cache_reused_ratio"] <= 0.05852
    assert 79774.154 <= summary["duration_ms"] <= 79801.343
    assert 11.1570 <= summary["mean_tpot_ms"] <= 11.6290


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (
            "synthetic_trace",
            {
                "duration_ms": 30913.940913,
                "mean_ttft_ms": 504.8967654,
                "mean_tpot_ms": 31.5996630007,
                "prefix_cache_reused_ratio": 0.0148083875633,
                "total_input_tokens": 1_313_850,
                "total_output_tokens": 17_729,
            },
        ),
        (
            "conversation_trace",
            {
                "duration_ms": 49591.412103,
                "mean_ttft_ms": 1097.85809283,
                "prefix_cache_reused_ratio": 0.0329078624449,
            },
        ),
    ],
)
def test_two_workers_on_the_start_of_mooncake_traces(trace: str, expected: dict[str, float], tmp_path: Path) -> None:
    """Scenario 55."""
    config = {"workload": {"limit": 100}, "engine": {"num_gpu_blocks": 16384}, "cluster": {"workers": 2}}
    scenario = {"id": 55, "shared": f"traces/mooncake_{trace}.jsonl", "config": config, "summary": expected}
    assert differences(scenario, answer(scenario, tmp_path)) == []


def test_the_comparison_finds_a_number_that_is_off_by_a_hundredth(tmp_path: Path) -> None:
    scenario = scenarios()["worked-1"]
    moved = {**scenario, "requests": [[0, 0, 30.556137, 42.909515, 0]]}
    found = differences(moved, answer(scenario, tmp_path))
    assert [(difference.field, difference.peer) for difference in found] == [("requests.last_token_ms[0]", 42.909515)]


def test_every_listed_difference_has_a_scenario_and_a_rule() -> None:
    entries = known_differences()
    assert {entry["rule"] for entry in entries} == set(read("differences.yaml")["rules"])
    assert {entry["scenario"] for entry in entries} <= {*QUICK, *SHARED}
    assert len({(entry["scenario"], entry["field"]) for entry in entries}) == len(entries)


def test_the_document_lists_exactly_the_known_differences_and_their_rules() -> None:
    document = (REPOSITORY / "docs" / "fidelity.md").read_text()
    rows = [line for line in document.splitlines() if line.startswith("| ") and "`" in line.split("|")[2]]
    assert rows == table().splitlines()[2:]
    assert rules() in document
