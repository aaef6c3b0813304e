"""Plays a scenario of vllm_format.py to our vLLM engine and writes down what it decides, in the recorded format.

Every pass takes 1 ms, so pass p lasts from p to p + 1 ms. The scheduler is driven below the front end: nothing is
refused or clipped at submission. Requests arrive and are aborted at their pass boundaries, which cuts the run of
passes in flight where the engine says so; what is recorded inside a run comes from the observer's walk through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.planned_content import output_ids, planned_workload
from golden.vllm_format import (
    IDLE_PASSES,
    OUTPUT_SEED,
    BlockHashes,
    EventLog,
    RawEvent,
    Recording,
    Scenario,
    token_ids,
    with_defaults,
)
from oracle.expand_spans import cached_copies, queued_hashes
from windtunnel.config.schema import VllmConfig
from windtunnel.config.speculation import SpeculationConfig
from windtunnel.engine.acceptance import build_acceptance
from windtunnel.engine.engine import INFINITE, Engine
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.speculative import SpeculativeScheduler
from windtunnel.engine.speculative_engine import SpeculativeEngine
from windtunnel.engine.speculative_request import SpeculativeRequest
from windtunnel.engine.vllm import VllmScheduler
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.workload.content import Content, Run, output_origin
from windtunnel.workload.session import Workload

RECORD_FIELDS = (
    "output_tokens",
    "hit_tokens",
    "reused_tokens",
    "preemptions",
    "first_admit_ms",
    "first_pass",
    "last_pass",
    "break_before",
    "break_after",
    "burst_extra",
    "queued_ms",
    "prefill_ms",
    "stalled_ms",
    "preempted_ms",
    "decode_ms",
    "marker_ms",
)
EARLY_MS = 0.5  # how long before its pass boundary a request arrives, while an engine is busy, if asked for


class UnitTiming:
    """Every pass takes 1 ms."""

    needs_physical_context = False

    def price_pass_ms(self, shape: PassShape) -> float:
        return 1.0

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return np.ones(passes)


def engine_config(scenario: Scenario, fast_forward: bool, behaviour: str = "0.33") -> VllmConfig:
    """The engine of a scenario with all its settings that the release has. Our pools do not count the null block.

    Not validated: recordings are of the scheduler below the front end, which would refuse some of these.
    """
    is_new = behaviour == "0.33"
    return VllmConfig.model_construct(
        num_gpu_blocks=scenario["num_gpu_blocks"] - 1,
        block_size=scenario["block_size"],
        max_num_seqs=scenario["max_num_seqs"],
        max_num_batched_tokens=scenario["max_num_batched_tokens"],
        max_model_len=scenario["max_model_len"],
        enable_prefix_caching=scenario["enable_prefix_caching"],
        enable_chunked_prefill=scenario["enable_chunked_prefill"],
        long_prefill_token_threshold=scenario["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=bool(
            is_new and scenario["long_prefill_token_threshold_adaptive"] and scenario["long_prefill_token_threshold"]
        ),
        watermark=float(scenario["watermark"]) if is_new else 0.0,
        scheduler_reserve_full_isl=scenario["scheduler_reserve_full_isl"] or behaviour == "0.11",
        scheduling_policy=scenario["policy"],
        async_scheduling=scenario["async_scheduling"],
        behaviour=behaviour,
        speculation=speculation(scenario, is_new),
        fast_forward=fast_forward,
    )


def speculation(scenario: Scenario, is_new: bool) -> SpeculationConfig | None:
    """Of a scenario."""
    drafts = scenario["num_spec_tokens"]
    if not drafts:
        return None
    ahead = not (is_new and scenario["spec_method"] != "ngram" and scenario["disable_lookahead_block_hashes"])
    return SpeculationConfig(
        method=scenario["spec_method"],
        num_speculative_tokens=drafts,
        accepted_tokens=[min(count, drafts) for count in scenario["spec_accept"]] or [drafts],
        lookahead_block_hashes=ahead,
    )


def engine_request(scenario: Scenario, number: int, workload: Workload | None = None) -> EngineRequest:
    """Request `number` of a scenario; its segments that quote outputs become runs of those outputs.

    `workload` has its content if requests state what they generate."""
    described = scenario["requests"][number]
    runs: list[Run] = []
    for seed, length, *start in described["prompt"]:
        origin = output_origin(seed - OUTPUT_SEED) if seed >= OUTPUT_SEED else seed
        runs.append((origin, sum(start), length))
    prompt_tokens = sum(run[2] for run in runs)
    output_tokens = max(1, min(described["output_len"], scenario["max_model_len"] - prompt_tokens))
    if workload is not None:
        content = workload.content(number, output_tokens)
    else:
        content = Content.of(runs, (output_origin(number), 0, output_tokens))
    arrival_ms = float(described["arrival_pass"])
    if scenario["policy"] == "priority":
        arrival_ms = 0.0  # the recorder told the scheduler that requests arrived in the order of the file
    kind = SpeculativeRequest if scenario["num_spec_tokens"] else EngineRequest
    request = kind(number, content, prompt_tokens, output_tokens, arrival_ms)
    request.priority = -described.get("priority", 0)
    return request


def build_scheduler(config: VllmConfig, passes: PassColumns, events: bool) -> VllmScheduler:
    """The scheduler of a scenario, as vLLM's is: it waits for ever for lookahead blocks that there are not."""
    if config.speculation is None:
        return VllmScheduler(config, passes, events)
    scheduler = SpeculativeScheduler(config, passes, build_acceptance(config.speculation, 0), events)
    scheduler.waives_lookahead = False
    return scheduler


