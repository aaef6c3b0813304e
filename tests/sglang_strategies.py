"""Small random SGLang deployments and loads for property tests, and how to run them; see strategies.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest import mock

from hypothesis import strategies as st

from strategies import MAX_POLLS, Dice, Outcome, Scenario, Send, _prompt, _timing
from windtunnel import Result, Router, simulate
from windtunnel.assembly import engines
from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_invariants import check_invariants
from windtunnel.errors import SimulationError
from windtunnel.record.columns import PassColumns


class Checker:
    """An observer that checks the invariants after every turn."""

    def __init__(self, scheduler: SglangScheduler) -> None:
        self.scheduler = scheduler

    def on_retraction(self, *args: object) -> None: ...
    def on_failure(self, *args: object) -> None: ...
    def on_scheduled(self, *args: object) -> None: ...
    def on_result(self, *args: object) -> None: ...

    def on_concluded(self) -> None:
        check_invariants(self.scheduler)


def run_sglang(
    scenario: Scenario,
    *,
    fast_forward: bool = True,
    observer: Callable[[SglangScheduler], Any] | None = None,
    publish_events: bool = False,
    router: Router | None = None,
) -> Outcome:
    """Simulate a scenario through the public entry point; a hang is a failure.

    An `observer` is made of each scheduler.
    """
    schedulers: list[SglangScheduler] = []
    observers: list[Any] = []
    polls = 0

    def build(config: SglangConfig, passes: PassColumns) -> SglangScheduler:
        scheduler = SglangScheduler(config, passes, publish_events)
        schedulers.append(scheduler)
        if observer is not None:
            observers.append(observer(scheduler))
            scheduler.observer = observers[-1]
        return scheduler

    def hangs() -> bool:
        nonlocal polls
        polls += 1
        assert polls < MAX_POLLS, "the simulation goes on and on"
        return False

    message = ""
    with mock.patch.object(engines, "SglangScheduler", build):
        try:
            result = simulate(
                scenario.config(fast_forward=fast_forward),
                workload=scenario.workload(),
                router=router,
                timing=scenario.timing,
                should_stop=hangs,
            )
        except SimulationError as error:
            result, message = cast(Result, error.partial), str(error)
    return Outcome(result.record, result.workload, message, cast(Any, schedulers), observers)


@st.composite
def sglang_deployments(draw: st.DrawFn) -> Scenario:
    """Deployments from comfortable to barely possible, under loads that share, quote, wait and give up.

    Half of them are crowds: many requests at once, of which too many are admitted, so that some are retracted.
    """
    dice = Dice(draw(st.binary(min_size=24, max_size=24)))
    page_size = dice.pick(1, 1, 2, 3, 4, 16, 64)
    longest = dice.pick(page_size, 3 * page_size, 40)
    crowd = dice.pick(False, True)
    longest_output = dice.pick(20, 40) if crowd else dice.pick(3, 12, 40)
    spread = dice.pick((0.0,), (0.0, 1.0, 2.0, 3.0), (0.0, 0.5, 7.25, 20.0, 50.0))
    sends: list[Send] = []
    tails: list[int] = []  # the last request of each session
    entropies = st.lists(st.binary(min_size=10, max_size=10), min_size=6 if crowd else 1, max_size=14)
    for number, entropy in enumerate(draw(entropies)):
        own = Dice(entropy)
        place = own.number(0, len(tails)) - 1 if own.pick(False, True) else -1
        after = tails[place] if place >= 0 else None
        outputs = own.number(longest_output // 2 if crowd else 0, longest_output)
        sends.append(Send(_prompt(own, sends, after, longest), outputs, after, own.pick(*spread)))
        if after is None:
            tails.append(number)
        else:
            tails[place] = number
    sequence = max(send.prompt_tokens + send.output_tokens for send in sends)
    needed = -(-(sequence + page_size + 7) // page_size)
    chunk = dice.pick(-1, 4, 7, 16, 64)
    ignore_eos = dice.pick(False, False, True) if crowd else dice.pick(True, True, False)
    engine: dict[str, object] = {
        "kind": "sglang",
        "page_size": page_size,
        "num_gpu_blocks": max(needed + dice.pick(*((0, 0, 1, 2, 8) if crowd else (0, 1, 3, 6, 1000, -1))), 1),
        "max_running_requests": dice.number(4 if crowd else 1, 8),
        "max_prefill_tokens": dice.pick(5, 20, 64, 1000),
        "chunked_prefill_size": chunk if chunk < 0 else chunk + page_size - 1,
        "prefill_max_requests": dice.pick(None, None, None, 1, 2),
        "context_length": dice.pick(None, None, None, None, sequence + 8, sequence),
        "schedule_policy": dice.pick("fcfs", "fcfs", "lpm", "lof"),
        "schedule_conservativeness": dice.pick(0.0, 0.1) if crowd else dice.pick(1.0, 0.3, 0.0),
        "ignore_eos": ignore_eos,
        "enable_prefix_caching": dice.pick(True, True, True, False),
        "enable_mixed_chunk": chunk > 0 and dice.pick(False, False, True),
        "eviction_policy": dice.pick("lru", "lru", "lfu", "fifo", "mru"),
        "overlap_schedule": dice.pick(True, False),
    }
    router = dice.pick("round-robin", "random", "least-loaded")
    timing = _timing(dice)
    return Scenario(
        tuple(sends),
        engine,
        workers=dice.pick(1, 1, 2) if crowd else dice.pick(1, 2, 3),
        router=router,
        tie_break=dice.pick("lowest", "random") if router == "least-loaded" else "lowest",
        concurrency=dice.pick(None, None, None, 1, 2, 4),
        cancel_after_ms=dice.pick(None, None, None, 1.0, 4.0, 10.0, 33.5, 200.0),
        max_time_s=dice.pick(None, None, None, None, None, 0.0, 0.004, 0.01, 0.0505, 0.3, 3.0),
        timing=timing,
        speedup=dice.pick(1.0, 1.0, 3.7, 0.3),
        seed=dice.number(0, 5),
    )
