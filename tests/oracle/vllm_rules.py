"""vLLM's scheduler pass by pass and block by block: what the engine must be equal to.

Plays a scenario of golden/vllm_format.py and returns a recording in the same format, `alloc` and physical blocks
included: in either policy, with and without asynchronous scheduling and speculation, of three releases. Slow and
obvious on purpose: every pass looks at every request, and it shares no code with the engine. It reproduces the
recorded runs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from golden.planned_content import output_ids
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


OLDER_THAN_0_33 = frozenset({"0.20", "0.11"})


class RuleRequest:
    """A request: its tokens so far, how many of them are computed, and its blocks.

    Attributes:
        drafts: draft tokens that will be verified in its next pass.
        in_flight: tokens scheduled whose output is not processed; pending: tokens that this output will add.
        stale: tokens in flight that were scheduled before a preemption.
    """

    def __init__(self, number: int, described: dict[str, Any]) -> None:
        self.number = number
        self.id: str = described["id"]
        self.rank = (described.get("priority", 0), number)
        self.tokens = token_ids(described["prompt"])
        self.num_prompt = len(self.tokens)
        self.max_output: int = described["output_len"]
        self.all_output = output_ids(described, number, OUTPUT_SEED)
        self.computed = 0
        self.preemptions = 0
        self.blocks: list[int] = []
        self.num_cached = 0  # blocks that are hashed
        self.hashes: list[int] = []
        self.drafts = 0
        self.in_flight = 0
        self.pending = 0
        self.stale = 0
        self.verified = 0  # passes that verified drafts
        self.is_prefill = False

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


class PassPlan:
    """What one call of the scheduler decided."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.scheduled: dict[RuleRequest, int] = {}
        self.admitted: dict[RuleRequest, int] = {}  # hit tokens
        self.taken: dict[RuleRequest, list[int]] = {}
        self.verified: dict[RuleRequest, int] = {}  # draft tokens
        self.samples: set[RuleRequest] = set()
        self.preempted: list[list[str]] = []
        self.blocked: list[str | int] | None = None
        self.with_prompts = False  # whether a running request computes a prompt


