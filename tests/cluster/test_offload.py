"""Engines with KV tiers behind them: exact, alive, and unchanged by tiers that have nothing."""

from __future__ import annotations

from dataclasses import replace
from math import isclose, isnan
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_strategies import TIME_PARTS, at_boundaries, deployments, pressed, run_any, with_tiers
from sglang_strategies import sglang_deployments
from strategies import FlatTiming, Outcome, Scenario, Send, columns_of, fields_of, fuzz, scenarios
from windtunnel.assembly import engines
from windtunnel.engine.kv.haulage import Errand, Haulage
from windtunnel.engine.kv.levels import Levels
from windtunnel.engine.kv.link import Link
from windtunnel.engine.kv.offload import Offload, Promotion, Restore
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import Status


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """What the two outcomes do not agree on, to the last bit."""
    ours, theirs = columns_of(found.record), columns_of(expected.record)
    result = [f"{name}: {ours[name]}, expected {theirs[name]}" for name in theirs if ours[name] != theirs[name]]
    if found.error != expected.error:
        result.append(f"error: {found.error!r}, expected {expected.error!r}")
    return result


def counts_of(outcome: Outcome) -> list[object]:
    offload = outcome.record.offload
    assert offload is not None
    own = {name: value for name, value in fields_of(offload).items() if name != "tiers"}
    return [own, *(fields_of(tier) for tier in offload.tiers)]


def tier(num_blocks: int, gb_per_s: float | str = 0.004, **more: object) -> dict[str, object]:
    """Tokens are 1,000 bytes, so a block of four takes 1 ms over 0.004 GB/s."""
    return {"num_blocks": num_blocks, "write_gb_per_s": gb_per_s, "read_gb_per_s": gb_per_s, "latency_ms": 0.0, **more}


ENGINES: dict[str, dict[str, object]] = {
    "vllm": {"block_size": 4, "num_gpu_blocks": 4, "max_num_batched_tokens": 4},
    "sglang": {
        "kind": "sglang",
        "page_size": 4,
        "num_gpu_blocks": 5,
        "chunked_prefill_size": 4,
        "overlap_schedule": False,
    },
}
FIRST, FILLER = ((0, 0, 9),), ((1, 0, 13),)


def again(engine: str, offload: dict[str, object] | None) -> Outcome:
    """A prompt of nine tokens comes again after another has taken all of GPU memory; every pass takes 10 ms."""
    sends = (Send(FIRST, 1), Send(FILLER, 1, None, 100.0), Send(FIRST, 1, None, 200.0))
    scenario = with_tiers(Scenario(sends, ENGINES[engine], timing=FlatTiming(10.0)), offload)
    outcome = run_any(scenario)
    assert outcome.error == ""
    assert list(outcome.record.requests.status) == [Status.COMPLETED] * 3
    return outcome


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_without_tiers_an_evicted_prompt_is_computed_again(engine: str) -> None:
    requests = again(engine, None).record.requests
    assert requests.first_token_ms[2] - requests.arrival_ms[2] == 30.0
    assert requests.transfer_ms[2] == 0.0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("write", ["through", "back"])
