"""Every router places alike in runs and in single passes, and the KV index knows what single passes have published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sglang_strategies import run_sglang, sglang_deployments
from strategies import Dice, Scenario, columns_of, fuzz, run, scenarios
from topologies import RandomScaler, check, differences, scaled_scenarios, split_scenarios
from topologies import run as run_split
from windtunnel import RoutedRequest, WorkerView
from windtunnel.cluster.router.cache_view import CacheView
from windtunnel.cluster.router.kv import KvRouter, KvWeights
from windtunnel.record.columns import Status


def with_router(scenario: Scenario, entropy: bytes) -> Scenario:
    """The same behind one of the routers that look at caches or loads."""
    dice = Dice(entropy)
    kind = dice.pick("kv", "kv", "kv", "weighted", "least-loaded", "power-of-two", "session-affinity", "prefix-hash")
    options: dict[str, object] = {}
    if kind in ("kv", "weighted"):
        options = dice.pick(
            {}, {}, {"event_delay_ms": 2.5}, {"predicted_ttl_s": 0.05}, {"index": "approximate", "ttl_s": 0.3}
        )
    if kind == "kv":
        options = options | dice.pick(
            {},
            {"temperature": 0.7},
            {"overlap_credit": 2.0, "overlap_credit_decay": 1.0},
            {"active_request_weight": 1.5, "assume_kv_reuse": False},
            {"queue_threshold": 0.0},
            {"queue_threshold": 0.5, "queue_policy": "wspt"},
            {"queue_threshold": 0.0, "queue_policy": "lcfs", "prefill_load_decay": True},
            {"tie_break": "random"},
        )
    elif kind in ("least-loaded", "power-of-two", "session-affinity"):
        options = {"load": dice.pick("requests", "tokens", "kv")}
    return replace(scenario, router=kind, tie_break="lowest", router_options=options, workers=dice.number(1, 4))


@given(scenarios(), st.binary(min_size=6, max_size=6))
@fuzz(250)
def test_runs_and_single_passes_give_the_same_record(scenario: Scenario, entropy: bytes) -> None:
    routed = with_router(scenario, entropy)
    fast, slow = run(routed), run(routed, fast_forward=False)
    a, b = columns_of(fast.record), columns_of(slow.record)
    assert {key: (a[key], b[key]) for key in a if a[key] != b[key]} == {}
    assert fast.error == slow.error
    if fast.complete:
        assert Status.UNFINISHED not in list(fast.record.requests.status)
        assert all(scheduler.pool.free_blocks == scheduler.pool.num_blocks for scheduler in fast.schedulers)


class Watched(KvRouter):
    """A KV router that writes down what it knew of each prompt."""

    def __init__(self, block_size: int) -> None:
        super().__init__(CacheView(block_size, True, 0.0, 0.0), KvWeights(), Random(0))
        self.known: list[tuple[int, list[int]]] = []

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        blocks = request.input_tokens // self.view.block_size
        self.view.make_room(workers[-1].number + 1)
        known = self.view.look(request.content, blocks, now_ms, self.unread, self.refresh, self.publish)
        self.known.append((request.number, known.tolist()))
        return super().route(request, workers, now_ms)


@given(scenarios(), st.integers(1, 3))
@fuzz(250)
def test_a_router_knows_at_any_time_what_passes_that_have_ended_have_published(
    scenario: Scenario, workers: int
) -> None:
    """Beside it, passes one by one, whose pools publish block by block in the order of passes and requests."""
    block_size = scenario.config().engine.tokens_per_block
    in_spans, by_block = Watched(block_size), Watched(block_size)
    scenario = replace(scenario, workers=workers)
    run(scenario, router=in_spans)
    run(scenario, router=by_block, fast_forward=False, publish_events=True)
    assert in_spans.known == by_block.known
    for router in (in_spans, by_block):
        assert (router.view.index.refused, router.view.index.unknown) == (0, 0)


@given(sglang_deployments(), st.binary(min_size=6, max_size=6))
@fuzz(200)
def test_sglang_too_gives_the_same_record_in_runs_and_in_single_passes(scenario: Scenario, entropy: bytes) -> None:
    routed = with_router(scenario, entropy)
    fast, slow = run_sglang(routed), run_sglang(routed, fast_forward=False)
    a, b = columns_of(fast.record), columns_of(slow.record)
    assert {key: (a[key], b[key]) for key in a if a[key] != b[key]} == {}
    assert fast.error == slow.error


@given(sglang_deployments(), st.integers(1, 3))
@fuzz(200)
def test_a_router_knows_what_sglang_has_published_whether_in_runs_or_not(scenario: Scenario, workers: int) -> None:
    block_size = scenario.config().engine.tokens_per_block
    fast, slow = Watched(block_size), Watched(block_size)
    scenario = replace(scenario, workers=workers)
    run_sglang(scenario, router=fast)
    run_sglang(scenario, router=slow, fast_forward=False)
    assert fast.known == slow.known
    assert (slow.view.index.refused, slow.view.index.unknown) == (0, 0)


@given(scenarios(), st.binary(min_size=6, max_size=6), st.integers(2, 3))
@fuzz(120)
def test_data_parallel_ranks_too(scenario: Scenario, entropy: bytes, dp_size: int) -> None:
    routed = replace(with_router(scenario, entropy), topology={"cluster": {"dp_size": dp_size}})
    routed = replace(routed, workers=1 + routed.workers % 2)
    fast, slow = run(routed), run(routed, fast_forward=False)
    a, b = columns_of(fast.record), columns_of(slow.record)
    assert {key: (a[key], b[key]) for key in a if a[key] != b[key]} == {}
    assert fast.error == slow.error


@given(st.one_of(split_scenarios(), split_scenarios(sglang=True)), st.binary(min_size=6, max_size=6))
@fuzz(200)
def test_workers_that_only_prefill_or_decode_too(scenario: Scenario, entropy: bytes) -> None:
    routed = with_router(scenario, entropy)
    options = {k: v for k, v in routed.router_options.items() if k not in ("queue_threshold", "queue_policy")}
    routed = replace(routed, router_options=options)
    found = run_split(routed)
    check(routed, found)
    assert differences(found, run_split(routed, fast_forward=False)) == []


@given(scaled_scenarios(), st.binary(min_size=6, max_size=6))
@fuzz(150)
def test_workers_that_come_and_go_too(scaled: tuple[Scenario, RandomScaler], entropy: bytes) -> None:
    scenario, scaler = scaled
    routed = with_router(scenario, entropy)
    found = run_split(routed, autoscaler=scaler)
    check(routed, found)
    assert differences(found, run_split(routed, fast_forward=False, autoscaler=scaler)) == []
