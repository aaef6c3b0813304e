"""Random scenarios for SGLang's scheduler that are small and tight: almost everything contends for something.

Pools of a few pages, chunks of a few tokens, shared prefixes, prompts that quote the outputs of other requests before
those exist. `general` has a bit of everything; the other profiles make the rare common: `retraction`, `lpm`, `mixed`
chunks, `uncached` (admission by simulated completions), `priorities`.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from golden.sglang_format import OUTPUT_SEED, Scenario
from strategies import Dice

PROFILES = ("general", "retraction", "lpm", "mixed", "uncached", "priorities")
MAX_TURNS = 1200


@st.composite
def sglang_scenarios(draw: st.DrawFn, profile: str) -> Scenario:
    """A scenario of one of `PROFILES`. It is shrunk by leaving out its last requests."""
    seed = draw(st.integers(0, 2**32))
    dice = _dice(seed, -1)
    scenario = _geometry(dice, profile)
    pool = scenario["max_total_tokens"]
    page_size = scenario["page_size"]
    crowded = profile == "retraction"
    longest = max(1, pool * (dice.pick(1, 2) if crowded else dice.pick(1, 2, 4, 7, 9)) // 10)
    spread = dice.pick(0, 3, 10) if crowded else dice.pick(0, 1, 3, 10, 40, 200)
    seeds = dice.pick(1, 2, 3, 5)
    kind = dice.pick("any", "any", "prefix", "turn", "same", "long")
    requests: list[dict[str, Any]] = []
    for number in range(draw(st.integers(2, 36))):
        own = _dice(seed, number)
        prompt = _prompt(own, kind, requests, seeds, page_size, longest)
        prompt = _cut(prompt, max(pool - 3 * page_size - 3, 1))
        room = pool - -(-sum(segment[1] for segment in prompt) // page_size) * page_size - page_size - 2
        if profile == "retraction":
            output = own.number(1, pool // 3)
        else:
            anything = own.number(1, max(room, 1))
            output = own.pick(own.number(1, 30), own.number(1, 60), own.number(1, 4 * page_size), 1, 2, anything)
        if own.number(0, 99) < 99:  # else it may never fit
            output = min(output, room)
        request = {
            "id": f"r{number}",
            "arrival_pass": own.number(0, spread),
            "prompt": prompt,
            "output_len": max(output, 1),
        }
        if own.number(0, 3) == 3:
            request["ignore_eos"] = own.pick(False, True)
        if profile == "priorities":
            request["priority"] = own.number(0, 3)
        requests.append(request)
    scenario["requests"] = requests
    return scenario


def _dice(seed: int, number: int) -> Dice:
    return Dice(random.Random(f"{seed}, {number}").randbytes(48))


def _geometry(dice: Dice, profile: str) -> Scenario:
    page_size = dice.pick(1, 1, 1, 2, 3, 4, 4, 5, 8, 16, 16, 64)
    chunk = dice.pick(16, -1, 4, 8, 17, 32, 64, 128)
    if 0 < chunk < page_size:
        chunk = page_size + chunk
    scenario: Scenario = {
        "page_size": page_size,
        "max_total_tokens": dice.number(24, 700) if page_size == 1 else dice.number(8, 80) * page_size,
        "max_running_requests": dice.pick(4, 1, 2, 3, 6, 8, 16),
        "max_prefill_tokens": dice.pick(64, 8, 32, 256, 4096),
        "chunked_prefill_size": chunk,
        "max_passes": MAX_TURNS,
        "ignore_eos": dice.pick(False, True),
        "overlap": dice.pick(True, False),
        "schedule_policy": dice.pick("fcfs", "fcfs", "lof", "lpm"),
        "schedule_conservativeness": dice.pick(0.3, 0.1, 0.5, 1.0, 1.4),
        "eviction_policy": dice.pick("lru", "lru", "lru", "lfu", "fifo", "mru"),
        "enable_mixed_chunk": dice.pick(False, False, False, False, True),
        "disable_radix_cache": dice.number(0, 9) == 9,
        "prefill_max_requests": dice.pick(None, None, None, None, None, None, None, 1, 2, 3),
    }
    if profile == "retraction":
        scenario["ignore_eos"] = False
        scenario["schedule_conservativeness"] = dice.pick(0.05, 0.1, 0.2)
        scenario["max_running_requests"] = dice.pick(8, 16)
    elif profile == "lpm":
        scenario["schedule_policy"] = "lpm"
        scenario["disable_radix_cache"] = False
    elif profile == "mixed":
        scenario["enable_mixed_chunk"] = True
        scenario["chunked_prefill_size"] = abs(chunk) + page_size
    elif profile == "uncached":
        scenario["disable_radix_cache"] = True
        scenario["ignore_eos"] = True
    elif profile == "priorities":
        scenario["enable_priority_scheduling"] = True
    return scenario


def _prompt(
    dice: Dice, kind: str, earlier: list[dict[str, Any]], seeds: int, page_size: int, longest: int
) -> list[list[int]]:
    own = 100 + len(earlier)
    if kind == "any":
        kind = dice.pick("prefix", "turn", "same", "fresh", "middle", "long")
    if kind == "turn" and earlier:  # goes on after another request's answer, or after a part of it
        before = dice.number(0, len(earlier) - 1)
        output: int = earlier[before]["output_len"]
        prompt = [list(segment) for segment in earlier[before]["prompt"]]
        prompt.append([OUTPUT_SEED + before, dice.pick(output, dice.number(1, output))])
        if dice.number(0, 3) < 3:
            prompt.append([own, dice.number(1, 2 * page_size + 4)])
        return prompt
    if kind == "same" and earlier:
        return [list(segment) for segment in earlier[dice.number(0, len(earlier) - 1)]["prompt"]]
    if kind == "middle" and earlier:
        quoted = dice.number(0, len(earlier) - 1)
        middle = [OUTPUT_SEED + quoted, dice.number(1, 3 * page_size), dice.number(0, 2)]
        return [[dice.number(0, seeds - 1), dice.number(1, 3 * page_size)], middle]
    if kind == "fresh":
        return [[own, dice.number(1, longest)]]
    if kind == "long":  # shared by enough tokens to be put off within a batch
        shared = dice.pick(32, 40, 48, 64, 96)
        return [[dice.number(0, seeds - 1), shared], [100 + dice.number(0, 7), dice.number(1, 40)]]
    prompt = [[dice.number(0, seeds - 1), dice.number(1, longest)]]
    if dice.pick(True, False):
        prompt.append([100 + dice.number(0, 7), dice.number(1, 2 * page_size), dice.number(0, 2)])
    return prompt


def _cut(prompt: list[list[int]], limit: int) -> list[list[int]]:
    """A prompt of at most `limit` tokens."""
    kept: list[list[int]] = []
    for segment in prompt:
        length = min(segment[1], limit)
        if length:
            kept.append([segment[0], length, *segment[2:]])
        limit -= length
    return kept
