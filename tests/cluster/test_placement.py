"""Which worker gets a request, and what a router or timing model of a user may not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from strategies import FlatTiming, Scenario, Send, run
from windtunnel import Config, PluginError, Result, RoutedRequest, WorkerView, Workload, simulate
from windtunnel.record.columns import Status
from windtunnel.timing.base import FloatArray, PassShape

ENGINE: dict[str, object] = {"block_size": 64, "num_gpu_blocks": 1000}


def workers_of(*sends: Send, **rest: object) -> list[int]:
    return run(Scenario(sends, ENGINE, **rest)).record.requests.worker.tolist()  # type: ignore[arg-type]


def apart(count: int, gap_ms: float, output_tokens: int = 2) -> tuple[Send, ...]:
    return tuple(Send(((number, 0, 512),), output_tokens, time_ms=gap_ms * number) for number in range(count))


# --- built-in routers


def test_round_robin_takes_each_worker_in_turn() -> None:
    assert workers_of(*apart(7, 500.0), workers=3) == [0, 1, 2, 0, 1, 2, 0]
    assert workers_of(*apart(4, 0.0), workers=2) == [0, 1, 0, 1]


def test_round_robin_counts_refused_requests() -> None:
    refused = Send(((9, 0, 10**6),), 1, time_ms=1.0)
    assert workers_of(Send(((1, 0, 9),), 1, time_ms=0.0), refused, Send(((2, 0, 9),), 1, time_ms=2.0), workers=2) == [
        0,
        1,
        0,
    ]


def test_round_robin_in_a_closed_loop_places_in_the_order_of_completions() -> None:
    """The peer's placement of five requests of 10, 2, 3, 4 and 5 tokens at concurrency 2."""
    sends = tuple(Send(((number, 0, 512),), tokens) for number, tokens in enumerate((10, 2, 3, 4, 5)))
    outcome = run(Scenario(sends, ENGINE, workers=2, concurrency=2))
    assert outcome.record.requests.worker.tolist() == [0, 1, 0, 1, 0]
    assert outcome.record.requests.arrival_ms.tolist() == pytest.approx(
        [0.0, 0.0, 36.727407, 80.915796, 111.797269], abs=1e-5
    )


def test_requests_of_one_instant_are_placed_in_the_order_of_their_sessions() -> None:
    sends = (
        Send(((1, 0, 9),), 2),
        Send(((2, 0, 9),), 2, time_ms=5.0),
        Send(((1, 0, 9),), 2, after=0, time_ms=3.0),  # ready at 5 as well, of an earlier session
    )
    assert run(Scenario(sends, ENGINE, workers=3, timing=FlatTiming())).record.requests.worker.tolist() == [0, 2, 1]


def test_least_loaded_takes_the_lowest_of_the_idle_and_then_the_least() -> None:
    assert workers_of(*apart(7, 0.0), workers=3, router="least-loaded") == [0, 1, 2, 0, 1, 2, 0]
    long, *short = apart(3, 500.0, output_tokens=2)
    long = Send(long.runs, 900, time_ms=0.0)
    assert workers_of(long, *short, workers=2, router="least-loaded") == [0, 1, 1]


def test_least_loaded_counts_waiting_and_running_requests_alike() -> None:
    sends = (Send(((1, 0, 9),), 99), Send(((2, 0, 9),), 99), *apart(2, 5.0))
    engine = {**ENGINE, "max_num_seqs": 1}
    placed = run(Scenario(sends, engine, workers=2, router="least-loaded", timing=FlatTiming())).record.requests.worker
    assert placed.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("router", "tie_break"), [("random", "lowest"), ("least-loaded", "random")])
def test_random_placement_is_a_function_of_the_seed(router: str, tie_break: str) -> None:
    def placed(seed: int) -> list[int]:
        return workers_of(*apart(60, 500.0), workers=4, router=router, tie_break=tie_break, seed=seed)

    assert placed(1) == placed(1)
    assert placed(1) != placed(2)
    assert set(placed(1)) == {0, 1, 2, 3}


def test_random_placement_is_even() -> None:
    counts = np.bincount(workers_of(*apart(2000, 0.0, output_tokens=0), workers=4, router="random"))
    assert counts.tolist() == pytest.approx([500] * 4, abs=80)  # four standard deviations


def test_a_random_tie_break_leaves_no_choice_where_there_is_no_tie() -> None:
    placed = workers_of(*apart(9, 0.0), workers=3, router="least-loaded", tie_break="random")
    assert sorted(placed[:3]) == sorted(placed[3:6]) == sorted(placed[6:]) == [0, 1, 2]


# --- routers of a user


class ByRule:
    """Routes by a function of the request number; the third request may be another matter."""

    def __init__(self, rule: Callable[[int], object]) -> None:
        self.rule = rule

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        return self.rule(request.number)  # type: ignore[return-value]


def named_workload() -> Workload:
    workload = Workload()
    for number in range(4):
        workload.add([(number, 0, 64)], 2, time_ms=100.0 * number)
    workload.request_ids = ["a", "b", "c", "d"]
    return workload


