"""Plays a scenario of sglang_format.py to our SGLang engine and writes down what it decides, in the recorded format.

Every pass takes 1 ms. The scheduler is driven below the front end: nothing is refused or clipped at submission.
Requests arrive at the beginning of their turns, which cuts the run of turns in flight where the engine says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from golden.planned_content import planned_workload
from golden.sglang_format import IDLE_TURNS, OUTPUT_SEED, EventLog, RawEvent, Recording, Scenario, with_defaults
from golden.vllm_format import BlockHashes
from golden.vllm_playback import RECORD_FIELDS, UnitTiming
from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.engine import INFINITE, Engine
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.overlap import OverlapEngine
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_request import Batch, SglangRequest
from windtunnel.record.columns import PassColumns
from windtunnel.workload.content import Content, Run, output_origin
from windtunnel.workload.session import Workload


def engine_config(scenario: Scenario, fast_forward: bool) -> SglangConfig:
    """The engine of a scenario with all its settings. Mixed chunks without chunks are SGLang's way to ignore them."""
    return SglangConfig(
        num_gpu_blocks=scenario["max_total_tokens"] // scenario["page_size"],
        page_size=scenario["page_size"],
        max_running_requests=scenario["max_running_requests"],
        max_prefill_tokens=scenario["max_prefill_tokens"],
        chunked_prefill_size=scenario["chunked_prefill_size"],
        prefill_max_requests=scenario["prefill_max_requests"],
        schedule_policy=scenario["schedule_policy"],
        schedule_conservativeness=float(scenario["schedule_conservativeness"]),
        enable_prefix_caching=not scenario["disable_radix_cache"],
        enable_mixed_chunk=scenario["enable_mixed_chunk"] and scenario["chunked_prefill_size"] > 0,
        eviction_policy=scenario["eviction_policy"],
        overlap_schedule=scenario["overlap"],
        fast_forward=fast_forward,
    )


def engine_request(scenario: Scenario, number: int, workload: Workload | None = None) -> SglangRequest:
    """Request `number` of a scenario; its segments that quote outputs become runs of those outputs.

    `workload` has its content if requests state what they generate."""
    described = scenario["requests"][number]
    runs: list[Run] = []
    for seed, length, *start in described["prompt"]:
        origin = output_origin(seed - OUTPUT_SEED) if seed >= OUTPUT_SEED else seed
        runs.append((origin, sum(start), length))
    prompt_tokens = sum(run[2] for run in runs)
    output_tokens = described["output_len"]
    if workload is not None:
        content = workload.content(number, output_tokens)
    else:
        content = Content.of(runs, (output_origin(number), 0, output_tokens))
    return SglangRequest(number, content, prompt_tokens, output_tokens, 0.0)


class PageHashes:
    """Hashes of the pages of contents."""

    def __init__(self, page_size: int) -> None:
        self.hasher = BlockHashes(page_size)
        self._chains: dict[int, tuple[Content, list[int]]] = {}

    def chain(self, content: Content) -> list[int]:
        """Hashes of all full pages of a content."""
        if id(content) not in self._chains:
            tokens: list[int] = []
            for origin, start, length in content.runs():
                first = (origin if origin >= 0 else OUTPUT_SEED - 1 - origin) * 1_000_000 + start
                tokens.extend(range(first, first + length))
            chain: list[int] = []
            self.hasher.extend(chain, tokens)
            self._chains[id(content)] = (content, chain)  # keeps the content, and so its id
        return self._chains[id(content)][1]

    def raw(self, events: list[CacheEvent]) -> list[RawEvent]:
        """KV events with page hashes in the place of contents."""
        raw: list[RawEvent] = []
        for event in events:
            chain = self.chain(event.content)
            parent = chain[event.first - 1] if event.stored and event.first else None
            raw.append(("S" if event.stored else "R", parent, chain[event.first : event.end]))
        return raw