class ContentHashes:
    """Block hashes of the requests of a scenario, found by their content object."""

    def __init__(self, scenario: Scenario, requests: Sequence[EngineRequest], beyond: int) -> None:
        self.hasher = BlockHashes(scenario["block_size"], beyond)
        self._chains: dict[int, list[int]] = {}
        for request in requests:
            tokens = token_ids(scenario["requests"][request.number]["prompt"])
            tokens += output_ids(scenario["requests"][request.number], request.number, OUTPUT_SEED)
            chain = self._chains[id(request.table.content)] = []
            self.hasher.extend(chain, tokens)

    def chain(self, content: Content, blocks: int) -> list[int]:
        """Hashes of all full blocks of a content, which must be `blocks` at least."""
        chain = self._chains[id(content)]
        assert len(chain) >= blocks
        return chain

    def raw(self, events: list[CacheEvent]) -> list[RawEvent]:
        """KV events with block hashes in the place of contents."""
        raw: list[RawEvent] = []
        for event in events:
            chain = self.chain(event.content, event.end)
            blocks = chain[event.first : event.end]
            if event.stored:
                raw.append(("S", chain[event.first - 1] if event.first else None, blocks))
            else:
                raw.append(("R", None, blocks[::-1]))
        return raw


class PassRecorder:
    """The observer that writes down each pass.

    Attributes:
        passes: recorded so far, by pass number.
        events: the KV events of all of them.
        added, aborted: requests by pass number, and arrival_passes, by request, which the owner writes down.
    """

    def __init__(self, scheduler: VllmScheduler, names: list[str], hashes: ContentHashes) -> None:
        self.scheduler = scheduler
        self.names = names
        self.hashes = hashes
        self.log = EventLog()
        self.passes: dict[int, dict[str, Any]] = {}
        self.events: list[RawEvent] = []
        self.events_of: dict[int, list[RawEvent]] = {}
        self.arrival_passes: list[int] = []
        self.added: dict[int, list[int]] = {}
        self.aborted: dict[int, list[int]] = {}
        self._pass: dict[str, Any] = {}
        self._free_scheduled = 0
        self._queues: dict[str, list[str]] = {"run": [], "wait": []}

    def begin(self, number: int) -> None:
        """Pass `number` is scheduled next."""
        self._pass = {"p": number}

    def on_admission(self, request: EngineRequest, hit_tokens: int) -> None:
        row = [self.names[request.number], hit_tokens]
        self._pass.setdefault("resumed" if request.preemptions else "new", []).append(row)

    def on_preemption(self, victim: EngineRequest, requester: EngineRequest) -> None:
        self._pass.setdefault("preempted", []).append([self.names[victim.number], self.names[requester.number]])

    def on_refusal(self, head: EngineRequest, hit_tokens: int, free_blocks: int) -> None:
        if not self._arrived(head):
            return
        assert "blocked" not in self._pass
        self._pass["blocked"] = [self.names[head.number], hit_tokens, free_blocks]

    def on_scheduled(self, rows: list[tuple[EngineRequest, int, int]]) -> None:
        if rows:
            self._pass["sched"] = {self.names[request.number]: [start, tokens] for request, start, tokens in rows}
        self._free_scheduled = self.scheduler.pool.free_blocks
        if isinstance(self.scheduler, SpeculativeScheduler) and self.scheduler.verified:
            drafts = self.scheduler.verified
            self._pass["spec"] = {self.names[request]: count for request, count in drafts.items()}

    def on_concluded(self) -> None:
        number: int = self._pass["p"]
        pool = self.scheduler.pool
        for key, requests in (("added", self.added), ("aborted", self.aborted)):
            if number in requests:
                self._pass[key] = [self.names[i] for i in requests[number]]
        raw = self.hashes.raw(pool.events)
        pool.events.clear()
        if raw:
            self._pass["ev"] = self.log.written(raw)
            self.events += raw
            self.events_of[number] = raw
        if pool.free_blocks != self._free_scheduled:
            self._pass["free_sched"] = self._free_scheduled
        self._pass["free"] = pool.free_blocks
        waiting = [request for request in self.scheduler.waiting if self._arrived(request)]
        for key, queue in (("run", self.scheduler.running.values()), ("wait", waiting)):
            names = [self.names[request.number] for request in queue]
            if names != self._queues[key]:
                self._pass[key] = self._queues[key] = names
        self.passes[number] = self._pass
        self.begin(number + 1)

    def _arrived(self, request: EngineRequest) -> bool:
        """Whether a request was there already: a run is walked when it is over, and some arrived during it."""
        number: int = self._pass["p"]
        return self.arrival_passes[request.number] <= number