def test_the_host_gives_an_evicted_prompt_back(engine: str, write: str) -> None:
    """Two blocks come back in 2 ms, and the last token takes one pass."""
    record = again(engine, {"kv_bytes_per_token": 1000, "write": write, "host": tier(100)}).record
    requests = record.requests
    assert record.offload is not None
    assert record.offload.restored_tokens == {2: [8]}
    assert requests.first_token_ms[2] - requests.arrival_ms[2] == 12.0
    assert (requests.transfer_ms[2], requests.queued_ms[2], requests.hit_tokens[2]) == (2.0, 0.0, 8)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_prefix_that_does_not_fit_the_host_is_restored_in_part(engine: str) -> None:
    """Finding 10: a host of one block, [A, B] on disk, 1 ms a read: one read, one copy, and the rest is computed."""
    offload = {"kv_bytes_per_token": 1000, "host": tier(1), "disk": tier(100)}
    record = again(engine, offload).record
    requests = record.requests
    assert record.offload is not None
    host, disk = record.offload.tiers
    assert (disk.hit_tokens, disk.read_bytes, host.hit_tokens, record.offload.fallbacks) == (4, 4000, 0, 1)
    assert requests.transfer_ms[2] == 2.0
    assert requests.first_token_ms[2] - requests.arrival_ms[2] == 22.0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_another_engine_finds_it_in_a_shared_tier_only(engine: str) -> None:
    restored: dict[int, list[int]]
    for scope, restored in (("private", {}), ("shared", {1: [8]})):
        sends = (Send(FIRST, 1), Send(FIRST, 1, None, 100.0))
        scenario = Scenario(sends, ENGINES[engine], workers=2, timing=FlatTiming(10.0))
        outcome = run_any(with_tiers(scenario, {"kv_bytes_per_token": 1000, "host": tier(100, scope=scope)}))
        assert outcome.record.offload is not None
        assert outcome.record.offload.restored_tokens == restored


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_who_waits_for_kv_is_overtaken(engine: str) -> None:
    """The copy takes 200 ms; meanwhile a short prompt comes and goes."""
    sends = (
        Send(FIRST, 1),
        Send(FILLER, 1, None, 100.0),
        Send(FIRST, 1, None, 200.0),
        Send(((7, 0, 3),), 1, None, 201.0),
    )
    offload = {"kv_bytes_per_token": 1000, "host": tier(100, 0.00004, write_gb_per_s="unlimited")}
    scenario = with_tiers(Scenario(sends, ENGINES[engine], timing=FlatTiming(10.0)), offload)
    requests = run_any(scenario).record.requests
    assert (requests.first_token_ms[3], requests.first_token_ms[2]) == (211.0, 410.0)


@pytest.mark.parametrize(("is_async", "first_token_ms"), [(False, 220.0), (True, 240.0)])
def test_asynchronous_engines_ask_for_kv_a_pass_later_and_see_it_a_pass_later(
    is_async: bool, first_token_ms: float
) -> None:
    """While another decodes. Asked for at 200 ms, there at 202, computed from 210; or else at 210, 212 and 230."""
    engine = {"block_size": 4, "num_gpu_blocks": 8, "async_scheduling": is_async}
    sends = (
        Send(FIRST, 1),
        Send(((2, 0, 4),), 16, None, 100.0),
        Send(((1, 0, 25),), 1, None, 100.0),
        Send(FIRST, 1, None, 195.0),
    )
    offload = {"kv_bytes_per_token": 1000, "host": tier(100)}
    outcome = run_any(with_tiers(Scenario(sends, engine, timing=FlatTiming(10.0)), offload))
    requests = outcome.record.requests
    assert (requests.transfer_ms[3], requests.hit_tokens[3]) == (2.0, 8)
    assert requests.first_token_ms[3] == first_token_ms


def test_the_most_urgent_goes_first_among_those_whose_kv_has_come_back() -> None:
    """Both wait for KV at once, which both get; then a batch of one takes the more urgent."""
    engine = {"block_size": 4, "num_gpu_blocks": 8, "max_num_seqs": 1, "scheduling_policy": "priority"}
    prompts = FIRST, ((3, 0, 9),)
    sends = (
        *(Send(prompt, 1) for prompt in prompts),
        Send(((1, 0, 32),), 1, None, 100.0),
        *(Send(prompt, 1, None, 200.0, priority) for prompt, priority in zip(prompts, (0, 1), strict=True)),
    )
    offload = {"kv_bytes_per_token": 1000, "host": tier(100)}
    requests = run_any(with_tiers(Scenario(sends, engine, timing=FlatTiming(10.0)), offload)).record.requests
    assert [requests.hit_tokens[number] for number in (3, 4)] == [8, 8]
    assert requests.first_token_ms[4] < requests.first_token_ms[3]


@given(deployments())
@fuzz(250)
def test_runs_give_the_record_of_single_passes(scenario: Scenario) -> None:
    found, expected = run_any(scenario), run_any(scenario, fast_forward=False)
    assert differences(found, expected) == []
    if found.complete:  # what is on its way when a simulation is stopped is not to be compared
        assert counts_of(found) == counts_of(expected)


