"""What the KV router weighs, with a peer's numbers where it has them, and what its queue does to requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from strategies import FlatTiming, Scenario, Send, run
from windtunnel import Config, PluginError, RoutedRequest, WorkerView, Workload, simulate
from windtunnel.cluster.router.base import TrackingRouter
from windtunnel.cluster.router.cache_view import CacheView
from windtunnel.cluster.router.kv import KvRouter, KvWeights
from windtunnel.cluster.router.prefill_load import UNKNOWN, PrefillLoad
from windtunnel.cluster.router.selection import choose
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.record.columns import Status
from windtunnel.workload.content import Content
from windtunnel.workload.urgency import Urgency

ENGINE: dict[str, object] = {"block_size": 64, "num_gpu_blocks": 1000}


class View:
    """A worker, as far as a KV router looks at it."""

    def __init__(self, number: int) -> None:
        self.number = number


def prompt(number: int, tokens: int, origin: int = 1) -> RoutedRequest:
    return RoutedRequest(number, number, 0, tokens, 1, Content.of([(origin, 0, tokens)]))


def costs_of(router: KvRouter, request: RoutedRequest, workers: int = 2, now_ms: float = 0.0) -> list[float]:
    router._notice([View(number) for number in range(workers)])  # type: ignore[misc]
    view = router.view
    cached = view.look(request.content, request.input_tokens // 64, now_ms, tuple, bool, lambda content: None)
    return router._costs(request.input_tokens, cached, view.active_of_last(), now_ms).tolist()


def kv_router(**weights: float) -> KvRouter:
    return KvRouter(CacheView(64, True, 0.0, 0.0), KvWeights(**weights), Random(0))  # type: ignore[arg-type]


def stored(router: KvRouter, worker: int, content: Content, blocks: int) -> None:
    router.cache_events(worker, [CacheEvent(True, content, 0, blocks)], 0.0)


# --- cost


def test_the_overlap_credit_decays_with_prompt_work() -> None:
    """Scenario 43: 10 blocks cached and 640 tokens outstanding on worker 0, worker 1 idle."""
    for decay, expected in ((1.0, [15.0, 10.0]), (0.0, [10.0, 10.0])):
        router = kv_router(overlap_credit_decay=decay, track_active_blocks=False)
        stored(router, 0, prompt(0, 640).content, 10)
        router.route(prompt(7, 640, origin=9), [View(0)], 0.0)  # type: ignore[list-item]
        assert costs_of(router, prompt(1, 640)) == expected


def test_a_prompt_costs_fractions_of_blocks_but_holds_whole_ones() -> None:
    """Scenario 46."""
    assert costs_of(kv_router(), prompt(0, 100)) == [1.5625 + 1, 1.5625 + 1]


def test_active_blocks_that_a_prompt_shares_are_counted_once() -> None:
    router = kv_router()
    router.route(prompt(0, 640), [View(0)], 0.0)  # type: ignore[list-item]
    router.first_token(0, 0, 1.0)
    assert costs_of(router, prompt(1, 640)) == [10 + 10, 10 + 10]
    router = kv_router(assume_kv_reuse=False)
    router.route(prompt(0, 640), [View(0)], 0.0)  # type: ignore[list-item]
    router.first_token(0, 0, 1.0)
    assert costs_of(router, prompt(1, 640)) == [10 + 20, 10 + 10]


def test_credit_above_one_never_makes_prompt_work_negative() -> None:
    router = kv_router(overlap_credit=3.0, track_active_blocks=False)
    stored(router, 0, prompt(0, 640).content, 10)
    assert costs_of(router, prompt(1, 640)) == [0.0, 10.0]


def test_what_was_placed_is_gone_when_it_has_ended() -> None:
    router = kv_router(active_request_weight=2.0)
    for number in range(3):
        router.route(prompt(number, 640, origin=number), [View(0)], 0.0)  # type: ignore[list-item]
    for number in range(3):
        router.ended(number, 0, 5.0)
    assert costs_of(router, prompt(9, 640)) == [20.0, 20.0]
    assert router.view.index.num_spans == 0


def test_prompt_work_decays_over_the_time_that_is_expected_of_it() -> None:
    """Scenario 44: 64 tokens in 10 s, then 64 more at 2 s; the first is done at 6 s."""
    load = PrefillLoad()
    load.add(0, 64, 10_000.0, 0.0)
    assert [load.decayed_tokens(ms) for ms in (0.0, 5000.0, 10_000.0)] == [64, 32, 0]
    load.add(1, 64, 10_000.0, 2000.0)
    assert load.decayed_tokens(5000.0) == 96
    assert load.remove(0, 6000.0)
    assert load.decayed_tokens(11_000.0) == 32
    assert not load.remove(0, 6000.0)


def test_prompt_work_of_unknown_duration_stays() -> None:
    load = PrefillLoad()
    load.add(0, 64, 10_000.0, 0.0)
    load.add(1, 64, UNKNOWN, 0.0)
    assert load.decayed_tokens(20_000.0) == 64
    load.remove(0, 20_000.0)
    assert load.decayed_tokens(90_000.0) == 64


def test_sent_prompts_are_believed_until_their_time_rounded_up() -> None:
    """Scenario 45."""
    view = CacheView(64, False, 0.0, 120_000.0)
    view.make_room(4)
    content = prompt(0, 640).content

    def known(now_ms: float) -> list[int]:
        return view.look(content, 10, now_ms, tuple, bool, lambda content: None).tolist()

    view.sent(3, content, 10, 30.0)
    assert known(120_099.0) == [0, 0, 0, 10]
    assert known(120_100.0) == [0, 0, 0, 0]
    view.sent(3, content, 10, 30.0)
    view.sent(3, content, 4, 60_000.0)
    assert known(130_000.0) == [0, 0, 0, 4]
    assert known(180_000.0) == [0, 0, 0, 0]


# --- choice


@pytest.mark.parametrize(("temperature", "share"), [(0.5, 0.881), (1.0, 0.731), (2.0, 0.622)])
def test_a_temperature_splits_two_workers_by_their_order_alone(temperature: float, share: float) -> None:
    """Scenario 37."""
    stream = Random(5)
    for costs in (np.array([8.0, 16.0]), np.array([8.0, 8.1])):
        counts = Counter(choose(costs, temperature, stream, False) for _ in range(4000))
        assert counts[0] / 4000 == pytest.approx(share, abs=0.025)


def test_a_temperature_draws_evenly_among_equals() -> None:
    stream = Random(5)
    counts = Counter(choose(np.array([3.0, 3.0, 3.0]), 1.0, stream, False) for _ in range(3000))
    assert [counts[place] for place in range(3)] == pytest.approx([1000] * 3, abs=110)


TIES: dict[str, tuple[float, dict[str, object]]] = {
    "a request that weighs what the prefix saves": (31.0, {"active_request_weight": 8.0}),
    "no weight for prompt work": (31.0, {"prefill_load_scale": 0.0}),
    "blocks that are counted anew": (31.0, {"assume_kv_reuse": False}),
    "no credit": (31.0, {"overlap_credit": 0.0}),
    "no prompt work, and nothing published": (10.0, {"track_prefill_tokens": False}),
}


@pytest.mark.parametrize("case", TIES)
def test_ties_are_even_draws_if_asked_for_and_else_the_lowest(case: str) -> None:
    """Scenarios 34 and 36, each measured as about 200 of 400."""
    at_ms, options = TIES[case]
    sends = (Send(((1, 0, 512),), 50, time_ms=0.0), Send(((1, 0, 512),), 2, time_ms=at_ms))

    def placed(seed: int, tie_break: str) -> list[int]:
        scenario = Scenario(sends, ENGINE, workers=2, router="kv", tie_break=tie_break, router_options=options)
        scenario = Scenario(**{**vars(scenario), "seed": seed})
        return run(scenario).record.requests.worker.tolist()

    assert placed(0, "lowest") == [0, 0]
    same = sum(a == b for a, b in (placed(seed, "random") for seed in range(100)))
    assert 33 <= same <= 67


def test_the_first_request_goes_anywhere_by_a_draw() -> None:
    counts = Counter(
        run(
            Scenario((Send(((1, 0, 64),), 1),), ENGINE, workers=3, router="kv", tie_break="random", seed=seed)
        ).record.requests.worker[0]
        for seed in range(150)
    )
    assert [counts[worker] for worker in range(3)] == pytest.approx([50] * 3, abs=22)


def test_a_prediction_closes_the_gap_before_the_first_event() -> None:
    """Worker 0 computes the prompt: 20 + 10 blocks without credit, 20 - 10 + 10 with it; the idle one costs 20."""
    sends = (Send(((1, 0, 640),), 50, time_ms=0.0), Send(((1, 0, 640),), 2, time_ms=1.0))
    for options, second in (({}, 1), ({"predicted_ttl_s": 1.0}, 0), ({"index": "approximate"}, 0)):
        scenario = Scenario(sends, ENGINE, workers=2, router="kv", router_options={"overlap_credit": 1.1, **options})
        assert run(scenario).record.requests.worker.tolist() == [0, second]


def test_late_events_are_not_known_yet() -> None:
    sends = (Send(((1, 0, 640),), 50, time_ms=0.0), Send(((1, 0, 640),), 2, time_ms=40.0))
    for delay_ms, second in ((0.0, 0), (7.0, 0), (8.0, 1)):  # the pass ends at 32.6 ms
        options: dict[str, object] = {"event_delay_ms": delay_ms, "active_request_weight": 1.0}
        scenario = Scenario(sends, ENGINE, workers=2, router="kv", router_options=options)
        assert run(scenario).record.requests.worker.tolist() == [0, second]


def test_without_prefix_caching_there_are_no_events_and_all_placements_are_those_of_load() -> None:
    sends = tuple(Send(((1, 0, 640),), 2, time_ms=500.0 * number) for number in range(4))
    scenario = Scenario(sends, {**ENGINE, "enable_prefix_caching": False}, workers=2, router="kv")
    outcome = run(scenario)
    assert outcome.record.requests.worker.tolist() == [0, 0, 0, 0]
    assert list(outcome.record.requests.hit_tokens) == [0, 0, 0, 0]


# --- the queue in front of the workers

POLICY = """
default_policy_family: latency
uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 1024, bucket: long}]
policy_classes:
  - {name: lat_s, policy_family: latency, cache_bucket: short, quantum: 1024, prefill_busy_threshold: 256 LIMIT}
  - {name: lat_l, policy_family: latency, cache_bucket: long, quantum: 256, prefill_busy_threshold: 256 LIMIT}
