"""vLLM's scheduler pass by pass and block by block: what the engine must be equal to.

Plays a scenario of golden/vllm_format.py and returns a recording in the same format, `alloc` and physical blocks
included. Synchronous, first come first served, without speculation, as vLLM 0.33 decides. Slow and obvious on
purpose: every pass looks at every request, and it shares no code with the engine. It reproduces the recorded runs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from golden.vllm_format import (
    IDLE_PASSES,
    OUTPUT_SEED,
    BlockHashes,
    EventLog,
    Recording,
    Scenario,
    compact,
    token_ids,
    with_defaults,
)
from oracle.block_by_block import BlockByBlockPool


def _ceil(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


class RuleRequest:
    """A request: its tokens so far, how many of them are computed, and its blocks."""

    def __init__(self, number: int, described: dict[str, Any]) -> None:
        self.number = number
        self.id: str = described["id"]
        self.tokens = token_ids(described["prompt"])
        self.num_prompt = len(self.tokens)
        self.max_output: int = described["output_len"]
        self.computed = 0
        self.preemptions = 0
        self.blocks: list[int] = []
        self.num_cached = 0  # blocks that are hashed
        self.hashes: list[int] = []

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


class PassPlan:
    """What one call of the scheduler decided."""

    def __init__(self) -> None:
        self.scheduled: dict[RuleRequest, int] = {}
        self.admitted: dict[RuleRequest, int] = {}  # hit tokens
        self.taken: dict[RuleRequest, list[int]] = {}
        self.preempted: list[list[str]] = []
        self.blocked: list[str | int] | None = None


class VllmRules:
    """An engine that plays one scenario.

    Attributes:
        pool: its blocks.
        log: labels of the blocks that were ever stored.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = with_defaults(scenario)
        self.block_size: int = self.scenario["block_size"]
        self.caching: bool = self.scenario["enable_prefix_caching"]
        self.max_model_len: int = self.scenario["max_model_len"]
        self.watermark = int(self.scenario["watermark"] * self.scenario["num_gpu_blocks"])
        self.hasher = BlockHashes(self.block_size)
        self.log = EventLog()
        self.pool = BlockByBlockPool(self.scenario["num_gpu_blocks"] - 1)
        self.waiting: deque[RuleRequest] = deque()
        self.running: list[RuleRequest] = []
        self.alive: dict[str, RuleRequest] = {}

    # --- KV blocks

    def cached_prefix(self, request: RuleRequest) -> list[int]:
        if not self.caching:
            return []
        limit = (len(request.tokens) - 1) // self.block_size  # the last token is computed in any case
        return self.pool.match(request.hashes[:limit])

    def allocate(self, request: RuleRequest, tokens: int, hits: list[int], admission: bool) -> list[int] | None:
        """New blocks for the next `tokens` tokens; None, and nothing changed, if the free ones do not suffice."""
        size = self.block_size
        pool = self.pool
        owned = len(request.blocks) + len(hits)
        reserved = pool.idle(hits)  # they stand in the free queue
        if admission and self.running:
            reserved += self.watermark
        if admission and self.scenario["scheduler_reserve_full_isl"]:
            whole = _ceil(min(len(request.tokens), self.max_model_len), size)
            if max(whole - owned, 0) + reserved > len(pool.free):
                return None
        computed = request.computed + len(hits) * size
        need = max(_ceil(min(computed + tokens, self.max_model_len), size) - owned, 0)
        if need + reserved > len(pool.free):
            return None
        pool.hold(hits)
        if admission:
            request.blocks = list(hits)
            request.num_cached = len(hits)
        taken = pool.take(need)
        request.blocks += taken
        self.cache(request, computed + tokens)
        return taken

    def cache(self, request: RuleRequest, computed: int) -> None:
        """Hash the blocks that are full when `computed` tokens are computed."""
        first, last = request.num_cached, computed // self.block_size
        if not self.caching or last <= first:
            return
        parent = request.hashes[first - 1] if first else None
        self.pool.store(parent, request.blocks[first:last], request.hashes[first:last])
        request.num_cached = last

    def release(self, request: RuleRequest) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_cached = 0

    # --- one pass

    def schedule(self) -> PassPlan:
        """Decide one pass: running requests in their order, then waiting ones."""
        plan = PassPlan()
        cap = self.chunk_cap()
        budget = self.schedule_running(plan, cap)
        if not plan.preempted:
            self.admit(plan, cap, budget)
        for request, tokens in plan.scheduled.items():
            request.computed += tokens
        return plan

    def chunk_cap(self) -> int:
        """Longest chunk of a pass; 0 is no limit."""
        threshold: int = self.scenario["long_prefill_token_threshold"]
        eligible = len(self.running) + len(self.waiting)
        if threshold == 0 or eligible <= 1:
            return 0
        if self.scenario["long_prefill_token_threshold_adaptive"]:
            threshold = max(threshold, self.scenario["max_num_batched_tokens"] // eligible)
        return threshold

    def schedule_running(self, plan: PassPlan, cap: int) -> int:
        """Give the running requests their tokens; returns what is left of the budget."""
        budget: int = self.scenario["max_num_batched_tokens"]
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            i += 1
            tokens = len(request.tokens) - request.computed
            if cap:
                tokens = min(tokens, cap)
            tokens = min(tokens, budget, self.max_model_len - request.computed - 1)
            if tokens <= 0:
                continue
            taken = self.allocate(request, tokens, [], admission=False)
            while taken is None:
                victim = self.running.pop()
                self.release(victim)
                victim.computed = 0
                victim.preemptions += 1
                self.waiting.appendleft(victim)
                plan.preempted.append([victim.id, request.id])
                if victim is request:
                    return budget
                taken = self.allocate(request, tokens, [], admission=False)
            plan.scheduled[request] = tokens
            plan.taken[request] = taken
            budget -= tokens
        return budget

    def admit(self, plan: PassPlan, cap: int, budget: int) -> None:
        """Admit from the head of the queue; the first request that does not fit stops it."""
        while self.waiting and budget > 0 and len(self.running) < self.scenario["max_num_seqs"]:
            request = self.waiting[0]
            hits = self.cached_prefix(request)
            hit_tokens = len(hits) * self.block_size
            tokens = len(request.tokens) - hit_tokens
            if cap:
                tokens = min(tokens, cap)
            if tokens > budget and not self.scenario["enable_chunked_prefill"]:
                return
            tokens = min(tokens, budget)
            free = len(self.pool.free)
            taken = self.allocate(request, tokens, hits, admission=True)
            if taken is None:
                plan.blocked = [request.id, hit_tokens, free]
                return
            self.waiting.popleft()
            self.running.append(request)
            request.computed = hit_tokens
            plan.admitted[request] = hit_tokens
            plan.scheduled[request] = tokens
            plan.taken[request] = taken
            budget -= tokens

    def finish(self, plan: PassPlan) -> tuple[dict[str, int], list[list[str]]]:
        """Process the output of a pass: tokens emitted, and who ended."""
        emitted: dict[str, int] = {}
        ended: list[list[str]] = []
        for request in plan.scheduled:
            if request.computed < len(request.tokens):
                continue
            request.tokens += token_ids([[OUTPUT_SEED + request.number, 1, request.num_output]])
            self.hasher.extend(request.hashes, request.tokens)
            emitted[request.id] = 1
            if len(request.tokens) >= self.max_model_len or request.num_output >= request.max_output:
                ended.append([request.id, "length"])
                self.remove(request)
        return emitted, ended

    def remove(self, request: RuleRequest) -> None:
        """A request ends, whatever its state."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.release(request)
        del self.alive[request.id]

    # --- the recorder

    def play(self) -> Recording:
        """Play the scenario to its end, as the recorder of the real scheduler does."""
        described = self.scenario["requests"]
        pending = deque(sorted(range(len(described)), key=lambda i: (described[i]["arrival_pass"], i)))
        passes: list[dict[str, Any]] = []
        queues: dict[str, list[str]] = {"run": [], "wait": []}
        stalled = False
        unflushed = False  # a request has ended, and no pass was scheduled since
        number = idle = 0
        while True:
            entry: dict[str, Any] = {"p": number}
            while pending and described[pending[0]]["arrival_pass"] <= number:
                request = RuleRequest(pending[0], described[pending.popleft()])
                self.hasher.extend(request.hashes, request.tokens)
                self.alive[request.id] = request
                self.waiting.append(request)
                entry.setdefault("added", []).append(request.id)
            for row in described:
                if row.get("abort_pass") == number:
                    entry.setdefault("aborted", []).append(row["id"])
                    if row["id"] in self.alive:
                        self.remove(self.alive[row["id"]])
                        unflushed = True
            if not self.alive and not unflushed:
                if not pending:
                    break
                number = described[pending[0]]["arrival_pass"]
                continue
            if number >= self.scenario["max_passes"]:
                stalled = True
                break
            plan = self.schedule()
            free_scheduled = len(self.pool.free)
            entry.update(_written(plan))
            entry["out"], entry["fin"] = self.finish(plan)
            unflushed = bool(entry["fin"])
            entry["ev"] = self.log.written(self.pool.events) if self.scenario["kv_events"] else []
            self.pool.events = []
            entry = {key: value for key, value in entry.items() if value or key == "p"}
            entry["free"] = len(self.pool.free)
            if free_scheduled != entry["free"]:
                entry["free_sched"] = free_scheduled
            for key, queue in (("run", self.running), ("wait", self.waiting)):
                ids = [request.id for request in queue]
                if ids != queues[key]:
                    entry[key] = queues[key] = ids
            passes.append(entry)
            number += 1
            idle = 0 if plan.scheduled or plan.preempted else idle + 1
            if idle >= IDLE_PASSES:
                if not pending:
                    stalled = True
                    break
                number = max(number, described[pending[0]]["arrival_pass"])
                idle = 0
        cached = [block for block, block_hash in enumerate(self.pool.hashes) if block_hash is not None]
        final = {
            "free": len(self.pool.free),
            "free_queue": compact(list(self.pool.free)),
            "cached": compact(cached),
            "distinct_blocks_stored": len(self.log.labels),
        }
        return {"stalled": stalled, "num_passes": len(passes), "passes": passes, "final": final}


def _written(plan: PassPlan) -> dict[str, Any]:
    """The decisions of a pass in the recorded format."""
    return {
        "sched": {request.id: [request.computed - tokens, tokens] for request, tokens in plan.scheduled.items()},
        "new": [[request.id, hit] for request, hit in plan.admitted.items() if request.preemptions == 0],
        "resumed": [[request.id, hit] for request, hit in plan.admitted.items() if request.preemptions > 0],
        "preempted": plan.preempted,
        "blocked": plan.blocked,
        "alloc": {request.id: compact(blocks) for request, blocks in plan.taken.items() if blocks},
    }
