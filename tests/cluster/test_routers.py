"""What the routers that look at loads, sessions and prefixes choose."""

from __future__ import annotations

from random import Random

import pytest

from strategies import FlatTiming, Scenario, Send, run
from windtunnel import Config, RoutedRequest
from windtunnel.cluster.router.cache_view import CacheView
from windtunnel.cluster.router.power_of_two import PowerOfTwoRouter
from windtunnel.cluster.router.prefix_hash import PrefixHashRouter
from windtunnel.cluster.router.session_affinity import SessionAffinityRouter
from windtunnel.cluster.router.weighted import WeightedRouter
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.workload.content import Content, Run


class View:
    """A worker with a certain load."""

    def __init__(self, number: int, requests: int = 0, waiting: int = 0, free_blocks: int = 100) -> None:
        self.number = number
        self.num_requests = requests
        self.num_waiting = waiting
        self.num_running = requests - waiting
        self.free_blocks = free_blocks
        self.num_blocks = 100


def request(number: int, *runs: Run, session: int = 0) -> RoutedRequest:
    content = Content.of(list(runs or ((number, 0, 64),)))
    return RoutedRequest(number, session, 0, content.length, 1, content)


def test_least_loaded_by_tokens_weighs_long_prompts() -> None:
    sends = tuple(Send(((number, 0, tokens),), 40) for number, tokens in enumerate((900, 100, 100, 100, 1000)))
    for load, expected in (("requests", [0, 1, 0, 1, 0]), ("tokens", [0, 1, 1, 1, 1])):
        scenario = Scenario(
            sends, {}, workers=2, router="least-loaded", router_options={"load": load}, timing=FlatTiming(1.0)
        )
        assert run(scenario).record.requests.worker.tolist() == expected


def test_least_loaded_by_kv_takes_the_emptiest_cache() -> None:
    sends = (Send(((1, 0, 640),), 40), Send(((2, 0, 64),), 40, time_ms=5.0), Send(((3, 0, 64),), 40, time_ms=9.0))
    scenario = Scenario(
        sends, {}, workers=2, router="least-loaded", router_options={"load": "kv"}, timing=FlatTiming(1.0)
    )
    assert run(scenario).record.requests.worker.tolist() == [0, 1, 1]


def test_power_of_two_takes_the_better_of_two_and_never_the_worst_of_three() -> None:
    router = PowerOfTwoRouter(Random(1))
    workers = [View(0, 9), View(1, 3), View(2, 5)]
    placed = [router.route(request(number), workers, 0.0) for number in range(600)]
    assert set(placed) == {1, 2}
    assert placed.count(1) == pytest.approx(400, abs=50)  # of three pairs two have worker 1
    assert router.route(request(0), [View(4)], 0.0) == 4


def test_a_session_stays_where_it_began_until_its_worker_is_gone() -> None:
    router = SessionAffinityRouter()
    workers = [View(0, 5), View(1, 2), View(3, 7)]
    assert router.route(request(0, session=8), workers, 0.0) == 1
    workers[1].num_requests = 99
    assert router.route(request(1, session=8), workers, 0.0) == 1
    assert router.route(request(2, session=9), workers, 0.0) == 0
    assert router.route(request(3, session=8), [workers[0], workers[2]], 0.0) == 0
    assert router.route(request(4, session=8), workers, 0.0) == 0


def test_prompts_that_begin_alike_go_together_and_others_spread() -> None:
    router = PrefixHashRouter(prefix_tokens=32)
    workers = [View(number) for number in range(8)]
    first = router.route(request(0, (1, 0, 32), (2, 0, 50)), workers, 0.0)
    assert all(router.route(request(n, (1, 0, 32), (n, 0, 50)), workers, 0.0) == first for n in range(3, 20))
    assert len({router.route(request(n, (n, 0, 64)), workers, 0.0) for n in range(60)}) == 8


def test_a_popular_prefix_spreads_when_its_worker_is_above_the_bound() -> None:
    router = PrefixHashRouter(prefix_tokens=32, load_factor=1.5)
    workers = [View(number) for number in range(4)]
    for number in range(40):
        workers[router.route(request(number, (1, 0, 64)), workers, 0.0)].num_requests += 1
    loads = sorted(worker.num_requests for worker in workers)
    assert loads[-1] <= 15  # 1.5 times the mean of 10
    assert loads[0] == 0


def test_few_prefixes_move_when_a_worker_leaves() -> None:
    router = PrefixHashRouter()
    workers = [View(number) for number in range(8)]
    before = [router.route(request(n, (n, 0, 64)), workers, 0.0) for n in range(400)]
    after = [router.route(request(n, (n, 0, 64)), workers[:-1], 0.0) for n in range(400)]
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 7)


def test_weights_decide_between_cache_queue_and_memory() -> None:
    workers = [View(0, 4, waiting=4), View(1, 0, free_blocks=20), View(2, 2, waiting=2, free_blocks=90)]
    asked = request(0, (1, 0, 640))
    for weights, expected in (((1.0, 0.0, 0.0), 0), ((0.0, 1.0, 0.0), 1), ((0.0, 0.0, 1.0), 0), ((0.2, 1.0, 1.0), 2)):
        router = WeightedRouter(CacheView(64, True, 0.0, 0.0), *weights)
        router.cache_events(0, [CacheEvent(True, asked.content, 0, 5)], 0.0)
        assert router.route(asked, workers, 0.0) == expected


def test_equal_scores_go_to_the_lowest_or_to_a_draw() -> None:
    workers = [View(number) for number in range(3)]
    assert WeightedRouter(CacheView(64, True, 0.0, 0.0)).route(request(0), workers, 0.0) == 0
    drawing = WeightedRouter(CacheView(64, True, 0.0, 0.0), stream=Random(2))
    assert {drawing.route(request(n), workers, 0.0) for n in range(30)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "round-robin", "temperature": 0.5}, "temperature has no effect with the round-robin router"),
        ({"kind": "kv", "load": "kv"}, "load has no effect with the kv router"),
        (
            {"kind": "mine:thing", "overlap_credit": 2.0},
            "overlap_credit has no effect with mine:thing: it is an option",
        ),
        ({"kind": "kv", "ttl_s": 5.0}, "ttl_s has no effect unless index is approximate"),
        ({"kind": "kv", "index": "approximate", "event_delay_ms": 5.0}, "event_delay_ms has no effect while index"),
        ({"kind": "kv", "queue_policy": "wspt"}, "queue_policy has no effect without a queue_threshold"),
        ({"kind": "kv", "temperature": 1.0, "tie_break": "random"}, "tie_break has no effect with a temperature"),
        ({"kind": "kv", "queue_threshold": 1.0, "policy_file": "x.yaml"}, "give either policy_file"),
    ],
)
def test_an_option_that_would_have_no_effect_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config.model_validate({"cluster": {"router": options}})
