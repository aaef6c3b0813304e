"""Random KV tiers for the random deployments of strategies.py and sglang_strategies.py."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from hypothesis import strategies as st

from sglang_strategies import run_sglang, sglang_deployments
from strategies import Dice, FlatTiming, Outcome, Scenario, Send, _timing, run, scenarios
from windtunnel.engine.kv.haulage import Errand
from windtunnel.workload.content import Run, output_origin


class NobodysErrand(Errand):
    """Fills blocks of a tier that a test looks after by itself."""

    def arrive(self, now_ms: float) -> None:
        raise AssertionError("it is on no link")


TIME_PARTS = ("queued_ms", "prefill_ms", "stalled_ms", "preempted_ms", "transfer_ms", "decode_ms")


def run_any(scenario: Scenario, *, fast_forward: bool = True) -> Outcome:
    """Simulate a scenario with the engine that it names."""
    simulated = run_sglang if scenario.engine.get("kind") == "sglang" else run
    return simulated(scenario, fast_forward=fast_forward)


def with_tiers(scenario: Scenario, offload: dict[str, object] | None) -> Scenario:
    """The same deployment with a prefix cache and these tiers behind it."""
    return replace(scenario, engine={**scenario.engine, "enable_prefix_caching": True, "offload": offload})


def _spread(entropy: bytes) -> Dice:
    """Dice that seldom fall on their first options, however few of the bytes are not zero."""
    return Dice(blake2b(entropy, digest_size=32).digest())


def _tier(dice: Dice, blocks: int) -> dict[str, object]:
    """Tiers in which a block takes no time, about a pass, or many of them."""
    return {
        "num_blocks": blocks,
        "scope": dice.pick("private", "shared"),
        "write_gb_per_s": dice.pick(0.001, 0.01, "unlimited", 0.0003),
        "read_gb_per_s": dice.pick(0.001, 0.01, "unlimited", 0.0003),
        "latency_ms": dice.pick(0.0, 0.5, 1.0, 20.0),
    }


@st.composite
def tiers(draw: st.DrawFn, most_blocks: int = 64) -> dict[str, object]:
    """An `offload` section: tokens of 1,000 bytes; capacities from nothing over a few blocks to plenty."""
    dice = _spread(draw(st.binary(min_size=4, max_size=4)))
    sizes = (8, 4, most_blocks, 2, 1, 16, 0)
    return {
        "kv_bytes_per_token": 1000,
        "write": dice.pick("through", "back"),
        "host": _tier(dice, dice.pick(*sizes)),
        "disk": (dice.pick(True, False) and _tier(dice, dice.pick(*sizes))) or None,
        "object_store": (dice.pick(False, True) and _tier(dice, dice.pick(*sizes))) or None,
    }


@st.composite
def pressed(draw: st.DrawFn) -> Scenario:
    """A few long prompts that come again and again, in GPU memory that holds hardly more than one of them."""
    dice = _spread(draw(st.binary(min_size=4, max_size=4)))
    block_size = dice.pick(3, 2, 4, 1)
    is_vllm = dice.pick(True, False)
    longest = dice.pick(12, 6, 20)
    gap_ms = dice.pick(20.0, 3.0, 1.0, 0.0)
    sends: list[Send] = []
    for number, entropy in enumerate(draw(st.lists(st.binary(min_size=2, max_size=2), min_size=5, max_size=14))):
        own = _spread(entropy)
        runs: tuple[Run, ...] = ((own.pick(0, 1, 2), 0, own.number(block_size, longest)),)
        after = None
        if own.pick(True, True, False):
            runs = (*runs, (100 + number, 0, own.number(1, 4)))
        elif sends and own.pick(True, False):
            quoted = own.number(0, number - 1)
            runs = (*sends[quoted].runs, (output_origin(quoted), 0, sends[quoted].output_tokens), (100 + number, 0, 2))
        sends.append(
            Send(
                runs[:4], own.pick(2, 1, 6, 0, 14), after, number * gap_ms + own.pick(0.0, 0.0, 0.5), own.pick(0, 1, -1)
            )
        )
    sequence = max(send.prompt_tokens + send.output_tokens for send in sends)
    blocks = -(-(sequence + (0 if is_vllm else block_size + 7)) // block_size) + dice.pick(0, 1, 2, 5)
    engine: dict[str, object] = {"num_gpu_blocks": blocks}
    if is_vllm:
        engine |= {
            "block_size": block_size,
            "max_num_seqs": dice.number(1, 6),
            "max_num_batched_tokens": dice.pick(64, 8, 3, 20),
            "scheduler_reserve_full_isl": dice.pick(True, False),
            "async_scheduling": dice.pick(False, True),
            "scheduling_policy": dice.pick("fcfs", "priority"),
        }
    else:
        engine |= {
            "kind": "sglang",
            "page_size": block_size,
            "max_running_requests": dice.number(1, 6),
            "chunked_prefill_size": dice.pick(64, 8, -1),
            "schedule_policy": dice.pick("fcfs", "lpm"),
            "schedule_conservativeness": dice.pick(1.0, 0.0),
            "ignore_eos": dice.pick(True, False),
            "enable_mixed_chunk": False,
            "eviction_policy": dice.pick("lru", "mru", "lfu"),
            "overlap_schedule": dice.pick(True, False),
        }
    return Scenario(
        tuple(sends),
        engine,
        workers=dice.pick(1, 2),
        cancel_after_ms=dice.pick(None, None, None, 7.0, 33.5),
        timing=_timing(dice),
    )


@st.composite
def deployments(draw: st.DrawFn) -> Scenario:
    """Deployments of either engine with tiers, most of them under pressure."""
    scenario = draw(st.one_of(pressed(), pressed(), pressed(), pressed(), scenarios(), sglang_deployments()))
    return with_tiers(scenario, draw(tiers()))


@st.composite
def at_boundaries(draw: st.DrawFn) -> Scenario:
    """Engines that share tiers of a few blocks; requests arrive exactly when passes end, most of them inside runs."""
    dice = _spread(draw(st.binary(min_size=4, max_size=4)))
    sends: list[Send] = []
    for number, entropy in enumerate(draw(st.lists(st.binary(min_size=2, max_size=2), min_size=4, max_size=12))):
        own = _spread(entropy)
        runs: tuple[Run, ...] = ((own.pick(0, 1, 2), 0, own.pick(9, 13, 5)), (100 + number, 0, 1))
        sends.append(Send(runs, own.pick(1, 6, 20), None, float(own.number(0, 40))))
    engine: dict[str, object] = {"block_size": 4, "num_gpu_blocks": dice.pick(12, 16), "max_num_batched_tokens": 64}
    if dice.pick(True, False):
        engine = {
            "kind": "sglang",
            "page_size": 4,
            "num_gpu_blocks": dice.pick(16, 20),
            "overlap_schedule": dice.pick(False, True),
        }
    scenario = Scenario(tuple(sends), engine, workers=dice.pick(2, 3), timing=FlatTiming(1.0))
    host = {"num_blocks": dice.pick(2, 1, 4), "scope": "shared", "write_gb_per_s": 0.004, "read_gb_per_s": 0.004}
    disk = {"num_blocks": 64, "scope": "shared", "write_gb_per_s": "unlimited", "read_gb_per_s": 0.004, "latency_ms": 0}
    return with_tiers(scenario, {"kv_bytes_per_token": 1000, "host": host, "disk": disk})
