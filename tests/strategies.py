"""Small random deployments and loads for property tests, and how to run them.

A `Scenario` is plain data, so that a failing example can be read and pasted. Sizes are small on purpose: pools of a
few blocks, budgets of a few tokens and times on a coarse grid make the rare decisions common. Everything that is
drawn is legal input; what can never be served is drawn too, and is rejected by the simulator.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from windtunnel import Config, Result, Router, TimingModel, Workload, simulate
from windtunnel.assembly import engines
from windtunnel.config.schema import VllmConfig
from windtunnel.engine.acceptance import Acceptance
from windtunnel.engine.speculative import SpeculativeScheduler
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.errors import SimulationError
from windtunnel.record.columns import PassColumns, Record
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.workload.content import Run, output_origin

T = TypeVar("T")

NAN = float("nan")
MAX_POLLS = 2000  # of 256 events each: a scenario of this size that takes more hangs


def fuzz(max_examples: int) -> settings:
    """Quick and repeatable; or, with `WINDTUNNEL_FUZZ=N`, N times as many examples, others in every run."""
    factor = int(os.environ.get("WINDTUNNEL_FUZZ", "0"))
    return settings(
        max_examples=max_examples * max(factor, 1),
        derandomize=factor == 0,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# --- timing models


class JaggedTiming:
    """Prices that rise and fall from one context to the next.

    Args:
        seed: another seed, other prices.
        whole: all prices are 1 or 2 ms, so that times often coincide.
        physical: price the distinct context instead of the logical one.
    """

    def __init__(self, seed: int = 0, whole: bool = False, physical: bool = False) -> None:
        self.seed = seed
        self.whole = whole
        self.needs_physical_context = physical

    def __repr__(self) -> str:
        return f"JaggedTiming(seed={self.seed}, whole={self.whole}, physical={self.needs_physical_context})"

    def price_pass_ms(self, shape: PassShape) -> float:
        context = shape.physical_context_tokens if self.needs_physical_context else shape.decode_context_tokens
        chunks = sum(shape.chunk_tokens) * 5 + sum(shape.chunk_starts) * 3
        return float(self._prices(np.array([context + chunks]), shape.num_decodes)[0])

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        first = physical_context_tokens if self.needs_physical_context else context_tokens
        return self._prices(first + num_decodes * np.arange(passes), num_decodes)

    def _prices(self, context: NDArray[np.int64], num_decodes: int) -> FloatArray:
        mixed = (context * 7919 + num_decodes * 104729 + self.seed * 31) % 1013
        return 1.0 + (mixed % 2 if self.whole else mixed % 57 / 7.0).astype(np.float64)


class FlatTiming:
    """Every pass costs the same: with arrivals on the same grid most events coincide with others."""

    needs_physical_context = False

    def __init__(self, price_ms: float = 1.0) -> None:
        self.price_ms = price_ms

    def __repr__(self) -> str:
        return f"FlatTiming({self.price_ms})"

    def price_pass_ms(self, shape: PassShape) -> float:
        return self.price_ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return np.full(passes, self.price_ms)


# --- scenarios


@dataclass(frozen=True)
class Send:
    """One call of `Workload.add`; `after` is the number of a request whose session it continues."""

    runs: tuple[Run, ...]
    output_tokens: int
    after: int | None = None
    time_ms: float = NAN
    priority: int = 0

    @property
    def prompt_tokens(self) -> int:
        return sum(length for _, _, length in self.runs)


@dataclass(frozen=True)
class Scenario:
    """A deployment and a load; without `timing` it is the built-in polynomial. vLLM is synchronous unless asked.

    `topology` is merged over the configuration; with pools of its own it replaces `workers`.
    """

    sends: tuple[Send, ...]
    engine: Mapping[str, object]
    workers: int = 1
    router: str = "round-robin"
    tie_break: str = "lowest"
    router_options: Mapping[str, object] = field(default_factory=dict)
    concurrency: int | None = None
    cancel_after_ms: float | None = None
    max_time_s: float | None = None
    timing: TimingModel | None = None
    speedup: float = 1.0
    decode_speedup: float = 1.0
    seed: int = 0
    topology: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def workload(self) -> Workload:
        workload = Workload("scenario")
        for send in self.sends:
            session = None if send.after is None else workload.session[send.after]
            number = workload.add(send.runs, send.output_tokens, session=session, time_ms=send.time_ms)
            if send.priority:
                workload.priorities[number] = send.priority
        return workload

    def config(self, *, fast_forward: bool = True) -> Config:
        cluster: dict[str, object] = {
            "router": {"kind": self.router, "tie_break": self.tie_break, **self.router_options}
        }
        if "prefill_workers" not in self.topology.get("cluster", {}):
            cluster["workers"] = self.workers
        pinned = {} if self.engine.get("kind") == "sglang" else {"async_scheduling": False}
        data: dict[str, Any] = {
            "engine": {**pinned, **self.engine, "fast_forward": fast_forward},
            "cluster": cluster,
            "workload": {"concurrency": self.concurrency, "cancel_after_ms": self.cancel_after_ms},
            "timing": {"speedup": self.speedup, "decode_speedup": self.decode_speedup},
            "max_time_s": self.max_time_s,
            "seed": self.seed,
        }
        for section, fields in self.topology.items():
            data[section] = {**data.get(section, {}), **fields}
        return Config.model_validate(data)


@dataclass
class Outcome:
    """What a scenario came to: its record, complete or not, and the schedulers that made it.

    Attributes:
        error: the message of the `SimulationError` that ended it, else "".
        observers: those of the schedulers, in the same order; empty if none were asked for.
    """

    record: Record
    workload: Workload
    error: str
    schedulers: list[VllmScheduler]
    observers: list[Any]

    @property
    def complete(self) -> bool:
        """Whether every request has reached its end."""
        return not self.error and not self.record.interrupted


def run(
    scenario: Scenario,
    *,
    fast_forward: bool = True,
    observer: Callable[[], Any] | None = None,
    publish_events: bool = False,
    router: Router | None = None,
    stop_after: int = MAX_POLLS,
) -> Outcome:
    """Simulate a scenario through the public entry point; a hang is a failure. Stopped after so many polls.

    An `observer` is made for each scheduler, which it finds as its `scheduler`.
    """
    schedulers: list[VllmScheduler] = []
    observers: list[Any] = []
    polls = 0

    def build_speculating(config: VllmConfig, passes: PassColumns, acceptance: Acceptance) -> VllmScheduler:
        return observed(SpeculativeScheduler(config, passes, acceptance, publish_events))

    def build(config: VllmConfig, passes: PassColumns) -> VllmScheduler:
        return observed(VllmScheduler(config, passes, publish_events))

    def observed(scheduler: VllmScheduler) -> VllmScheduler:
        schedulers.append(scheduler)
        if observer is not None:
            observers.append(observer())
            observers[-1].scheduler = scheduler
            scheduler.observer = observers[-1]
        return scheduler

    def hangs() -> bool:
        nonlocal polls
        polls += 1
        assert polls < MAX_POLLS, "the simulation goes on and on"
        return polls >= stop_after

    message = ""
    with (
        mock.patch.object(engines, "VllmScheduler", build),
        mock.patch.object(engines, "SpeculativeScheduler", build_speculating),
    ):
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
    return Outcome(result.record, result.workload, message, schedulers, observers)


def columns_of(record: Record) -> dict[str, object]:
    """Everything a record says, comparable bit for bit; how the passes were computed aside."""
    columns = record.requests
    names = [name for name in dir(columns) if not name.startswith("_")]
    found: dict[str, object] = {f"requests.{name}": _exact(getattr(columns, name)) for name in names}
    assert "requests.break_after" in found
    for worker, passes in enumerate(record.passes):
        for name in ("end_ms", "idle_pass", "idle_until_ms"):
            found[f"passes[{worker}].{name}"] = _exact(getattr(passes, name))
    for name in ("end_ms", "worker_ms"):
        found[name] = getattr(record, name).hex()
    found["interrupted"] = record.interrupted
    return found


def fields_of(instance: object) -> dict[str, Any]:
    """What an object holds, whether its class is compiled or not."""
    found = {name: getattr(instance, name) for name in dir(instance) if not name.startswith("_")}
    return {name: value for name, value in found.items() if not callable(value)}


def _exact(value: object) -> object:
    if isinstance(value, array):
        return [entry.hex() for entry in value] if value.typecode == "d" else value.tolist()
    return bytes(value) if isinstance(value, bytearray) else value


# --- strategies


class Dice:
    """Choices read off a few random bytes, which cost one draw; zero bytes take every first option."""

    def __init__(self, entropy: bytes) -> None:
        self._rest = int.from_bytes(entropy, "little")

    def pick(self, *options: T) -> T:
        self._rest, choice = divmod(self._rest, len(options))
        return options[choice]

    def number(self, low: int, high: int) -> int:
        self._rest, offset = divmod(self._rest, high - low + 1)
        return low + offset


def _prompt(dice: Dice, earlier: list[Send], after: int | None, longest: int) -> tuple[Run, ...]:
    """Up to `longest` tokens of its own, behind what it shares, quotes, or continues."""
    runs: list[Run] = []
    kind = dice.pick("fresh", "shared", "shared", "turn", "turn", "quote")
    own = dice.number(1, longest)
    if kind == "turn" and after is not None:
        runs += earlier[after].runs
        runs.append((output_origin(after), 0, earlier[after].output_tokens))
    elif kind == "quote" and earlier:
        quoted = dice.number(0, len(earlier) - 1)
        runs += earlier[quoted].runs if dice.pick(True, True, False) else ()
        runs.append((output_origin(quoted), 0, dice.number(0, earlier[quoted].output_tokens)))
    elif kind != "fresh":
        runs.append((dice.number(0, 1), 0, dice.number(1, 2 * longest)))
        if dice.pick(True, False):
            return tuple(runs)
    runs.append((100 + len(earlier), 0, own))
    return tuple(runs)


def _timing(dice: Dice) -> TimingModel | None:
    kind = dice.pick("flat", "polynomial", "jagged", "physical", "whole")
    seed = dice.number(0, 999)
    if kind == "polynomial":
        return None
    if kind == "flat":
        return FlatTiming(dice.pick(1.0, 0.5, 0.1))
    return JaggedTiming(seed, kind == "whole", kind == "physical")


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Deployments from comfortable to barely possible, under loads that share, quote, wait and give up.

    Half of them are crowds: many requests at once in a pool that barely holds the longest, so that they preempt.
    """
    dice = Dice(draw(st.binary(min_size=24, max_size=24)))
    block_size = dice.pick(1, 2, 3, 4, 5, 8, 16, 64)
    longest = dice.pick(block_size, 3 * block_size, 40)
    crowd = dice.pick(False, True)
    longest_output = dice.pick(12, 40) if crowd else dice.pick(3, 12, 40)
    spread = dice.pick((0.0,), (0.0, 1.0, 2.0, 3.0), (0.0, 0.5, 7.25, 20.0, 50.0))
    sends: list[Send] = []
    tails: list[int] = []  # the last request of each session
    entropies = st.lists(st.binary(min_size=10, max_size=10), min_size=6 if crowd else 1, max_size=14)
    for number, entropy in enumerate(draw(entropies)):
        own = Dice(entropy)
        place = own.number(0, len(tails)) - 1 if own.pick(False, True) else -1
        after = tails[place] if place >= 0 else None
        prompt = _prompt(own, sends, after, longest)
        sends.append(Send(prompt, own.number(0, longest_output), after, own.pick(*spread), own.pick(0, 0, 1, -1, 2)))
        if after is None:
            tails.append(number)
        else:
            tails[place] = number
    sequence = max(send.prompt_tokens + max(send.output_tokens, 1) for send in sends)
    needed_blocks = max(-(-(sequence - 1) // block_size), 1)
    longest_prompt = max(send.prompt_tokens for send in sends)
    chunked = dice.pick(True, True, False)
    if chunked:
        budget = dice.pick(*((4, 6, 20, 64) if crowd else (1, 2, 3, 5, 8, 20, 64, 200)))
    else:
        budget = longest_prompt + dice.pick(0, 0, 1, 5, 50, -1)
    max_model_len = dice.pick(None, None, None, sequence, sequence - 1, max(sequence // 2, 1))
    if not chunked and max_model_len is not None:
        budget = max(budget, max_model_len)
    threshold = dice.pick(0, 0, 1, 4, 20)
    engine: dict[str, object] = {
        "block_size": block_size,
        "num_gpu_blocks": max(needed_blocks + dice.pick(*((0, 0, 1, 2) if crowd else (0, 1, 3, 6, 1000, -1))), 1),
        "max_num_seqs": dice.number(4 if crowd else 1, 8),
        "max_num_batched_tokens": max(budget, 1),
        "max_model_len": max_model_len,
        "enable_prefix_caching": dice.pick(True, True, False),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "long_prefill_token_threshold_adaptive": bool(threshold) and dice.pick(False, True),
        "watermark": dice.pick(0.0, 0.0, 0.1, 0.4, 0.9),
        "scheduler_reserve_full_isl": dice.pick(True, False),
        "async_scheduling": dice.pick(False, True),
        "scheduling_policy": dice.pick("fcfs", "fcfs", "priority"),
    }
    router = dice.pick("round-robin", "random", "least-loaded")
    timing = _timing(dice)
    return Scenario(
        tuple(sends),
        engine,
        workers=dice.pick(1, 1, 2) if crowd else dice.pick(1, 2, 3, 4),
        router=router,
        tie_break=dice.pick("lowest", "random") if router == "least-loaded" else "lowest",
        concurrency=dice.pick(None, None, None, 1, 2, 4),
        cancel_after_ms=dice.pick(None, None, None, 1.0, 4.0, 10.0, 33.5, 200.0),
        max_time_s=dice.pick(None, None, None, None, None, 0.0, 0.004, 0.01, 0.0505, 0.3, 3.0),
        timing=timing,
        speedup=dice.pick(1.0, 1.0, 3.7, 0.3),
        decode_speedup=dice.pick(1.0, 2.5) if timing is None else 1.0,
        seed=dice.number(0, 5),
    )
