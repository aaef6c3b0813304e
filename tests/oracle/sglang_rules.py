"""SGLang's scheduler turn by turn and token by token: what the engine must be equal to.

Plays a scenario of golden/sglang_format.py and returns a recording in the same format. Both loops, chunked and mixed
prefill, retraction, fcfs, lpm, lof and static priorities, four eviction policies, as SGLang 0.5.23 decides. Slow and
obvious on purpose: every turn looks at every request, and it shares no code with the engine. It reproduces the recorded
runs. Where SGLang would crash (the next chunk of a prompt finds no room) it raises `OutOfMemory`.
"""

from __future__ import annotations

from typing import Any

from golden.planned_content import output_ids
from golden.sglang_format import IDLE_TURNS, OUTPUT_SEED, EventLog, Recording, Scenario, with_defaults
from golden.vllm_format import token_ids
from oracle.radix_by_token import RadixByToken, TreeNode

CLIP = 4096  # output tokens of a request that admission counts at most
RETRACT_STEPS = 20
REFRESH_TURNS = 32
LONGEST_SORTED_QUEUE = 128
SHARED_TOKENS = 32


class OutOfMemory(Exception):  # noqa: N818
    """SGLang would have crashed."""


class RuleRequest:
    """A request: its tokens so far, and what it holds of the pool."""

    def __init__(self, number: int, described: dict[str, Any], ignore_eos: bool) -> None:
        self.id: str = described["id"]
        self.prompt = token_ids(described["prompt"])
        self.all_output = output_ids(described, number, OUTPUT_SEED)
        self.out: list[int] = []
        self.max_new: int = described["output_len"]
        self.ignore_eos: bool = described.get("ignore_eos", ignore_eos)
        self.priority: int = described.get("priority", 0)
        self.entry = 0
        self.done = False
        self.row = False
        self.matched = 0
        self.reset()

    def reset(self) -> None:
        """As it is without any KV."""
        self.prefix = self.end = self.held = self.inserted = self.committed = 0
        self.unfinished_chunks = 0  # in flight or to be processed
        self.node: TreeNode | None = None
        self.lock: TreeNode | None = None
        self.retracted = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.out


class RuleBatch:
    """Requests of one pass, or the running batch."""

    def __init__(self, requests: list[RuleRequest], mode: str = "") -> None:
        self.requests = list(requests)
        self.mode = mode
        self.full = False
        self.chunked: RuleRequest | None = None
        self.decoding: list[RuleRequest] = []
        self.shape: dict[str, list[int]] = {}