class Playback:
    """One scenario on one engine, played to its end.

    Attributes:
        recording: what was decided, in the recorded format without `alloc` and with the number of cached blocks
            in the place of `cached`; its passes are empty if nobody observed.
        record: what reports are made from: ends of passes, and the columns of each request.
        passes: the engine's pass columns.
        events: all KV events in order, block by block, if they were kept.
        labels: of block hashes, if they were observed.
        queued, copies: the cached blocks at the end, see oracle/expand_spans.py.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        fast_forward: bool = True,
        observed: bool = True,
        events: bool = True,
        arrive_early: bool = False,
        behaviour: str = "0.33",
    ) -> None:
        """Without `observed` nobody watches; `arrive_early` lets requests arrive in the middle of the pass before
        theirs when the engine is busy.

        Raises:
            ValueError: the scenario has an unknown key.
        """
        self.scenario = with_defaults(scenario)
        described = self.scenario["requests"]
        self.passes = PassColumns()
        self.behaviour = behaviour
        config = engine_config(self.scenario, fast_forward, behaviour)
        self.scheduler = build_scheduler(config, self.passes, events and self.scenario["kv_events"])
        kind = SpeculativeEngine if isinstance(self.scheduler, SpeculativeScheduler) else Engine
        self.engine = kind(self.scheduler, UnitTiming(), self.passes)
        workload = planned_workload(described, OUTPUT_SEED)
        if workload is not None and workload.planned is not None:
            self.scheduler.share_outputs()
        self.requests = [engine_request(self.scenario, number, workload) for number in range(len(described))]
        self.names: list[str] = [row["id"] for row in described]
        hashes = ContentHashes(self.scenario, self.requests, getattr(self.scheduler, "hash_ahead", 0))
        self._recorder = PassRecorder(self.scheduler, self.names, hashes) if observed else None
        if self._recorder is not None:
            self._recorder.arrival_passes = [row["arrival_pass"] for row in described]
        self.scheduler.observer = self._recorder
        self.scheduler.goes_on = False
        self._early_ms = EARLY_MS if arrive_early else 0.0
        self._arrivals: dict[int, list[int]] = {}
        self._aborts: dict[int, list[int]] = {}
        for number, row in enumerate(described):
            self._arrivals.setdefault(row["arrival_pass"], []).append(number)
            if "abort_pass" in row:
                self._aborts.setdefault(row["abort_pass"], []).append(number)
        self._ahead = sorted({*self._arrivals, *self._aborts}, reverse=True)  # pass numbers still to come
        self._alive: set[int] = set()
        self._gone: set[int] = set()  # whose client gave up
        self._unflushed = False  # a request has ended, and no pass was scheduled since
        self._in_flight: list[int] = []  # passes whose output is not processed, if that comes a pass later
        self._done: dict[int, int] = {}  # by pass, the one whose output it processed
        self._completed: dict[int, list[int]] = {}  # by the pass that computed their last tokens
        stalled, num_passes = self._play_ahead() if self.scenario["async_scheduling"] else self._play()
        ends = self.passes.end_ms
        self.engine.halt(ends[-1] if ends else 0.0)
        self.queued = queued_hashes(self.scheduler.pool, hashes.chain)
        self.copies = cached_copies(self.scheduler.pool, hashes.chain)
        raw = self._recorder.events if self._recorder is not None else hashes.raw(self.scheduler.pool.events)
        self.events = [(kind, block_hash) for kind, _, blocks in raw for block_hash in blocks]
        self.labels = self._recorder.log.labels if self._recorder is not None else {}
        self.record = {
            "pass ends": (ends.tolist(), self.passes.idle_pass.tolist(), self.passes.idle_until_ms.tolist()),
            **{name: [repr(getattr(request, name)) for request in self.requests] for name in RECORD_FIELDS},
        }
        self.recording: Recording = {
            "stalled": stalled,
            "num_passes": num_passes,
            "passes": self._recorded_passes(),
            "final": {
                "free": self.scheduler.pool.free_blocks,
                "cached": sum(len(held) for held in self.copies.values()),
                "distinct_blocks_stored": len(self.labels),
            },
        }

    def _play(self) -> tuple[bool, int]:
        """Play as the recorder of the real scheduler did; returns whether it gave up, and after how many passes."""
        number = idle = num_passes = 0
        while True:
            while self._ahead and self._ahead[-1] <= number:
                at = self._ahead.pop()
                self._arrive(at, float(number))
                if at == number:
                    self._abort(at)
            next_arrival = next((at for at in reversed(self._ahead) if at in self._arrivals), None)
            if not self._alive and not self._unflushed:
                if next_arrival is None:
                    return False, num_passes
                number = next_arrival
                continue
            if number >= self.scenario["max_passes"]:
                return True, num_passes
            self._unflushed = False
            if self._recorder is not None:
                self._recorder.begin(number)
            if self.engine.begin(float(number)) < INFINITE:
                end = self._fly(number)
                num_passes += end - number
                number = end
                idle = 0
                continue
            if self._recorder is not None:
                self._recorder.on_concluded()
            num_passes += 1
            number += 1
            idle += 1
            if idle >= IDLE_PASSES:
                if next_arrival is None:
                    return True, num_passes
                number = max(number, next_arrival)
                idle = 0

    def _play_ahead(self) -> tuple[bool, int]:
        """The same when a pass is scheduled before the output of the one before it is processed."""
        number = idle = num_passes = 0
        while True:
            while self._ahead and self._ahead[-1] <= number:
                at = self._ahead.pop()
                self._arrive(at, float(number))
                if at == number:
                    self._abort(at)
            next_arrival = next((at for at in reversed(self._ahead) if at in self._arrivals), None)
            if not self._alive and not self._unflushed and not self._in_flight:
                if next_arrival is None:
                    return False, num_passes
                number = next_arrival
                continue
            if number >= self.scenario["max_passes"]:
                return True, num_passes
            if self._recorder is not None:
                self._recorder.begin(number)
            is_asked = bool(self._alive) or self._unflushed
            self._unflushed = False
            end = number + 1
            is_busy = is_asked and self.engine.begin(float(number)) < INFINITE
            if is_busy:
                end = self._fly(number)
            elif self._recorder is not None:
                if not is_asked:
                    self._recorder.on_scheduled([])
                self._recorder.on_concluded()
            for at in range(number, end):
                finished = self._process(at, is_asked, is_busy)
                idle = 0 if is_busy or finished else idle + 1
            num_passes += end - number
            number = end
            if idle >= IDLE_PASSES and not self._in_flight:
                if next_arrival is None:
                    return True, num_passes
                number = max(number, next_arrival)
                idle = 0

    def _process(self, number: int, is_asked: bool, is_busy: bool) -> bool:
        """The output of the pass before `number` is processed after that is scheduled; whether any request ended."""
        if is_asked:
            self._in_flight.append(number)
            if len(self._in_flight) == 1 and (is_busy or self._alive):
                return False
        self._done[number] = self._in_flight.pop(0)
        ended = self._completed.pop(self._done[number], [])
        self._alive.difference_update(ended)
        self._unflushed = self._unflushed or bool(ended)
        if ended and self._recorder is not None:
            self._recorder.passes[number]["fin"] = [[self.names[request], "length"] for request in ended]
        return bool(ended)

    def _fly(self, number: int) -> int:
        """What began at pass `number` is in flight; returns the pass boundary at which it ends."""
        engine = self.engine
        if engine.end_ms > self.scenario["max_passes"]:
            engine.cut(float(self.scenario["max_passes"]))
        moves = self.scenario["long_prefill_token_threshold_adaptive"] or self.scenario["policy"] == "priority"
        if self._recorder is not None and self._ahead and moves:
            # a run is observed when it is over: arrivals during it would have changed the chunk its head asks for, or
            # its head
            engine.cut(float(self._ahead[-1]))
        while self._ahead and self._ahead[-1] - self._early_ms < engine.end_ms:
            at = self._ahead.pop()
            self._arrive(at, at - self._early_ms)
            if self.scenario["async_scheduling"]:
                self._cancel_ahead(at)
            self._abort(at)
        end = int(engine.end_ms)
        if self.scenario["async_scheduling"] and self._ahead and self._ahead[-1] == end:
            self._cancel_ahead(end)
        free_blocks = [engine.free_blocks(at + 0.5) for at in range(number, end)]
        completed: list[list[str]] = []
        for request in engine.end():
            is_done = request.output_tokens == request.max_output_tokens
            if self.scenario["async_scheduling"] and is_done and request.number not in self._gone:
                self._completed.setdefault(end - 1, []).append(request.number)
                continue
            self._alive.discard(request.number)
            self._unflushed = True
            if is_done and not self.scenario["async_scheduling"]:
                completed.append([self.names[request.number], "length"])
        if self._recorder is not None:
            for at, free in zip(range(number, end), free_blocks, strict=True):
                entry = self._recorder.passes[at]
                scheduled = (
                    entry["free"] if self.scenario["async_scheduling"] else entry.get("free_sched", entry["free"])
                )
                assert free == scheduled, f"pass {at} leaves {scheduled} blocks free, but while it runs it is {free}"
            if completed:
                self._recorder.passes[end - 1]["fin"] = completed
        return end

    def _arrive(self, at: int, now_ms: float) -> None:
        for number in self._arrivals.get(at, ()):
            self.engine.submit(self.requests[number], now_ms)
            self._alive.add(number)
            if self._recorder is not None:
                self._recorder.added.setdefault(at, []).append(number)

    def _abort(self, at: int) -> None:
        for number in self._aborts.get(at, ()):
            if number in self._alive and number not in self._gone and not self._has_ended(number):
                self._cancel(self.requests[number], at)
            if self._recorder is not None:
                self._recorder.aborted.setdefault(at, []).append(number)

    def _cancel(self, request: EngineRequest, at: int) -> None:
        """A client gives up before pass `at` is scheduled."""
        self._gone.add(request.number)
        if self.engine.end_ms < INFINITE:
            self.engine.cancel(request, float(at))
            return
        request.cancelled_ms = float(at)
        self.scheduler.abort(request, float(at))
        self._alive.discard(request.number)
        self._unflushed = True

    def _has_ended(self, number: int) -> bool:
        """Whether the last token of a request is computed, and perhaps not processed yet."""
        return any(number in ended for ended in self._completed.values())

    def _cancel_ahead(self, at: int) -> None:
        """Clients give up before pass `at` is scheduled: ahead of its start, while the pass before it runs."""
        for number in self._aborts.get(at, ()):
            is_there = number in self._alive and not self._has_ended(number)
            if is_there and number not in self._gone and self.scenario["requests"][number]["arrival_pass"] < at:
                self._gone.add(number)
                self.engine.cancel(self.requests[number], at - EARLY_MS)

    def _recorded_passes(self) -> list[dict[str, Any]]:
        """The passes with the tokens that each emitted, read off the columns that reports are made from."""
        if self._recorder is None:
            return []
        passes = self._recorder.passes
        emitted: dict[int, set[str]] = {}
        extra: dict[tuple[int, str], int] = {}
        for request in self.requests:
            if request.first_pass < 0:
                continue
            emitting = set(range(request.first_pass, request.last_pass + 1))
            for before, after in zip(request.break_before, request.break_after, strict=True):
                emitting -= set(range(before + 1, after))
            for i, more in zip(sorted(emitting), request.burst_extra, strict=bool(request.burst_extra)):
                extra[round(self.passes.end_ms[i]) - 1, self.names[request.number]] = more
            for i in emitting:
                emitted.setdefault(round(self.passes.end_ms[i]) - 1, set()).add(self.names[request.number])
        processed_in = {done: number for number, done in self._done.items()}
        for number, names in emitted.items():
            batch = list(passes[number].get("sched", ()))
            out = {
                name: 1 + extra.get((number, name), 0) for name in batch + sorted(names - set(batch)) if name in names
            }
            if self.scenario["async_scheduling"]:
                if number not in processed_in:
                    continue
                number = processed_in[number]
            passes[number]["out"] = out
        if self.scenario["async_scheduling"]:
            self._process_events(passes)
        return list(passes.values())

    def _process_events(self, passes: dict[int, dict[str, Any]]) -> None:
        """KV events are published when output is processed: those of a pass that processes none, by a later one."""
        assert self._recorder is not None
        kept: list[RawEvent] = []
        log = EventLog()
        for number, entry in passes.items():
            entry.pop("ev", None)
            kept += self._recorder.events_of.get(number, ())
            if number in self._done:
                entry["done"] = self._done[number]
                if kept:
                    entry["ev"] = log.written(kept)
                    kept = []