def fail_with(*, router: object = None, timing: object = None, workers: int = 2) -> PluginError:
    config = Config.model_validate({"cluster": {"workers": workers}})
    with pytest.raises(PluginError) as caught:
        simulate(config, workload=named_workload(), router=router, timing=timing)  # type: ignore[arg-type]
    return caught.value


def test_a_router_sees_the_request_and_the_workers() -> None:
    seen: list[tuple[object, ...]] = []

    class Watching:
        def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
            runs = request.content.runs()
            seen.append((request.number, request.session, request.turn, request.input_tokens, request.output_tokens))
            seen.append((now_ms, runs, [(w.number, w.num_requests, w.num_blocks) for w in workers]))
            return 1

    workload = Workload()
    workload.add([(5, 0, 9)], 2, time_ms=4.0)
    workload.add([(5, 0, 10)], 3, session=0, time_ms=0.0)
    config = Config.model_validate({"cluster": {"workers": 2}, "engine": {"num_gpu_blocks": 30}})
    simulate(config, workload=workload, router=Watching(), timing=FlatTiming())
    assert seen == [
        (0, 0, 0, 9, 2),
        (4.0, [(5, 0, 9), (-1, 0, 2)], [(0, 0, 30), (1, 0, 30)]),
        (1, 0, 1, 10, 3),
        (6.0, [(5, 0, 10), (-2, 0, 3)], [(0, 0, 30), (1, 0, 30)]),
    ]


@pytest.mark.parametrize("wrong", [2, -1, None, 0.0, "0", [0]])
def test_a_router_that_returns_no_worker_is_named_with_the_request(wrong: object) -> None:
    error = fail_with(router=ByRule(lambda number: wrong if number == 2 else 0))
    assert str(error) == f"router ByRule returned {wrong!r} for request c: expected a worker number from 0 to 1"


def test_a_router_that_raises_is_named_with_the_request_and_the_cause() -> None:
    error = fail_with(router=ByRule(lambda number: {0: 0, 1: 1}[number]))
    assert str(error) == "router ByRule raised KeyError(2) for request c"
    assert isinstance(error.__cause__, KeyError)


def test_an_error_of_a_router_leaves_what_was_simulated() -> None:
    partial = fail_with(router=ByRule(lambda number: 7 if number == 2 else 1)).partial
    assert isinstance(partial, Result)
    assert list(partial.record.requests.status) == [Status.COMPLETED] * 2 + [Status.NOT_ARRIVED] * 2
    assert partial.record.requests.worker.tolist() == [1, 1, -1, -1]
    assert partial.record.end_ms == 200.0
    assert partial.record.interrupted == "error"


# --- timing models of a user


class Misprices:
    """Costs 1 ms a pass, until `wrong_from` passes have been priced; then whatever `wrong` makes of it."""

    needs_physical_context = False

    def __init__(self, wrong: Callable[[], object], wrong_from: int) -> None:
        self.wrong = wrong
        self.left = wrong_from

    def price_pass_ms(self, shape: PassShape) -> float:
        self.left -= 1
        return 1.0 if self.left >= 0 else self.wrong()  # type: ignore[return-value]

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        raise AssertionError("the runs of this test are too short to be priced at once")


def raise_value_error() -> float:
    raise ValueError("no such batch")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (raise_value_error, "price_pass_ms raised ValueError('no such batch')"),
        (lambda: float("nan"), "price_pass_ms returned nan, expected finite ms above 0"),
        (lambda: float("inf"), "price_pass_ms returned inf, expected finite ms above 0"),
        (lambda: -0.5, "price_pass_ms returned -0.5, expected finite ms above 0"),
        (lambda: 0.0, "price_pass_ms returned 0.0, expected finite ms above 0"),
        (lambda: None, "price_pass_ms raised TypeError"),
    ],
)
@pytest.mark.parametrize("wrong_from", [4, 5])  # the prefill or the decode of the third request
def test_a_timing_model_that_misprices_ends_the_simulation(
    wrong: Callable[[], object], message: str, wrong_from: int
) -> None:
    error = fail_with(timing=Misprices(wrong, wrong_from), workers=1)
    assert str(error).startswith(f"timing model Misprices: {message}")
    partial = error.partial
    assert isinstance(partial, Result)
    assert list(partial.record.requests.status) == [Status.COMPLETED] * 2 + [Status.UNFINISHED, Status.NOT_ARRIVED]
    assert partial.record.requests.output_tokens.tolist() == [2, 2, wrong_from - 4, 0]
    assert len(partial.record.passes[0].end_ms) == wrong_from


def test_a_router_cannot_reorder_the_workers_of_the_cluster() -> None:
    seen: list[object] = []

    class Looks:
        def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
            seen.append(workers)
            return 0

    run(Scenario((Send(((1, 0, 4),), 1),), {}, workers=2), router=Looks())
    assert isinstance(seen[0], tuple)
