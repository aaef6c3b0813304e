"""The format in which vLLM's own scheduler was recorded: scenarios, and what it decided in each pass.

A scenario is the geometry of an engine and its requests. `num_gpu_blocks` counts vLLM's null block. A request
arrives before pass `arrival_pass` and may be aborted before pass `abort_pass`. Its `prompt` is a list of segments
[seed, length] or [seed, length, start] that stand for the token ids `seed * 1_000_000 + start + i`; token k of the
output of the r-th request is `10**12 + r * 10**6 + k`, so the segment [1_000_000 + r, n] quotes its first n. (In our
own scenarios a request may have an `output`, segments too, at least `output_len` tokens: what it generates instead.)

A recording holds the passes in order. Of each: `p` its number, `added` and `aborted` before it, `sched` {request:
[tokens computed before, tokens]} in batch order, `new` and `resumed` [request, hit tokens], `preempted` [victim,
requester], `blocked` [request, hit tokens, free blocks] if the head of the queue was refused for its blocks, `out`
{request: tokens emitted}, `fin` [request, reason], `ev` the KV events, `free_sched` the free blocks when it was
scheduled if they differ from `free` at its end, `run` and `wait` the queues at its end if they changed, `alloc` the
physical blocks taken. Passes without `sched` only flush finished requests, or find that nothing fits; the recorder
gives up (`stalled`) after three of them in a row or after `max_passes` passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Scenario: TypeAlias = dict[str, Any]
Recording: TypeAlias = dict[str, Any]
RawEvent: TypeAlias = tuple[str, int | None, list[int]]  # "S" or "R", the parent of an "S", block hashes

SCENARIO_DEFAULTS: Scenario = {
    "block_size": 16,
    "num_gpu_blocks": 1000,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "policy": "fcfs",
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "async_scheduling": False,
    "num_spec_tokens": 0,
    "spec_method": "ngram",
    "spec_accept": [],
    "disable_lookahead_block_hashes": False,
    "kv_events": True,
    "max_passes": 4000,
}
SCENARIO_KEYS = frozenset(SCENARIO_DEFAULTS) | {"name", "desc", "requests"}
REQUEST_KEYS = frozenset({"id", "arrival_pass", "abort_pass", "prompt", "output_len", "output", "priority"})
OUTPUT_SEED = 1_000_000  # + r is the seed of the output of the r-th request
IDLE_PASSES = 3  # after so many passes in a row that schedule nothing the recorder waits for the next arrival


def with_defaults(scenario: Scenario) -> Scenario:
    """The scenario with every setting spelled out.

    Raises:
        ValueError: it has a key that is not part of the format, which might matter.
    """
    unknown = sorted(set(scenario) - SCENARIO_KEYS)
    for request in scenario["requests"]:
        unknown += sorted(f"requests.{key}" for key in set(request) - REQUEST_KEYS)
    if unknown:
        raise ValueError(f"unknown scenario key {unknown[0]!r}")
    return {**SCENARIO_DEFAULTS, **scenario}


def token_ids(segments: Iterable[list[int]]) -> list[int]:
    """The token ids that prompt segments stand for."""
    tokens: list[int] = []
    for seed, length, *start in segments:
        first = seed * 1_000_000 + sum(start)
        tokens.extend(range(first, first + length))
    return tokens


class BlockHashes:
    """Hashes of full blocks, as numbers: equal when the blocks and all blocks before them hold the same tokens.

    With `beyond` a block is known by so many tokens after it as well, and has no hash before they are known.
    """

    def __init__(self, block_size: int, beyond: int = 0) -> None:
        self.block_size = block_size
        self.beyond = beyond
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def extend(self, hashes: list[int], tokens: list[int]) -> None:
        """Append to `hashes` those of the full blocks of `tokens` that it does not have yet."""
        size = self.block_size
        while (len(hashes) + 1) * size + self.beyond <= len(tokens):
            at = len(hashes) * size
            block = (hashes[-1] if hashes else -1, tuple(tokens[at : at + size + self.beyond]))
            hashes.append(self._numbers.setdefault(block, len(self._numbers)))


class EventLog:
    """Writes KV events as they are recorded, with labels that number block hashes by first appearance."""

    def __init__(self) -> None:
        self.labels: dict[int, int] = {}

    def label(self, block_hash: int) -> int:
        """The label of a block hash."""
        return self.labels.setdefault(block_hash, len(self.labels))

    def written(self, events: Iterable[RawEvent]) -> list[list[Any]]:
        """The events of one pass: one "S" for each store, one "R" for neighbouring removals."""
        rows: list[list[Any]] = []
        removed: list[int] = []
        for kind, parent, hashes in events:
            if kind == "R":
                if not removed:
                    rows.append(["R", removed])
                removed += [self.label(block_hash) for block_hash in hashes]
            else:
                parent_label = None if parent is None else self.label(parent)
                rows.append(["S", parent_label, compact([self.label(block_hash) for block_hash in hashes])])
                removed = []
        return [["R", compact(row[1])] if row[0] == "R" else row for row in rows]


def compact(numbers: list[int]) -> str:
    """Numbers in order as text: [1, 2, 3, 9, 8] is "1-3,9-8"."""
    parts: list[str] = []
    i = 0
    while i < len(numbers):
        j = i
        step = numbers[i + 1] - numbers[i] if i + 1 < len(numbers) else 0
        if abs(step) == 1:
            while j + 1 < len(numbers) and numbers[j + 1] - numbers[j] == step:
                j += 1
        parts.append(f"{numbers[i]}-{numbers[j]}" if j > i else str(numbers[i]))
        i = j + 1
    return ",".join(parts)


def count_compact(text: str) -> int:
    """How many numbers a text of `compact` stands for."""
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        total += abs(int(last or first) - int(first)) + 1
    return total
