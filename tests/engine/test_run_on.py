"""An engine that runs on by itself does what it would do if its owner ended and began every pass."""

from __future__ import annotations

from array import array

from strategies import FlatTiming
from windtunnel.config.schema import VllmConfig
from windtunnel.engine.engine import INFINITE, Engine
from windtunnel.engine.kv.haulage import Haulage
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.record.columns import PassColumns
from windtunnel.workload.content import Content


class Clock:
    now_ms = 0.0


class Road(Haulage):
    """Notes the times that it sees."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.seen_ms: list[float] = []

    def run_on(self, now_ms: float) -> bool:
        self.seen_ms.append(now_ms)
        return super().run_on(now_ms)


def engine_with(prompt_tokens: int, output_tokens: int) -> Engine:
    """Passes of 1 ms and up to 10 tokens."""
    passes = PassColumns()
    config = VllmConfig(block_size=4, num_gpu_blocks=100, max_num_batched_tokens=10, async_scheduling=False)
    engine = Engine(VllmScheduler(config, passes), FlatTiming(1.0), passes)
    content = Content.of([(1, 0, prompt_tokens)], (-1, 0, output_tokens))
    engine.submit(EngineRequest(0, content, prompt_tokens, output_tokens, 0.0), 0.0)
    assert engine.begin(0.0) == 1.0
    return engine


def test_what_ends_at_the_limit_or_later_is_in_flight() -> None:
    engine = engine_with(prompt_tokens=50, output_tokens=1)
    assert engine.run_on(3.0) == 3.0
    assert engine.passes.end_ms == array("d", [1.0, 2.0])
    assert engine.run_on(3.5) == 4.0
    assert engine.passes.end_ms == array("d", [1.0, 2.0, 3.0])


def test_a_run_of_decodes_can_still_be_cut() -> None:
    engine = engine_with(prompt_tokens=8, output_tokens=20)
    assert engine.run_on(3.5) == 20.0  # one pass for the prompt, then nineteen
    assert engine.cut(3.5) == 4.0


def test_a_completion_waits_for_its_time() -> None:
    engine = engine_with(prompt_tokens=25, output_tokens=5)
    assert engine.run_on(100.0) == engine.end_ms == 7.0
    (request,) = engine.end()
    assert (request.last_pass, engine.end_ms) == (6, INFINITE)
    assert engine.begin(7.0) == INFINITE
    assert engine.passes.end_ms == array("d", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_nothing_is_committed_while_someone_leaves() -> None:
    engine = engine_with(prompt_tokens=25, output_tokens=5)
    engine.cancel(next(iter(engine.scheduler.running.values())), 0.5)  # type: ignore[attr-defined]
    assert engine.run_on(100.0) == 1.0
    assert not engine.passes.end_ms


def test_passes_that_one_prompt_fills_are_those_it_would_have_one_by_one() -> None:
    """A prompt of 63 tokens, nine a pass beside one decode, which ends first."""
    together, singly = engine_with(prompt_tokens=8, output_tokens=6), engine_with(prompt_tokens=8, output_tokens=6)
    requests = []
    for engine in (together, singly):
        request = EngineRequest(1, Content.of([(2, 0, 63)], (-2, 0, 2)), 63, 2, 0.5)
        engine.submit(request, 0.5)
        requests.append(request)
    assert together.run_on(9.5) == 6.0  # the decode ends
    for end_ms in (1.0, 2.0, 3.0, 4.0, 5.0):
        assert singly.end() == []
        assert singly.begin(end_ms) == end_ms + 1.0
    ended, expected = together.end(), singly.end()
    assert [request.last_pass for request in ended] == [request.last_pass for request in expected] == [5]
    assert requests[0].computed == requests[1].computed == 5 * 9
    assert requests[0].prefill_ms == requests[1].prefill_ms == 5.0
    assert together.free_blocks(6.0) == singly.free_blocks(6.0) == 100 - 12
    assert together.passes.end_ms == singly.passes.end_ms


def test_tiers_see_the_time_of_each_pass_and_the_clock_comes_back() -> None:
    engine = engine_with(prompt_tokens=50, output_tokens=1)
    clock = Clock()
    road = Road(clock)
    engine.haulage = road
    engine.scheduler.prompt_passes = None  # type: ignore[misc]
    assert engine.run_on(3.5) == 4.0
    assert (road.seen_ms, clock.now_ms) == ([1.0, 2.0, 3.0], 0.0)


def test_an_engine_with_tiers_stops_where_somebody_is_to_be_told() -> None:
    engine = engine_with(prompt_tokens=50, output_tokens=1)
    engine.scheduler.prompt_passes = None  # type: ignore[misc]
    engine.haulage = haulage = Haulage(Clock())
    haulage.next_ms = 2.5
    haulage.num_awaited = 1
    assert engine.run_on(100.0) == 3.0
    assert engine.passes.end_ms == array("d", [1.0, 2.0])