class TurnRecorder:
    """The observer that writes down each turn.

    Attributes:
        turns: recorded so far, in order; number: of the next one.
        raw_events: all KV events so far.
    """

    def __init__(self, scheduler: SglangScheduler, names: list[str], arrivals: list[int], hashes: PageHashes) -> None:
        self.scheduler = scheduler
        self.names = names
        self.arrivals = arrivals
        self.hashes = hashes
        self.log = EventLog()
        self.raw_events: list[RawEvent] = []
        self.turns: list[dict[str, Any]] = []
        self.number = 0
        self._turn: dict[str, Any] = {}
        self._decoding: dict[int, list[SglangRequest]] = {}  # by number of the pass
        self._launched: dict[int, int] = {}  # turn, by number of the pass
        self._free_scheduled: int | None = None
        self._queues: dict[str, list[str]] = {"run": [], "wait": []}
        self._mixed = False  # the running batch is in the batch that was launched last
        self._ended: set[int] = set()

    def on_retraction(self, victim: SglangRequest) -> None:
        self._turn.setdefault("retracted", []).append(self.names[victim.number])

    def on_failure(self, request: SglangRequest) -> None:
        self._turn.setdefault("aborted", []).append(self.names[request.number])

    def on_scheduled(self, batch: Batch | None) -> None:
        self._free_scheduled = None
        self._mixed = False
        if batch is None:
            return
        turn = self._turn
        decoding = self._running() if batch.decodes else []
        self._decoding[batch.number] = decoding
        self._launched[batch.number] = self.number
        turn["mode"] = "DECODE"
        if batch.chunks:
            turn["mode"] = "MIXED" if batch.decodes else "EXTEND"
            turn["batch"] = {self.names[c.request.number]: [c.start, c.end - c.start] for c in batch.chunks}
            self._mixed = batch.decodes
        if decoding:
            turn["decode"] = self._names_of(decoding)
        if batch.unfinished is not None:
            turn["chunked"] = self.names[batch.unfinished.number]
        self._free_scheduled = self.scheduler.pool.free_tokens

    def on_result(self, batch: Batch) -> None:
        emitting = [chunk.request for chunk in batch.chunks if chunk.request is not batch.unfinished]
        emitting += self._decoding[batch.number]
        emitting = [request for request in emitting if not (request.gone or request.retracted)]
        if emitting:
            self._turn["out"] = self._names_of(emitting)
        if self.scheduler.overlap:
            self._turn["done"] = self._launched[batch.number]

    def on_concluded(self) -> None:
        turn = {"p": self.number, **self._turn}
        scheduler = self.scheduler
        pool = scheduler.pool
        added = [self.names[i] for i, arrival in enumerate(self.arrivals) if arrival == self.number]
        if added:
            turn["added"] = added
        ended = [r for r in scheduler.finished if not r.failure and r.number not in self._ended]
        if ended:
            turn["fin"] = self._names_of(ended)
            self._ended.update(request.number for request in ended)
        raw = self.hashes.raw(pool.events)
        pool.events.clear()
        self.raw_events += raw
        events = self.log.written(raw)
        if events:
            turn["ev"] = events
        if self._free_scheduled is not None and self._free_scheduled != pool.free_tokens:
            turn["avail_sched"] = self._free_scheduled
        turn["avail"] = pool.free_tokens
        turn["evictable"] = pool.evictable_tokens
        turn["protected"] = pool.protected_tokens
        if "retracted" in turn:
            turn["ratio"] = round(scheduler.ratio.value(), 6)
        if scheduler.running.full:
            turn["full"] = True
        # inside a run the queue already holds what arrived during it
        waiting = [request for request in scheduler.waiting if self.arrivals[request.number] <= self.number]
        for key, queue in (("run", [] if self._mixed else self._running()), ("wait", waiting)):
            names = self._names_of(queue)
            if names != self._queues[key]:
                turn[key] = self._queues[key] = names
        self.turns.append(turn)
        self._turn = {}
        self.number += 1

    def _running(self) -> list[SglangRequest]:
        return [request for _, request in sorted(self.scheduler.running.members.items())]

    def _names_of(self, requests: Iterable[EngineRequest]) -> list[str]:
        return [self.names[request.number] for request in requests]