@given(at_boundaries())
@fuzz(150)
def test_who_arrives_when_a_pass_ends_inside_a_run_is_in_time_for_the_next(scenario: Scenario) -> None:
    """Engines that begin a pass at one instant look at shared tiers in their order, inside a run or not."""
    found, expected = run_any(scenario), run_any(scenario, fast_forward=False)
    assert differences(found, expected) == []
    assert counts_of(found) == counts_of(expected)


@given(deployments())
@fuzz(120)
def test_every_run_ends_in_bounded_time_and_all_is_accounted_for(scenario: Scenario) -> None:
    """No configuration stalls, however small its pool and tiers; time adds up, waiting for KV included."""
    scenario = replace(scenario, max_time_s=None)
    outcome = run_any(scenario)
    assert outcome.error == ""
    requests = outcome.record.requests
    offload = outcome.record.offload
    assert offload is not None
    for number, send in enumerate(scenario.sends):
        status = Status(requests.status[number])
        assert status not in (Status.UNFINISHED, Status.FAILED) or scenario.engine.get("kind") == "sglang"
        if status in (Status.COMPLETED, Status.CANCELLED):
            spent_ms = sum(getattr(requests, part)[number] for part in TIME_PARTS)
            lived_ms = requests.terminal_ms[number] - requests.arrival_ms[number]
            assert isclose(spent_ms, lived_ms, rel_tol=1e-9, abs_tol=1e-9)
        restored = sum(offload.restored_tokens.get(number, ()))
        assert restored <= send.prompt_tokens
    tokens = sum(send.prompt_tokens + send.output_tokens for send in scenario.sends)
    # a pass takes at most 60 ms, a token at most 3.4 ms on each of its links, and a transfer 20 ms to its first byte
    arrived_ms = max(send.time_ms if send.time_ms == send.time_ms else 0.0 for send in scenario.sends)
    assert outcome.record.end_ms <= arrived_ms + 1000.0 * tokens * len(scenario.sends)


@given(deployments())
@fuzz(80)
def test_room_in_the_tiers_adds_up_and_nothing_stays_pinned(scenario: Scenario) -> None:
    made: list[Levels] = []

    def build(*args: Any) -> Levels:
        made.append(Levels(*args))
        return made[-1]

    with mock.patch.object(engines, "Levels", build):
        outcome = run_any(scenario)
    (levels,) = made
    for level in levels.made:
        tier = level.tier
        assert 0 <= tier.free_blocks <= tier.num_blocks
        assert tier.idle_blocks <= tier.num_blocks - tier.free_blocks
        if not any(other.holders for other in levels.made):
            assert tier.idle_blocks == tier.num_blocks - tier.free_blocks
    if outcome.complete:
        for offload in levels.offloads:
            assert not offload.parked
            assert not [holder for level in levels.made for holder in level.holders if is_live(holder)]


