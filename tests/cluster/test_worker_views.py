"""What a router reads of a worker, and a timing model of the cache, is what single passes would show at that time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given

from pass_ledger import PassLedger
from strategies import FlatTiming, Scenario, Send, columns_of, fuzz, run, scenarios
from windtunnel import RoutedRequest, WorkerView
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.timing.base import FloatArray, PassShape

View = tuple[int, int, int, int, int]


class MostFree:
    """Takes the worker with the most free blocks, then the fewest requests; keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[View]]] = []

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        self.seen.append(
            (now_ms, [(w.free_blocks, w.num_requests, w.num_waiting, w.num_running, w.num_blocks) for w in workers])
        )
        return max(workers, key=lambda w: (w.free_blocks, -w.num_requests)).number


@given(scenarios())
@fuzz(150)
def test_routers_see_the_same_in_runs_and_between_single_passes(scenario: Scenario) -> None:
    fast, slow = MostFree(), MostFree()
    in_runs = run(scenario, router=fast)
    singly = run(scenario, fast_forward=False, router=slow)
    assert fast.seen == slow.seen
    assert columns_of(in_runs.record) == columns_of(singly.record)


def test_free_blocks_count_what_passes_have_taken_by_now() -> None:
    router = MostFree()
    moments = (0.5, 1.0, 4.0, 4.5, 5.0, 8.0, 8.5, 13.0)
    sends = (
        Send(((1, 0, 4),), 20),
        *(Send(((9, 0, 400),), 1, time_ms=moment) for moment in moments),  # refused: looks and leaves
    )
    run(Scenario(sends, {"block_size": 4, "num_gpu_blocks": 10}, timing=FlatTiming(1.0)), router=router)
    # the prefill fills one block; the passes from 1, 5, 9 and 13 ms on take one each, once they have begun
    assert [views[0][0] for _, views in router.seen] == [10, 9, 9, 8, 8, 8, 7, 7, 6]


# --- distinct context


class Physical:
    """Costs 1 ms a pass and keeps the distinct contexts that it was asked to price; some are asked for twice."""

    needs_physical_context = True

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.runs: list[tuple[int, int, int, int]] = []  # the arguments of each

    def price_pass_ms(self, shape: PassShape) -> float:
        self.passes.append(shape.physical_context_tokens)
        return 1.0

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        self.runs.append((num_decodes, context_tokens, physical_context_tokens, passes))
        self.passes += [physical_context_tokens + number * num_decodes for number in range(passes)]
        return FlatTiming().price_run_ms(num_decodes, context_tokens, physical_context_tokens, passes)


def test_what_two_requests_share_counts_once() -> None:
    timing = Physical()
    sends = (Send(((1, 0, 9),), 3), Send(((1, 0, 9),), 3))
    run(Scenario(sends, {"block_size": 4, "num_gpu_blocks": 99}, timing=timing))
    assert sorted(set(timing.passes)) == [10, 12, 14]  # 9 + 1, and two more in each pass of decodes; not 18, 20, 22


def test_a_block_that_is_recomputed_counts_twice() -> None:
    """All 8 tokens are cached, but one must be computed: its block is a copy of its own."""
    timing = Physical()
    sends = (Send(((1, 0, 8),), 3), Send(((1, 0, 8),), 3))
    run(Scenario(sends, {"block_size": 4, "num_gpu_blocks": 99}, timing=timing))
    assert sorted(set(timing.passes)) == [12, 14, 16]


def test_without_prefix_caching_nothing_is_shared() -> None:
    timing = Physical()
    sends = (Send(((1, 0, 9),), 3), Send(((1, 0, 9),), 3))
    engine = {"block_size": 4, "num_gpu_blocks": 99, "enable_prefix_caching": False}
    run(Scenario(sends, engine, timing=timing))
    assert sorted(set(timing.passes)) == [18, 20, 22]


def test_a_run_starts_from_the_distinct_context_of_its_first_pass() -> None:
    timing = Physical()
    sends = (Send(((1, 0, 9),), 50), Send(((1, 0, 9),), 50))
    run(Scenario(sends, {"block_size": 4, "num_gpu_blocks": 99}, timing=timing))
    assert timing.passes[:3] == [10, 12, 14]
    assert timing.runs == [(2, 20, 12, 49)]


class HeldTokens(PassLedger):
    """Counts, pass by pass, the tokens in the blocks that running requests hold, block by block."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: VllmScheduler
        self.held: list[int] = []
        self._computed: dict[int, int] = {}

    def on_scheduled(self, rows: list) -> None:  # type: ignore[type-arg]
        super().on_scheduled(rows)
        if not rows and not self._page.preempted:
            return
        for request, before, tokens in rows:
            self._computed[request.number] = before + tokens
        scheduler = self.scheduler
        nodes = list(scheduler.pool.tree.root.children.values())
        blocks = 0
        for node in nodes:
            nodes += node.children.values()
            blocks += node.size * sum(span.ref > 0 for span in node.copies)
        tokens = blocks * scheduler.block_size
        for request in scheduler.running.values():
            tokens += self._computed[request.number] - request.table.hashed * scheduler.block_size
        self.held.append(tokens)


@given(scenarios())
@fuzz(150)
def test_the_distinct_context_is_that_of_the_blocks_held(scenario: Scenario) -> None:
    timing = Physical()
    alone = Scenario(
        scenario.sends,
        {**scenario.engine, "async_scheduling": False},  # else what has ended goes after the observer has looked
        concurrency=scenario.concurrency,
        cancel_after_ms=scenario.cancel_after_ms,
        timing=timing,
    )
    outcome = run(alone, fast_forward=False, observer=HeldTokens)
    assert timing.runs == []
    assert timing.passes == outcome.observers[0].held