class Playback:
    """One scenario on one engine, played to its end.

    Attributes:
        recording: what was decided, in the recorded format; its passes are empty if nobody observed.
        record: what reports are made from: ends of passes, and the columns of each request.
        pages: every page stored or removed, in order, as far as events were kept.
        requests: those of the scenario.
    """

    def __init__(
        self,
        scenario: Scenario,
        fast_forward: bool = True,
        observed: bool = True,
        events: bool = True,
        after_turn: Callable[[SglangScheduler], None] | None = None,
    ) -> None:
        """`after_turn` is called whenever a turn or a run of turns has ended.

        Raises:
            ValueError: the scenario has an unknown key.
        """
        self.scenario = with_defaults(scenario)
        described = self.scenario["requests"]
        self.passes = PassColumns()
        self.scheduler = SglangScheduler(engine_config(self.scenario, fast_forward), self.passes, events)
        self.scheduler.order.by_priority = self.scenario["enable_priority_scheduling"]
        self.engine: Engine
        if self.scenario["overlap"]:
            self.engine = OverlapEngine(self.scheduler, UnitTiming(), self.passes)
        else:
            self.engine = Engine(self.scheduler, UnitTiming(), self.passes)
        workload = planned_workload(described, OUTPUT_SEED)
        if workload is not None and workload.planned is not None:
            self.scheduler.share_outputs()
        self.requests = [engine_request(self.scenario, number, workload) for number in range(len(described))]
        hashes = PageHashes(self.scenario["page_size"])
        self._arrivals: list[int] = [row["arrival_pass"] for row in described]
        self._recorder: TurnRecorder | None = None
        if observed:
            names = [row["id"] for row in described]
            self._recorder = TurnRecorder(self.scheduler, names, self._arrivals, hashes)
            self.scheduler.observer = self._recorder
        self._after_turn = after_turn
        self._pending = sorted(range(len(described)), key=lambda number: (self._arrivals[number], number), reverse=True)
        self._alive: set[int] = set()
        self._now_ms = 0.0
        stalled, num_turns = self._play()
        pool = self.scheduler.pool
        raw = hashes.raw(pool.events) if self._recorder is None else self._recorder.raw_events
        self.pages = [(kind, page) for kind, _, pages in raw for page in pages]
        self.recording: Recording = {
            "stalled": stalled,
            "num_passes": num_turns,
            "passes": self._recorder.turns if self._recorder is not None else [],
            "final": {
                "avail": pool.free_tokens,
                "evictable": pool.evictable_tokens,
                "protected": pool.protected_tokens,
            },
        }
        self.engine.halt(self._now_ms)
        passes = self.passes
        self.record = {
            "pass ends": (passes.end_ms.tolist(), passes.idle_pass.tolist(), passes.idle_until_ms.tolist()),
            "nodes": pool.num_nodes,
            "failures": [request.failure for request in self.requests],
            **{name: [repr(getattr(request, name)) for request in self.requests] for name in RECORD_FIELDS},
        }

    def _play(self) -> tuple[bool, int]:
        """Play as the recorder of the real scheduler did; returns whether it gave up, and after how many turns."""
        number = idle = num_turns = 0
        while True:
            self._arrive(number, self._now_ms)
            if not self._alive and self.scheduler.running.in_flight is None:
                if not self._pending:
                    return False, num_turns
                self._begin_unrecorded()
                number = self._next_arrival()
                continue
            if number >= self.scenario["max_passes"]:
                return True, num_turns
            if self._recorder is not None:
                self._recorder.number = number
            turns = 1
            did_something = False
            if self.engine.begin(self._now_ms) < INFINITE:
                launched = self.engine._planned > 0 or self.scheduler._batch is not None
                turns = self._fly(number)
                ended = self.engine.end()
                self._alive.difference_update(request.number for request in ended)
                did_something = launched or bool(ended)
            if self._after_turn is not None:
                self._after_turn(self.scheduler)
            num_turns += turns
            number += turns
            idle = 0 if did_something else idle + 1
            if idle >= IDLE_TURNS:
                if not self._pending:
                    return bool(self._alive), num_turns
                number = max(number, self._next_arrival())
                idle = 0

    def _fly(self, number: int) -> int:
        """What began at turn `number` is in flight until it ends; returns how many turns that takes."""
        engine = self.engine
        if engine._planned > self.scenario["max_passes"] - number:
            engine.cut(self._now_ms + self.scenario["max_passes"] - number)
        while self._pending and self._next_arrival() - number < max(engine._planned, 1):
            at = self._next_arrival()
            self._arrive(at, self._now_ms + at - number)
        self._now_ms = engine.end_ms
        return max(engine._planned, 1)

    def _next_arrival(self) -> int:
        return self._arrivals[self._pending[-1]]

    def _arrive(self, number: int, now_ms: float) -> None:
        while self._pending and self._next_arrival() <= number:
            request = self.requests[self._pending.pop()]
            described = self.scenario["requests"][request.number]
            self._alive.add(request.number)
            request.arrival_ms = request.marker_ms = now_ms
            request.priority = described.get("priority", 0)
            self.engine.submit(request, now_ms)
            request.ignore_eos = described.get("ignore_eos", self.scenario["ignore_eos"])

    def _begin_unrecorded(self) -> None:
        """A turn without work, which the recorder did not record; the ratio starts again in it."""
        self.scheduler.observer = None
        end_ms = self.engine.begin(self._now_ms)
        assert end_ms == INFINITE
        self.scheduler.observer = self._recorder