@given(deployments())
@fuzz(60)
def test_what_is_reported_of_each_tier_is_what_went_over_its_links(scenario: Scenario) -> None:
    """Counted by somebody who watches every transfer start and every request that waits."""
    made: list[Levels] = []
    sent: list[tuple[Link, Errand]] = []
    waiting: list[tuple[Restore, EngineRequest, bool]] = []
    start, park = Haulage.start, Offload._park

    def build(*args: Any) -> Levels:
        made.append(Levels(*args))
        return made[-1]

    def watch(haulage: Haulage, link: Link, errand: Errand, now_ms: float) -> None:
        sent.append((link, errand))
        start(haulage, link, errand, now_ms)

    def note(offload: Offload, restore: Restore, now_ms: float) -> None:
        assert restore.request is not None
        waiting.append((restore, restore.request, restore.request.admitted))
        park(offload, restore, now_ms)

    with (
        mock.patch.object(engines, "Levels", build),
        mock.patch.object(Haulage, "start", watch),
        mock.patch.object(Offload, "_park", note),
    ):
        outcome = run_any(scenario)
    (levels,) = made
    offload = outcome.record.offload
    assert offload is not None
    block_tokens = levels.made[0].tier.block_size
    for number, counts in enumerate(offload.tiers):
        its = [level for level in levels.made if level.name == counts.name]
        writes, reads = {id(level.writes) for level in its}, {id(level.reads) for level in its}
        ended = [(id(link), errand) for link, errand in sent if not isnan(errand.end_ms)]
        assert counts.written_bytes == sum(errand.size_bytes for link, errand in ended if link in writes)
        assert counts.read_bytes == sum(errand.size_bytes for link, errand in ended if link in reads)
        stored = sum(errand.size_bytes for link, errand in sent if id(link) in writes)
        assert counts.stored_tokens * bytes_per_token(scenario) == stored
        hits = sum(end - first for restore, _, _ in waiting for first, end, level in restore.pieces if level == number)
        assert counts.hit_tokens == hits * block_tokens
        promoted = sum(errand.size_bytes for _, errand in sent if isinstance(errand, Promotion)) if not number else 0
        held = sum(level.tier.num_blocks - level.tier.free_blocks for level in its) * block_tokens
        assert counts.stored_tokens + promoted // bytes_per_token(scenario) - counts.evicted_tokens == held
    assert offload.waits == sum(restore.first == restore.end for restore, _, _ in waiting)
    assert offload.cancelled == sum(restore.request is None for restore, _, _ in waiting)
    got: dict[int, int] = {}
    for restore, request, was_admitted in waiting:
        if restore.request is not None and not was_admitted and not isnan(restore.end_ms):
            got[request.number] = got.get(request.number, 0) + (restore.end - restore.first) * block_tokens
    assert {number: sum(tokens) for number, tokens in offload.restored_tokens.items()} == got


def bytes_per_token(scenario: Scenario) -> int:
    offload = scenario.engine["offload"]
    assert isinstance(offload, dict)
    found = offload["kv_bytes_per_token"]
    assert isinstance(found, int)
    return found


def is_live(holder: object) -> bool:
    return isinstance(holder, Restore) and holder.request is not None


@given(st.one_of(pressed(), scenarios(), sglang_deployments()))
@fuzz(80)
def test_a_tier_that_holds_nothing_changes_nothing(scenario: Scenario) -> None:
    plain = run_any(with_tiers(scenario, None))
    nothing = {"kv_bytes_per_token": 1, "host": {"num_blocks": 0, "write_gb_per_s": "unlimited"}}
    for write in ("through", "back"):
        assert differences(run_any(with_tiers(scenario, {**nothing, "write": write})), plain) == []


@given(
    st.one_of(pressed(), scenarios(), sglang_deployments()),
    st.sampled_from(["kv", "weighted", "least-loaded", "power-of-two", "session-affinity", "prefix-hash"]),
)
@fuzz(80)
def test_a_tier_that_holds_nothing_changes_nothing_for_a_router(scenario: Scenario, router: str) -> None:
    scenario = replace(scenario, router=router, router_options={}, tie_break="lowest", workers=max(scenario.workers, 2))
    if not scenario.engine.get("enable_prefix_caching", True) and router in ("kv", "weighted"):
        scenario = replace(scenario, router="least-loaded")
    plain = run_any(with_tiers(scenario, None))
    for scope in ("private", "shared"):
        nothing = {"kv_bytes_per_token": 1, "host": {"num_blocks": 0, "write_gb_per_s": "unlimited", "scope": scope}}
        assert differences(run_any(with_tiers(scenario, nothing)), plain) == []


@given(st.one_of(pressed(), scenarios(), sglang_deployments()))
@fuzz(60)
def test_writing_alone_changes_nothing(scenario: Scenario) -> None:
    """Tiers that are never hit, since no two prompts share anything, are not noticed."""
    sends = tuple(
        replace(send, runs=((1000 + number, 0, max(send.prompt_tokens, 1)),), after=None)
        for number, send in enumerate(scenario.sends)
    )
    scenario = replace(scenario, sends=sends)
    plain = run_any(with_tiers(scenario, None))
    if sum(plain.record.requests.preemptions):
        return  # who is preempted may get its own KV back
    host = {"num_blocks": 64, "write_gb_per_s": 0.001}
    assert differences(run_any(with_tiers(scenario, {"kv_bytes_per_token": 1000, "host": host})), plain) == []