class VllmRules:
    """An engine that plays one scenario as a release of vLLM does: "0.33", "0.20" or "0.11".

    Attributes:
        pool: its blocks.
        log: labels of the blocks that were ever stored.
    """

    def __init__(self, scenario: Scenario, release: str = "0.33") -> None:
        self.scenario = with_defaults(scenario)
        self.release = release
        self.is_new = release not in OLDER_THAN_0_33
        self.block_size: int = self.scenario["block_size"]
        self.caching: bool = self.scenario["enable_prefix_caching"]
        self.max_model_len: int = self.scenario["max_model_len"]
        self.budget: int = self.scenario["max_num_batched_tokens"]
        self.watermark = int(self.scenario["watermark"] * self.scenario["num_gpu_blocks"]) if self.is_new else 0
        self.priorities: bool = self.scenario["policy"] == "priority"
        self.is_async: bool = self.scenario["async_scheduling"]
        self.num_drafts: int = self.scenario["num_spec_tokens"]
        with_model = self.num_drafts > 0 and self.scenario["spec_method"] != "ngram"  # which has a KV cache itself
        self.lookahead = self.num_drafts if with_model else 0
        beyond = with_model and self.caching and self.is_new and not self.scenario["disable_lookahead_block_hashes"]
        self.drops_last_hit = with_model and not beyond
        self.hasher = BlockHashes(self.block_size, int(beyond))
        self.log = EventLog()
        self.pool = BlockByBlockPool(self.scenario["num_gpu_blocks"] - 1, self.caching, self.is_new)
        self.waiting: deque[RuleRequest] = deque()
        self.running: list[RuleRequest] = []
        self.alive: dict[str, RuleRequest] = {}

    # --- KV blocks

    def cached_prefix(self, request: RuleRequest) -> list[int]:
        if not self.caching:
            return []
        limit = (len(request.tokens) - 1) // self.block_size  # the last token is computed in any case
        hits = self.pool.match(request.hashes[:limit])
        return hits[:-1] if self.drops_last_hit else hits

    def allocate(self, request: RuleRequest, tokens: int, hits: list[int], admission: bool) -> list[int] | None:
        """New blocks for the next `tokens` tokens; None, and nothing changed, if the free ones do not suffice."""
        size = self.block_size
        pool = self.pool
        owned = len(request.blocks) + len(hits)
        reserved = pool.idle(hits)  # they stand in the free queue
        if admission and self.running:
            reserved += self.watermark
        if admission and self.scenario["scheduler_reserve_full_isl"] and self.release != "0.11":
            whole = _ceil(min(len(request.tokens), self.max_model_len), size)
            if max(whole - owned, 0) + reserved > len(pool.free):
                return None
        computed = request.computed + len(hits) * size
        ahead = self.lookahead if self.is_new or not admission else 0
        need = max(_ceil(min(computed + tokens + ahead, self.max_model_len), size) - owned, 0)
        if need + reserved > len(pool.free):
            return None
        pool.hold(hits)
        if admission:
            request.blocks = list(hits)
            request.num_cached = len(hits)
        taken = pool.take(need)
        request.blocks += taken
        self.cache(request, min(computed + tokens, len(request.tokens)))
        return taken

    def cache(self, request: RuleRequest, computed: int) -> None:
        """Hash the blocks that are full when `computed` tokens are computed, as far as their tokens are known."""
        first = request.num_cached
        last = min(computed // self.block_size, len(request.hashes), len(request.blocks))
        if not self.caching or last <= first:
            return
        parent = request.hashes[first - 1] if first else None
        self.pool.store(parent, request.blocks[first:last], request.hashes[first:last])
        request.num_cached = last

    def release_blocks(self, request: RuleRequest) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_cached = 0

    # --- one pass

    def schedule(self, number: int) -> PassPlan:
        """Decide one pass: running requests in their order, then waiting ones."""
        plan = PassPlan(number)
        cap = self.chunk_cap()
        budget = self.schedule_running(plan, cap)
        if not plan.preempted:
            self.admit(plan, cap, budget)
        for request, tokens in plan.scheduled.items():
            request.computed += tokens
            request.in_flight += tokens
            request.is_prefill = request.computed < len(request.tokens) + request.pending
            if request.computed >= len(request.tokens):
                plan.samples.add(request)
            if self.is_async and not request.is_prefill:
                request.pending += 1 + plan.verified.get(request, 0)
                request.drafts = self.num_drafts if self.release != "0.11" else 0  # which does not do both
        return plan

    def chunk_cap(self) -> int:
        """Longest chunk of a pass; 0 is no limit."""
        threshold: int = self.scenario["long_prefill_token_threshold"]
        eligible = len(self.running) + len(self.waiting)
        if threshold == 0 or (eligible <= 1 and self.is_new):
            return 0
        if self.scenario["long_prefill_token_threshold_adaptive"] and self.is_new:
            threshold = max(threshold, self.budget // eligible)
        return threshold

    def schedule_running(self, plan: PassPlan, cap: int) -> int:
        """Give the running requests their tokens; returns what is left of the budget."""
        budget = self.budget
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            tokens = len(request.tokens) + request.drafts + request.pending - request.computed
            if cap:
                tokens = min(tokens, cap)
            tokens = min(tokens, budget, self.max_model_len - request.computed - 1)
            if tokens <= 0 or self.ends_in_flight(request):
                i += 1
                continue
            taken = self.allocate(request, tokens, [], admission=False)
            while taken is None:
                victim = max(self.running, key=lambda other: other.rank) if self.priorities else self.running[-1]
                place = self.running.index(victim)
                del self.running[place]
                self.preempt(victim)
                plan.preempted.append([victim.id, request.id])
                got = plan.scheduled.get(victim, 0)
                plan.taken.pop(victim, None)
                if self.release != "0.11":
                    if got or (self.is_new and place < i):
                        i -= 1
                    plan.scheduled.pop(victim, None)
                    plan.verified.pop(victim, None)
                    budget += got
                if victim is request:
                    break
                taken = self.allocate(request, tokens, [], admission=False)
            if taken is None:
                if self.priorities and self.is_new:
                    continue
                return budget
            plan.with_prompts |= request.is_prefill
            plan.scheduled[request] = tokens
            plan.taken[request] = taken
            if request.drafts:
                drafts = tokens + request.computed - len(request.tokens) - request.pending
                if drafts > 0:
                    plan.verified[request] = min(drafts, request.drafts)
                request.drafts = 0
            budget -= tokens
            i += 1
        return budget

    def ends_in_flight(self, request: RuleRequest) -> bool:
        """Whether the output that is not processed yet is known to be its last, so that it is not scheduled again."""
        last = request.computed + 2 - request.pending >= request.num_prompt + request.max_output
        return request.pending > 0 and last and self.release != "0.11"

    def preempt(self, victim: RuleRequest) -> None:
        self.release_blocks(victim)
        victim.computed = victim.drafts = victim.pending = 0
        victim.stale = victim.in_flight
        victim.preemptions += 1
        self.requeue(victim)

    def requeue(self, request: RuleRequest) -> None:
        """In front of the queue, or at its place by priority."""
        self.waiting.appendleft(request)
        self.order_queue()

    def order_queue(self) -> None:
        if self.priorities:
            self.waiting = deque(sorted(self.waiting, key=lambda request: request.rank))

    def admit(self, plan: PassPlan, cap: int, budget: int) -> None:
        """Admit from the head of the queue; the first request that does not fit stops it."""
        passed_over: list[RuleRequest] = []
        while self.waiting and budget > 0 and len(self.running) < self.scenario["max_num_seqs"]:
            request = self.waiting[0]
            if request.stale:  # what it had in flight when it was preempted comes first
                passed_over.append(self.waiting.popleft())
                continue
            hits = [] if request.computed else self.cached_prefix(request)  # 0.11 leaves victims in the batch
            hit_tokens = len(hits) * self.block_size
            tokens = len(request.tokens) - hit_tokens - request.computed
            drafts = self.drafts_of_admission(plan, tokens, hit_tokens)
            if drafts and 1 + drafts > budget:
                break
            tokens += drafts
            if cap:
                tokens = min(tokens, cap)
            if tokens > budget and not self.scenario["enable_chunked_prefill"]:
                if self.release != "0.11":
                    break
                passed_over.append(self.waiting.popleft())
                continue
            tokens = min(tokens, budget)
            free = len(self.pool.free)
            taken = self.allocate(request, tokens, hits, admission=True)
            if taken is None:
                plan.blocked = [request.id, hit_tokens, free]
                break
            self.waiting.popleft()
            self.running.append(request)
            request.computed += hit_tokens
            plan.admitted[request] = hit_tokens
            plan.scheduled[request] = tokens
            plan.taken[request] = taken
            if drafts:
                plan.verified[request] = drafts
            budget -= tokens
        self.waiting.extendleft(reversed(passed_over))

    def drafts_of_admission(self, plan: PassPlan, tokens: int, hit_tokens: int) -> int:
        """Drafts, all to be rejected, that an admission with one token left is padded with."""
        pads = self.is_new and self.num_drafts > 0 and tokens == 1 and not plan.with_prompts
        if pads and (plan.scheduled or hit_tokens) and hit_tokens + self.num_drafts + 2 <= self.max_model_len:
            return self.num_drafts
        return 0

    def finish(self, plan: PassPlan) -> tuple[dict[str, int], list[list[str]]]:
        """Process the output of a pass: tokens emitted, and who ended."""
        emitted: dict[str, int] = {}
        ended: list[list[str]] = []
        for request, tokens in plan.scheduled.items():
            drafts = plan.verified.get(request, 0)
            accepted = 0
            if drafts and request in plan.samples and request not in plan.admitted:
                pattern = self.scenario["spec_accept"] or [self.num_drafts]
                accepted = min(pattern[request.verified % len(pattern)], drafts)
                request.verified += 1
            if request.id not in self.alive:
                continue
            is_stale = request.stale > 0
            request.in_flight -= tokens
            request.stale -= tokens if is_stale else 0
            if request not in plan.samples:
                continue
            if not is_stale:
                if request.computed:
                    request.computed -= drafts - accepted
                if request.pending:
                    request.pending -= drafts - accepted
            was_pending, was_running = request.pending > 0, request in self.running
            new = 0
            is_done = False
            while new < accepted + 1 and not is_done:
                request.tokens.append(request.all_output[request.num_output])
                new += 1
                is_done = len(request.tokens) >= self.max_model_len or request.num_output >= request.max_output
            if is_done and not is_stale:
                request.computed -= accepted + 1 - new
            self.hasher.extend(request.hashes, request.tokens)
            if not is_stale and request.pending:
                request.pending -= accepted + 1
            if not is_stale and was_running and (was_pending or (self.num_drafts and self.is_new)):
                self.cache(request, request.computed - request.in_flight)
            emitted[request.id] = new
            if is_done:
                ended.append([request.id, "length"])
                self.remove(request)
        if self.num_drafts and not self.is_async:
            for request in plan.scheduled:
                request.drafts = 0 if request.is_prefill else self.num_drafts
        return emitted, ended

    def remove(self, request: RuleRequest) -> None:
        """A request ends, whatever its state."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.release_blocks(request)
        del self.alive[request.id]

    # --- the recorder

    def play(self) -> Recording:
        """Play the scenario to its end, as the recorder of the real scheduler does."""
        described = self.scenario["requests"]
        pending = deque(sorted(range(len(described)), key=lambda i: (described[i]["arrival_pass"], i)))
        passes: list[dict[str, Any]] = []
        in_flight: deque[PassPlan] = deque()
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
                self.order_queue()
                entry.setdefault("added", []).append(request.id)
            for row in described:
                if row.get("abort_pass") == number:
                    entry.setdefault("aborted", []).append(row["id"])
                    if row["id"] in self.alive:
                        self.remove(self.alive[row["id"]])
                        unflushed = True
            if not self.alive and not unflushed and not in_flight:
                if not pending:
                    break
                number = described[pending[0]]["arrival_pass"]
                continue
            if number >= self.scenario["max_passes"]:
                stalled = True
                break
            plan: PassPlan | None = None
            if self.alive or unflushed:
                plan = self.schedule(number)
                unflushed = False
                in_flight.append(plan)
                entry.update(_written(plan))
            free_scheduled = len(self.pool.free)
            goes_ahead = plan is not None and self.is_async and len(in_flight) == 1
            if not goes_ahead or not (plan and (plan.scheduled or self.alive)):
                done = in_flight.popleft()
                if self.is_async:
                    entry["done"] = done.number
                entry["out"], entry["fin"] = self.finish(done)
                unflushed = unflushed or bool(entry["fin"])
                entry["ev"] = self.log.written(self.pool.events) if self.scenario["kv_events"] else []
                self.pool.events = []
            entry = {key: value for key, value in entry.items() if value or key in ("p", "done")}
            entry["free"] = len(self.pool.free)
            if plan is not None and free_scheduled != entry["free"]:
                entry["free_sched"] = free_scheduled
            for key, queue in (("run", self.running), ("wait", self.waiting)):
                ids = [request.id for request in queue]
                if ids != queues[key]:
                    entry[key] = queues[key] = ids
            passes.append(entry)
            number += 1
            idle = 0 if "sched" in entry or "preempted" in entry or "fin" in entry else idle + 1
            if idle >= IDLE_PASSES and not in_flight:
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
        "spec": {request.id: drafts for request, drafts in plan.verified.items()},
    }
