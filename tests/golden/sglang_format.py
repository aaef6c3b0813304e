"""The format in which SGLang's own scheduler was recorded: scenarios, and what it decided in each turn of its loop.

A scenario is the geometry of an engine and its requests; `overlap` says which of SGLang's two loops was driven, and
`chunked_prefill_size` -1 is off. A request arrives before turn `arrival_pass`. Its `prompt` is a list of segments
[seed, length] or [seed, length, start] that stand for the token ids `seed * 1_000_000 + start + i`; token k of the
output of the r-th request is `10**9 + r * 10**6 + k`, so the segment [1000 + r, n] quotes its first n. (In our own
scenarios a request may have an `output`, segments too, at least `output_len` tokens: what it generates instead.)

A recording holds the turns in order. Of each: `p` its number, `added` before it, `retracted` and `aborted` in it,
`mode` EXTEND, DECODE or MIXED if it launched a batch, `batch` {request: [prefix, tokens]} of the prompts in it,
`decode` the requests that decode, `chunked` the request whose prompt goes on, `out` the requests that emitted a token,
`fin` those that ended, `done` (overlap) the turn whose result was processed, `avail_sched` the free tokens once the
batch was formed if they differ from `avail` at the end of the turn, `evictable` and `protected` tokens of the tree,
`full` if no prefill will be tried, `ratio` after a retraction, `ev` the KV events, `run` and `wait` the running batch
and the queue at its end if they changed. The recorder gives up (`stalled`) after three turns in a row that did
nothing, or after `max_passes` turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from golden.vllm_format import compact

Scenario: TypeAlias = dict[str, Any]
Recording: TypeAlias = dict[str, Any]
RawEvent: TypeAlias = tuple[str, int | None, list[int]]  # "S" or "R", the parent of an "S", hashes of pages

SCENARIO_DEFAULTS: Scenario = {
    "page_size": 1,
    "max_total_tokens": 4096,
    "max_running_requests": 64,
    "max_prefill_tokens": 16384,
    "chunked_prefill_size": 8192,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "context_len": 16384,
    "disable_radix_cache": False,
    "enable_mixed_chunk": False,
    "ignore_eos": True,
    "enable_priority_scheduling": False,
    "eviction_policy": "lru",
    "prefill_max_requests": None,
    "kv_events": True,
    "max_passes": 3000,
    "overlap": False,
}
SCENARIO_KEYS = frozenset(SCENARIO_DEFAULTS) | {"name", "desc", "requests"}
REQUEST_KEYS = frozenset({"id", "arrival_pass", "prompt", "output_len", "output", "ignore_eos", "priority"})
OUTPUT_SEED = 1000  # + r is the seed of the output of the r-th request
IDLE_TURNS = 3  # after so many turns in a row that do nothing the recorder waits for the next arrival


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


class EventLog:
    """Writes KV events as they are recorded, with labels that number page hashes by first appearance."""

    def __init__(self) -> None:
        self.labels: dict[int, int] = {}

    def written(self, events: Iterable[RawEvent]) -> list[list[Any]]:
        """The events of one turn: stores that continue each other are one, and so are neighbouring removals."""
        rows: list[list[Any]] = []
        for kind, parent, hashes in events:
            before = rows[-1] if rows else None
            if kind == "S":
                parent_label = None if parent is None else self._label(parent)
                labels = [self._label(page_hash) for page_hash in hashes]
                if before is not None and before[0] == "S" and parent is not None and before[2][-1] == parent_label:
                    before[2].extend(labels)
                else:
                    rows.append(["S", parent_label, labels])
            else:
                labels = [self._label(page_hash) for page_hash in hashes]
                if before is not None and before[0] == "R":
                    before[1].extend(labels)
                else:
                    rows.append(["R", labels])
        return [[*row[:-1], compact(row[-1])] for row in rows]

    def _label(self, page_hash: int) -> int:
        return self.labels.setdefault(page_hash, len(self.labels))