class Adder:
    """What is left for one prefill batch."""

    def __init__(self, rules: SglangRules, mixed: int) -> None:
        self.tree = rules.tree
        self.page = rules.page
        self.total = mixed + sum(map(rules.reserve_of, rules.running.requests))
        self.current = mixed
        self.input = rules.scenario["max_prefill_tokens"] - mixed
        self.chunk = None if rules.chunk is None else rules.chunk - mixed

    def left_total(self) -> float:
        return self.tree.free + self.tree.evictable - self.total

    def left_now(self) -> float:
        return self.tree.free + self.tree.evictable - self.current

    def charge(self, tokens: int, max_new: int) -> None:
        tokens = -(-tokens // self.page) * self.page
        self.total += tokens + self.page + max_new
        self.current += tokens + self.page
        self.input -= tokens
        if self.chunk is not None:
            self.chunk -= tokens

    def state(self) -> str:
        if self.left_total() <= 0 or self.left_now() <= 0:
            return "no KV"
        if self.input <= 0 or (self.chunk is not None and self.chunk <= 0):
            return "no tokens"
        return "go on"


class SglangRules:
    """An engine that plays one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario = with_defaults(scenario)
        self.page: int = scenario["page_size"]
        self.overlap: bool = scenario["overlap"]
        self.caching = not scenario["disable_radix_cache"]
        self.tree = RadixByToken(scenario["max_total_tokens"], self.page, scenario["eviction_policy"], self.caching)
        self.chunk: int | None = scenario["chunked_prefill_size"] if scenario["chunked_prefill_size"] > 0 else None
        self.mixed = self.chunk is not None and scenario["enable_mixed_chunk"]
        self.first_ratio = min(0.7 * scenario["schedule_conservativeness"], 1.0)
        self.lowest_ratio = min(self.first_ratio * 0.14, 1.0)
        self.ratio = self.first_ratio
        self.policy = scenario["schedule_policy"]
        if not self.caching and self.policy == "lpm":
            self.policy = "fcfs"
        self.waiting: list[RuleRequest] = []
        self.running = RuleBatch([])
        self.last: RuleBatch | None = None
        self.chunked: RuleRequest | None = None
        self.results: list[tuple[RuleBatch, int]] = []  # of batches that were launched
        self.rows: int = scenario["max_running_requests"]
        self.refreshes = 0
        self.entries = 0
        self.live: dict[str, RuleRequest] = {}
        self.retracted: list[str] = []
        self.aborted: list[str] = []
        self.log = EventLog()

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    # --- KV

    def grow(self, request: RuleRequest, length: int) -> None:
        self.tree.free -= self.pages(length) - self.pages(request.committed)
        if self.tree.free < 0:
            raise OutOfMemory(request.id)
        request.committed = length

    def checkpoint(self, request: RuleRequest, upto: int) -> None:
        """Give the full pages of the first `upto` tokens to the tree, and hold them there."""
        tokens = request.tokens[:upto]
        tokens = tokens[: len(tokens) // self.page * self.page]
        if not self.caching or not tokens:
            return
        node, duplicate = self.tree.insert(tokens, request.held, request.inserted)
        self.tree.free += duplicate
        request.inserted = max(request.inserted, len(tokens))
        prompt = request.prompt[: len(request.prompt) // self.page * self.page]
        if 0 < len(prompt) < len(tokens):  # keeps the border of prompt and output a border of nodes
            self.tree.insert(prompt, len(prompt), len(prompt))
        if request.lock is not None:
            self.tree.lock(request.lock, -1)
        self.tree.lock(node, 1)
        request.lock = request.node = node
        request.held = len(tokens)

    def release(self, request: RuleRequest, keep: bool) -> None:
        if keep:
            self.checkpoint(request, request.committed)
        self.tree.free += self.pages(request.committed) - self.pages(request.held)
        if request.lock is not None:
            self.tree.lock(request.lock, -1)
        request.lock = None
        request.row = False
        self.rows += 1

    # --- the queue

    def match(self, request: RuleRequest, limit: int | None = None) -> None:
        tokens = request.tokens
        request.prefix, request.node = self.tree.match(tokens if limit is None else tokens[:limit])
        request.matched = min(request.prefix, len(tokens) - 1)

    def enqueue(self, request: RuleRequest) -> None:
        self.entries += 1
        request.entry = self.entries
        self.waiting.append(request)

    def sort(self) -> None:
        if self.policy == "lpm" and len(self.waiting) <= LONGEST_SORTED_QUEUE:
            queued = RadixByToken(0, 1)
            put_off: set[str] = set()
            for request in self.waiting:
                self.match(request)
                if request.prefix <= SHARED_TOKENS:
                    shared, _ = queued.match(request.tokens)
                    if shared >= SHARED_TOKENS:
                        put_off.add(request.id)
                    else:
                        queued.insert(request.tokens, 0, 0)
            self.waiting.sort(key=lambda r: float("inf") if r.id in put_off else -r.matched)
            return
        if self.policy == "lof":
            self.waiting.sort(key=lambda r: -r.max_new)
        if self.scenario["enable_priority_scheduling"]:
            self.waiting.sort(key=lambda r: (-r.priority, r.entry))
        if self.waiting and self.scenario["eviction_policy"] == "lru" and self.caching:
            if self.refreshes % REFRESH_TURNS == 0:
                for request in reversed(self.waiting[:LONGEST_SORTED_QUEUE]):
                    self.tree.match(request.tokens)
            self.refreshes += 1

    # --- prompts

    def reserve_of(self, request: RuleRequest) -> float:
        left = min(request.max_new - len(request.out), CLIP)
        return left * (1.0 if request.ignore_eos else self.ratio)

    def new_prefill(self) -> RuleBatch | None:
        running = self.running
        if not running.requests:
            running.full = False
        if (running.full or not self.waiting) and self.chunked is None:
            return None
        places = self.scenario["max_running_requests"] - len(running.requests)
        if min(places, self.rows) <= 0 and self.chunked is None:
            running.full = True
            return None
        self.sort()
        adder = Adder(self, len(running.requests) if self.mixed else 0)
        chosen: list[RuleRequest] = []
        if self.chunked is not None:
            self._go_on(self.chunked, adder, chosen)
        self._scan(adder, chosen, places)
        if not chosen:
            return None
        self.waiting = [request for request in self.waiting if request not in chosen]
        if self.chunked is not None:
            self.chunked.unfinished_chunks += 1
        batch = RuleBatch(chosen, "EXTEND")
        batch.chunked = self.chunked
        more = 0 if self.page == 1 else len(chosen) * self.page
        self.tree.evict_until(sum(r.end - r.prefix for r in chosen) + more)
        for request in chosen:
            if not request.row:
                request.row = True
                self.rows -= 1
                request.committed = request.prefix
            batch.shape[request.id] = [request.prefix, request.end - request.prefix]
            self.grow(request, request.end)
            request.retracted = False
        if self.mixed and running.requests:
            self._mix(batch)
        return batch

    def _go_on(self, request: RuleRequest, adder: Adder, chosen: list[RuleRequest]) -> None:
        assert adder.chunk is not None
        room = min(adder.chunk, int(adder.left_total()))
        if room <= 0:
            room = adder.chunk
        want = len(request.tokens) - request.prefix
        tokens = min(want, room)
        request.end = request.prefix + tokens
        chosen.append(request)
        adder.charge(tokens, 0 if want > room else min(request.max_new, CLIP))
        self.chunked = request if want > room else None

    def _scan(self, adder: Adder, chosen: list[RuleRequest], places: int) -> None:
        running = self.running
        completions: list[tuple[float, int]] | None = None
        for request in list(self.waiting):
            if adder.state() == "no tokens":
                return
            held = sum(r.row for r in chosen)
            if len(chosen) >= min(places, self.rows + held):
                running.full = True
            if running.full:
                return
            self.match(request, len(request.tokens) - 1)
            request.held = request.prefix
            most = self.scenario["prefill_max_requests"]
            if most is not None and len(chosen) >= most:
                return
            if request.ignore_eos and not self.caching:
                verdict, completions = self._add_uncached(request, adder, chosen, completions)
            else:
                verdict = self._add(request, adder, chosen)
            if verdict != "go on":
                if verdict == "no KV":
                    running.full = bool(chosen) or bool(running.requests)
                return

    def _add(self, request: RuleRequest, adder: Adder, chosen: list[RuleRequest]) -> str:
        assert request.node is not None
        want = len(request.tokens) - request.prefix
        total = want + min(max(request.max_new - len(request.out), 0), CLIP) + self.page
        padded = self.pages(want)
        self.tree.lock(request.node, 1)
        try:
            if total >= adder.left_total():
                return "no KV"
            if adder.chunk is None and chosen and padded >= adder.input:
                return "no tokens"
            tokens, output = want, min(request.max_new, CLIP)
            if adder.chunk is not None and padded > adder.chunk:
                tokens = adder.chunk // self.page * self.page
                tokens = (request.prefix + tokens) // self.page * self.page - request.prefix
                if tokens <= 0:
                    return "no tokens"
                output = 0
                self.chunked = request
            request.end = request.prefix + tokens
            self.tree.lock(request.node, 1)
            request.lock = request.node
            chosen.append(request)
            adder.charge(tokens, output)
            return adder.state()
        finally:
            self.tree.lock(request.node, -1)

    def _demand(self, request: RuleRequest) -> tuple[float, int] | None:
        left = request.max_new * (1.0 if request.ignore_eos else self.ratio) - len(request.out)
        return (left, len(request.tokens)) if left > 0 else None

    def _add_uncached(
        self,
        request: RuleRequest,
        adder: Adder,
        chosen: list[RuleRequest],
        completions: list[tuple[float, int]] | None,
    ) -> tuple[str, list[tuple[float, int]] | None]:
        want = len(request.tokens) - request.prefix
        needed = self.pages(want) + self.page
        if needed > min(adder.left_now(), adder.left_total()):
            return "no KV", completions
        own = self._demand(request)
        if completions is None:
            found = [self._demand(r) for r in [request, *self.running.requests, *chosen]]
            completions = sorted((demand for demand in found if demand), key=lambda demand: demand[0])
        elif own:
            place = 0
            for place in range(len(completions)):
                if own[0] <= completions[place][0]:
                    break
            completions.insert(place, own)
        free, freed = adder.left_now() - needed, 0
        for place, (left, held) in enumerate(completions):
            going = len(completions) - place
            if free + freed - left * going <= going:
                return "no KV", completions
            freed += held
        tokens = want
        output = min(request.max_new, CLIP)
        if adder.chunk is not None and want > adder.chunk:
            if adder.chunk <= 0:
                return "no tokens", completions
            tokens, output = adder.chunk, 0
            self.chunked = request
        request.end = request.prefix + tokens
        chosen.append(request)
        adder.charge(tokens, output)
        return adder.state(), completions

    def _mix(self, batch: RuleBatch) -> None:
        running = self.running
        ending = self._ending(running)
        running.requests = [r for r in running.requests if not r.done and r not in ending]
        if ending:
            running.full = False
        if running.requests and self._fits_decodes(running.requests):
            self._allocate_decodes(running.requests)
            batch.mode = "MIXED"
            batch.decoding = list(running.requests)
            batch.requests = batch.requests + running.requests
            for request in running.requests:
                request.end = request.committed
            self.running = RuleBatch([])
            self.running.full = running.full

    # --- decodes

    def _ending(self, batch: RuleBatch) -> list[RuleRequest]:
        """With overlap, members whose last token is in flight."""
        if not self.overlap or not self.results:
            return []
        in_flight = set(self.results[0][0].requests)
        return [r for r in batch.requests if r in in_flight and len(r.out) + 1 >= r.max_new]

    def _fits_decodes(self, requests: list[RuleRequest]) -> bool:
        needed = sum(r.committed % self.page == 0 for r in requests) * self.page
        self.tree.evict_until(needed)
        return self.tree.free >= needed

    def _allocate_decodes(self, requests: list[RuleRequest]) -> None:
        self.tree.evict_until(len(requests) * self.page)
        for request in requests:
            self.grow(request, request.committed + 1)

    def decode(self) -> RuleBatch | None:
        running = self.running
        before = len(running.requests)
        ending = self._ending(running)
        running.requests = [r for r in running.requests if not r.done and r not in ending]
        if not running.requests:
            running.full = False
            return None
        if self._fits_decodes(running.requests):
            self.ratio = max(self.ratio - (self.first_ratio - self.lowest_ratio) / 600, self.lowest_ratio)
        elif ending:
            running.full = False
            return None
        else:
            self._retract()
        if len(running.requests) < before:
            running.full = False
        if not running.requests:
            return None
        self._allocate_decodes(running.requests)
        return RuleBatch(running.requests, "DECODE")

    def _retract(self) -> None:
        staying = sorted(self.running.requests, key=lambda r: (len(r.out), -len(r.prompt)), reverse=True)
        victims: list[RuleRequest] = []
        while not victims or not self._fits_decodes(staying):
            if len(staying) == 1:
                break
            victim = staying.pop()
            self.release(victim, keep=False)
            self.tree.evict_until(len(staying) * RETRACT_STEPS)
            victim.reset()
            victim.retracted = True
            victims.append(victim)
        if len(staying) == 1 and not self._fits_decodes(staying):
            alone = staying.pop()
            self.release(alone, keep=False)
            self.aborted.append(alone.id)
        self.running.requests = staying
        generated = sum(len(r.out) for r in staying) + RETRACT_STEPS * len(staying)
        self.ratio = min(1.0, generated / (sum(r.max_new for r in staying) + 1))
        for victim in victims:
            self.enqueue(victim)
            self.retracted.append(victim.id)

    # --- one turn

    def next_batch(self) -> RuleBatch | None:
        self.retracted, self.aborted = [], []
        left_out = set()
        if self.chunked is not None:
            left_out.add(self.chunked)
            if self.chunked.end > self.chunked.prefix:
                self.checkpoint(self.chunked, self.chunked.end)
                self.chunked.prefix = self.chunked.end
        last, running = self.last, self.running
        if last is not None and last.mode != "DECODE":
            if last.chunked is not None:
                left_out.add(last.chunked)
            joining = [r for r in last.requests if not r.done and r not in left_out]
            if len(joining) < len(last.requests):
                running.full = False
            if joining and not running.requests:
                self.running = running = RuleBatch(joining)
            else:
                running.requests = running.requests + joining
        staying = [r for r in running.requests if not r.done]
        if len(staying) < len(running.requests):
            running.full = False
        running.requests = staying
        batch = self.new_prefill()
        if batch is None and self.running.requests:
            batch = self.decode()
        return batch

    def process(self, batch: RuleBatch, turn: dict[str, Any]) -> None:
        emitting: list[str] = []
        ended: list[str] = []
        for request in batch.requests:
            decodes = batch.mode == "DECODE" or request in batch.decoding
            if request.retracted or (request.done and not request.unfinished_chunks):
                continue
            if not decodes and request.unfinished_chunks:
                request.unfinished_chunks -= 1
                continue
            request.out.append(request.all_output[len(request.out)])
            emitting.append(request.id)
            if len(request.out) >= request.max_new:
                request.done = True
                ended.append(request.id)
                self.release(request, keep=True)
                self.live.pop(request.id, None)
            elif not decodes:
                self.checkpoint(request, request.end)
                request.prefix = request.end
        if emitting:
            turn["out"] = emitting
        if ended:
            turn["fin"] = ended

    def play(self) -> Recording:
        """The recording of the scenario."""
        described = self.scenario["requests"]
        order = sorted(range(len(described)), key=lambda i: (described[i]["arrival_pass"], i))
        pending = [(described[i]["arrival_pass"], i) for i in order]
        turns: list[dict[str, Any]] = []
        number = idle = 0
        stalled = False
        queues: dict[str, list[str]] = {"run": [], "wait": []}
        while True:
            added = []
            while pending and pending[0][0] <= number:
                _, i = pending.pop(0)
                request = RuleRequest(i, described[i], self.scenario["ignore_eos"])
                self.live[request.id] = request
                self.enqueue(request)
                added.append(request.id)
            if not self.live and not self.results:
                if not pending:
                    break
                assert self.next_batch() is None  # a turn that is not recorded
                self.last, self.ratio = None, self.first_ratio
                number = pending[0][0]
                continue
            if number >= self.scenario["max_passes"]:
                stalled = True
                break
            turn = self._turn(number, added)
            for key, queue in (("run", self.running.requests), ("wait", self.waiting)):
                names = [r.id for r in queue]
                if names != queues[key]:
                    turn[key] = queues[key] = names
            turns.append(turn)
            number += 1
            idle = 0 if {"mode", "retracted", "fin", "aborted"} & turn.keys() else idle + 1
            if idle >= IDLE_TURNS:
                if not pending:
                    stalled = bool(self.live)
                    break
                number = max(number, pending[0][0])
                idle = 0
        final = {"avail": self.tree.free, "evictable": self.tree.evictable, "protected": self.tree.protected}
        return {"stalled": stalled, "num_passes": len(turns), "passes": turns, "final": final}

    def _turn(self, number: int, added: list[str]) -> dict[str, Any]:
        turn: dict[str, Any] = {"p": number}
        if added:
            turn["added"] = added
        batch = self.next_batch()
        if self.retracted:
            turn["retracted"] = self.retracted
        if self.aborted:
            turn["aborted"] = self.aborted
            for name in self.aborted:
                self.live.pop(name, None)
        free_scheduled = self.tree.free
        if batch is not None:
            turn["mode"] = batch.mode
            if batch.mode == "DECODE":
                turn["decode"] = [r.id for r in batch.requests]
            else:
                turn["batch"] = batch.shape
                if batch.decoding:
                    turn["decode"] = [r.id for r in batch.decoding]
                if self.chunked is not None:
                    turn["chunked"] = self.chunked.id
        if self.overlap:
            if batch is not None:
                self.results.append((batch, number))
            if self.last is not None:
                result, launched = self.results.pop(0)
                self.process(result, turn)
                turn["done"] = launched
        elif batch is not None:
            self.process(batch, turn)
        if batch is None and not self.results:
            self.ratio = self.first_ratio
        if batch is not None and self.tree.free != free_scheduled:
            turn["avail_sched"] = free_scheduled
        self.last = batch
        events = self.log.written(self.tree.events)
        self.tree.events = []
        if events:
            turn["ev"] = events
        turn["avail"], turn["evictable"], turn["protected"] = self.tree.free, self.tree.evictable, self.tree.protected
        if self.retracted:
            turn["ratio"] = round(self.ratio, 6)
        if self.running.full:
            turn["full"] = True
        return turn