"""
ISL = (1024, 1024, 2048, 2048, 512, 512, 512)


def queued(tmp_path: Path, limit: str = "", **config: object) -> list[list[float]]:
    path = tmp_path / "classes.yaml"
    path.write_text(POLICY.replace(" LIMIT", limit))
    workload = Workload()
    for number, tokens in enumerate(ISL):
        workload.add([(number + 1, 0, tokens)], 1, time_ms=float(number))
    data = {
        "cluster": {"workers": 2, "router": {"kind": "kv", "policy_file": str(path)}},
        "engine": {**ENGINE, "num_gpu_blocks": 2000, "max_num_batched_tokens": 1024},
        **config,
    }
    columns = simulate(Config.model_validate(data), workload=workload).record.requests
    queued.status = [Status(status).label for status in columns.status]  # type: ignore[attr-defined]
    queued.reasons = columns.reasons  # type: ignore[attr-defined]
    queued.columns = columns  # type: ignore[attr-defined]
    return [list(row) for row in zip(columns.first_admit_ms, columns.first_token_ms, columns.worker, strict=True)]


def test_classes_share_by_deficit_round_robin(tmp_path: Path) -> None:
    """Scenario 40."""
    expected = [
        [0, 38.661145, 0],
        [1, 39.661145, 1],
        [70.002477, 141.581472, 1],
        [99.343809, 170.922804, 0],
        [38.661145, 69.002477, 0],
        [39.661145, 70.002477, 1],
        [69.002477, 99.343809, 0],
    ]
    for row, numbers in zip(queued(tmp_path), expected, strict=True):
        assert row == pytest.approx(numbers, abs=1e-3)


def test_a_full_queue_rejects_the_request_and_the_run_goes_on(tmp_path: Path) -> None:
    queued(tmp_path, ", request_queue_limit_per_worker: 1")
    assert queued.status == ["completed"] * 6 + ["rejected"]  # type: ignore[attr-defined]
    assert queued.reasons == {  # type: ignore[attr-defined]
        6: "router queue of class lat_s is full: 2 requests wait, its limit is 1 for each of 2 workers"
    }


def test_clients_give_up_in_the_queue_of_the_router_too(tmp_path: Path) -> None:
    queued(tmp_path, workload={"cancel_after_ms": 30.0})
    columns = queued.columns  # type: ignore[attr-defined]
    assert set(queued.status) == {"cancelled"}  # type: ignore[attr-defined]
    assert list(columns.worker[2:4]) == [-1, -1]
    assert columns.reasons[2] == "client gave up after 30 ms"
    assert list(columns.queued_ms[2:4]) == [30.0, 30.0]


def test_a_run_that_is_cut_off_leaves_what_waits_in_the_router_unfinished(tmp_path: Path) -> None:
    queued(tmp_path, max_time_s=0.02)
    columns = queued.columns  # type: ignore[attr-defined]
    assert set(queued.status) == {"unfinished"}  # type: ignore[attr-defined]
    assert list(columns.worker[2:]) == [-1] * 5
    assert columns.queued_ms[2] == pytest.approx(18.0)


def test_urgency_of_a_trace_reaches_the_queue() -> None:
    seen: list[Urgency] = []

    class Looks:
        def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
            seen.append(request.urgency)
            return 0

    workload = Workload()
    for number in range(2):
        workload.add([(number, 0, 8)], 1, time_ms=0.0)
    workload.urgency[1] = Urgency(3, 1, "batch")
    simulate(Config(), workload=workload, router=Looks())
    assert seen == [Urgency(), Urgency(3, 1, "batch")]


# --- routers of a user that are told things


class Tells(TrackingRouter):
    """Sends everything to worker 0 and writes down what it is told."""

    reads_cache = True

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[object, ...]] = []

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        return 0

    def cache_events(self, worker: int, events: list[CacheEvent], now_ms: float) -> None:
        self.heard += [("event", event.stored, event.first, event.end, now_ms) for event in events]

    def first_token(self, number: int, worker: int, now_ms: float) -> None:
        self.heard.append(("first token", number, now_ms))

    def ended(self, number: int, worker: int, now_ms: float) -> None:
        self.heard.append(("ended", number, now_ms))


def test_a_router_is_told_of_events_then_first_tokens_and_ends() -> None:
    router = Tells()
    sends = (Send(((1, 0, 8),), 6), Send(((2, 0, 8),), 1))
    run(Scenario(sends, {"block_size": 4}, workers=2, timing=FlatTiming(1.0)), router=router)
    assert router.heard == [
        ("event", True, 0, 2, 1.0),
        ("event", True, 0, 2, 1.0),
        ("first token", 0, 1.0),
        ("ended", 1, 1.0),
        ("event", True, 2, 3, 6.0),
        ("ended", 0, 6.0),
    ]


@pytest.mark.parametrize("method", ["first_token", "ended", "cache_events"])
def test_a_router_that_fails_in_what_it_is_told_is_named(method: str) -> None:
    router = Tells()

    def fails(*arguments: object) -> None:
        raise KeyError("lost")

    setattr(router, method, fails)
    sends = (Send(((1, 0, 8),), 6), Send(((2, 0, 8),), 1))
    workload = Scenario(sends, {}).workload()
    config = Config.model_validate({"engine": {"block_size": 4}, "cluster": {"workers": 2}})
    with pytest.raises(PluginError) as caught:
        simulate(config, workload=workload, router=router)
    assert str(caught.value).startswith("router Tells raised KeyError('lost') in ")
    assert isinstance(caught.value.__cause__, KeyError)
