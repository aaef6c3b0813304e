"""The pass loop that all engines share: one scheduler, one KV cache, one clock of passes.

An engine is idle or has something in flight: a single pass, or a run of passes that only decode. What is in
flight is planned, not done. A pass chooses its batch and takes its blocks when it begins; tokens, completions
and freed blocks exist when it ends. A run is priced in one call, can be cut at any pass boundary while it is
in flight, and is committed when it ends. Single passes and runs give the same record, bit for bit.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from windtunnel.engine.decode_group import DecodeGroup
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.kv.haulage import Haulage
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import FloatArray, PassShape, TimingModel
from windtunnel.timing.measured_range import attribute_inside
from windtunnel.workload.content import Content

INFINITE = float("inf")
accumulate = np.add.accumulate

MAX_PLANNED_PASSES = 2048  # a run that may be cut is not priced further ahead than this


class KvPool(Protocol):
    """The KV blocks of an engine: how many there are, and how many nobody holds."""

    num_blocks: int
    caching: bool
    log_events: bool
    events: list[CacheEvent]

    @property
    def free_blocks(self) -> int: ...


class PromptPasses(Protocol):
    """Passes in which one prompt takes all of the budget; see `VllmPromptPasses`."""

    def ahead(self) -> int: ...
    def shape(self, number: int) -> PassShape: ...
    def commit(self, passes: int, start_ms: float) -> None: ...


class Scheduler(Protocol):
    """What an engine needs from the scheduler it models; see `VllmScheduler` for the meaning of each."""

    request_type: type[EngineRequest]
    fast_forward: bool
    group: DecodeGroup
    finished: list[EngineRequest]
    first_tokens: list[EngineRequest] | None

    @property
    def pool(self) -> KvPool: ...
    @property
    def prompt_passes(self) -> PromptPasses | None: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def safe_prompt_tokens(self) -> int: ...
    @property
    def safe_total_tokens(self) -> int: ...
    def limit_output(self, prompt_tokens: int, output_tokens: int) -> int: ...
    def refusal_at_submission(self, prompt_tokens: int, output_tokens: int) -> str: ...
    def attach_tiers(self, tiers: Offload) -> None: ...
    def share_outputs(self) -> None: ...
    def submit(self, request: EngineRequest) -> None: ...
    def submit_ahead(self, request: EngineRequest) -> None: ...
    def hold_back(self, request: EngineRequest) -> None: ...
    def is_waiting(self, request: EngineRequest) -> bool: ...
    def abort(self, request: EngineRequest, now_ms: float) -> None: ...
    def abandon(self, request: EngineRequest) -> None: ...
    def may_admit(self) -> bool: ...
    def decode_passes(self) -> int: ...
    def commit_decodes(self, passes: int) -> None: ...
    def blocks_for(self, passes: int) -> int: ...
    def quiet_passes(self, passes: int) -> int: ...
    def publish_quoted(self, content: Content, in_flight: bool) -> None: ...
    def schedule(self, now_ms: float) -> PassShape | None: ...
    def conclude(self, start_ms: float) -> None: ...
    def physical_tokens(self) -> int: ...
    def settle(self, now_ms: float) -> list[EngineRequest]: ...
    def describe_wait(self) -> str: ...


class Engine:
    """One scheduler on a clock.

    Call `begin` when the engine is idle and may have work, `end` at the time it returned; in between `submit`,
    `cancel` and `cut` may bring that time forward. Times are virtual ms and never go back.

    Attributes:
        scheduler: the queue, the batch and the KV cache.
        passes: the record of its passes.
        end_ms: when what is in flight ends; infinite when idle.
        runs_on: whether `run_on` may be called: what its passes do shows only in it, and when requests end.
        haulage: what carries KV to and from its own tiers, and sees the time of each pass; None without any.
    """

    def __init__(
        self, scheduler: Scheduler, timing: TimingModel, passes: PassColumns, *, passes_ahead: int = 0
    ) -> None:
        """`passes_ahead` is 1 if the scheduler decides a pass when the one before it starts, and so without whoever
        arrives or gives up meanwhile."""
        self.scheduler = scheduler
        self.timing = timing
        self.passes = passes
        self.end_ms = INFINITE
        self.runs_on = scheduler.fast_forward
        self.haulage: Haulage | None = None
        self._has_ended = False  # what ends at `end_ms` is committed already
        self._start_ms = 0.0
        self._planned = 0  # passes of the run in flight that are meant to happen; 0 for a single pass
        self._run_ends: FloatArray = np.empty(0)  # ends of the passes of a run of several
        self.publishes_singly = (
            False  # a pass that may evict is no part of a longer run, so that its events have its end
        )
        self._seen_ends: FloatArray | None = None  # of the run that `publishes_from_ms` was asked about
        self._quiet_until_ms = INFINITE  # up to then it publishes nothing
        self._leaving: list[EngineRequest] = []  # cancelled while something was in flight
        self._leaving_later: list[EngineRequest] = []  # ... and in the batch of the pass after it
        self._passes_ahead = passes_ahead
        self._tells_longest = bool(attribute_inside(timing, "needs_longest_context"))
        self._tells_more = self._tells_longest or timing.needs_physical_context  # than most models ask for
        # who came during a run that goes on, and the end of the pass after the one that they came in
        self._early: list[tuple[float, EngineRequest]] = []

    def submit(self, request: EngineRequest, now_ms: float) -> float:
        """Queue a request; returns the end of what is in flight, which a run gives up for an admission."""
        if self._passes_ahead:
            if not self._reaches_beyond(now_ms):
                self.scheduler.submit_ahead(request)
                return self.end_ms
            place = int(self._run_ends.searchsorted(now_ms))
            self._early = [entry for entry in self._early if entry[0] > now_ms]
            self._early.append((self._run_ends.item(place + 1), request))
        self.scheduler.submit(request)
        if self._planned and self.scheduler.may_admit():
            return self._cut_after(now_ms, 2) if self._passes_ahead else self.cut(now_ms)
        return self.end_ms

    def cancel(self, request: EngineRequest, now_ms: float) -> float:
        """The client of a request gives up; it leaves at the next pass boundary, which is returned.

        Tokens of the pass in flight do not reach it. When idle it leaves at once.
        """
        request.cancelled_ms = now_ms
        if self.end_ms == INFINITE:
            self.scheduler.abort(request, now_ms)
            return now_ms
        if self._passes_ahead and not self.scheduler.is_waiting(request):
            if not self._reaches_beyond(now_ms):
                self._leaving_later.append(request)
                return self.end_ms
            self._leaving.append(request)
            return self._cut_after(now_ms, 2)
        self._leaving.append(request)
        return self.cut(now_ms)

    def begin(self, now_ms: float) -> float:
        """Start a pass or a run of decodes; returns when it ends, infinite if nothing can run."""
        scheduler = self.scheduler
        passes = scheduler.decode_passes()
        if passes:
            if passes > MAX_PLANNED_PASSES:
                passes = MAX_PLANNED_PASSES
            if self.publishes_singly:
                passes = self._before_eviction(passes)
            if self._leaving:  # after the first of them
                passes = 1
            self._price_run(passes, now_ms)
        else:
            shape = scheduler.schedule(now_ms)
            if shape is None:
                return INFINITE
            if self._tells_more:
                self._tell(shape)
            self.end_ms = now_ms + self.timing.price_pass_ms(shape)
        self._planned = passes
        self._start_ms = now_ms
        return self.end_ms

    def run_on(self, until_ms: float) -> float:
        """Let pass follow pass as long as they end before until_ms and complete no request; nothing may happen to the
        engine, and nobody look at it, until the time that is returned, when what is in flight ends."""
        end_ms = self.end_ms
        if self._leaving or self._leaving_later:
            return end_ms
        scheduler = self.scheduler
        finished = scheduler.finished
        prompt = scheduler.prompt_passes
        haulage = self.haulage
        while end_ms < until_ms:
            if haulage is not None and not haulage.run_on(end_ms):
                break
            self._commit(self._planned)
            if finished:  # their owner is to see it
                self._has_ended = True
                self.end_ms = end_ms
                break
            if prompt is not None and (passes := prompt.ahead()):
                end_ms = self._pass_prompt(prompt, passes, end_ms, until_ms)
            next_ms = self.begin(end_ms)
            if next_ms == INFINITE:
                self._has_ended = True
                self.end_ms = end_ms
                break
            end_ms = next_ms
        if haulage is not None:
            haulage.come_back()
        return end_ms

    def _pass_prompt(self, prompt: PromptPasses, passes: int, now_ms: float, until_ms: float) -> float:
        """Of so many passes of a prompt let those happen that end before until_ms; returns the end of the last one."""
        if self._tells_more:
            return now_ms
        start_ms = now_ms
        done = 0
        while done < passes:
            end_ms = now_ms + self.timing.price_pass_ms(prompt.shape(done))
            if end_ms >= until_ms:
                break
            self.passes.end_ms.append(end_ms)
            now_ms = end_ms
            done += 1
        if done:
            self.passes.single_passes += done
            prompt.commit(done, start_ms)
        return now_ms

    def _reaches_beyond(self, now_ms: float) -> bool:
        """Whether the pass after the one in flight is in flight too, as part of a run."""
        return self._planned > 1 and int(self._run_ends.searchsorted(now_ms)) + 1 < self._planned

    def cut(self, now_ms: float) -> float:
        """End a run with the pass in flight now; returns the end of what is in flight."""
        return self._cut_after(now_ms, 1)

    def _cut_after(self, now_ms: float, passes: int) -> float:
        """End a run after so many passes from the one in flight on."""
        if self._planned > 1:
            reach = int(self._run_ends.searchsorted(now_ms)) + passes
            if reach < self._planned:
                self._planned = reach
                self.end_ms = self._run_ends.item(reach - 1)
                self.passes.cuts += 1
                if self._early:
                    self._hold_back()
        return self.end_ms

    def _hold_back(self) -> None:
        """A run has been cut before the pass that was decided without those who came last: it is still to come."""
        early = self._early
        self._early = [entry for entry in early if entry[0] <= self.end_ms]
        for seen_from_ms, request in early:
            if seen_from_ms > self.end_ms:
                self.scheduler.hold_back(request)

    def end(self) -> list[EngineRequest]:
        """What is in flight has ended: commit it. Returns the requests that completed, in batch order.

        A request that was cancelled meanwhile is among them if it completed; its `cancelled_ms` tells.
        """
        scheduler = self.scheduler
        now_ms = self.end_ms
        if self._has_ended:
            self._has_ended = False
            self.end_ms = INFINITE
        else:
            self._commit(self._planned)
        finished = scheduler.finished
        if finished:
            scheduler.finished = []
        if self._leaving:
            finished = [*finished, *self._abort_leaving(finished, now_ms)]
        if self._leaving_later:
            self._leaving = [request for request in self._leaving_later if request not in finished]
            self._leaving_later = []
        return finished

    def _abort_leaving(self, finished: list[EngineRequest], now_ms: float) -> list[EngineRequest]:
        """Take out those who gave up during what has just ended, unless it completed them."""
        leaving = [request for request in self._leaving if request not in finished]
        for request in self._leaving:
            if request in leaving:
                self.scheduler.abort(request, now_ms)
            else:
                self.scheduler.abandon(request)
        self._leaving = []
        return leaving

    def halt(self, now_ms: float) -> tuple[list[EngineRequest], list[EngineRequest]]:
        """Stop for good: passes that end by now_ms have happened, the one in flight has not.

        Returns the requests that still completed or left, and those that remain, in the order of the queue.
        """
        finished: list[EngineRequest] = []
        if self.end_ms <= now_ms:
            finished = self.end()
        elif self._planned > 1 and self.end_ms != INFINITE:
            done = int(self._run_ends.searchsorted(now_ms, side="right"))
            if done:
                self._commit(done)
        self.end_ms = INFINITE
        at_ms = self.passes.end_ms[-1] if self.passes.end_ms else now_ms
        return finished, self.scheduler.settle(min(at_ms, now_ms))

    def free_blocks(self, now_ms: float) -> int:
        """KV blocks that nobody holds at now_ms, also inside a run."""
        free = self.scheduler.pool.free_blocks
        if self._planned and self.end_ms != INFINITE:
            started = 1 if self._planned == 1 else int(self._run_ends.searchsorted(now_ms)) + 1
            free -= self.scheduler.blocks_for(min(started, self._planned))
        return free

    def passes_ended(self, now_ms: float) -> int:
        """Passes that have ended by now_ms, also inside a run."""
        ended = len(self.passes.end_ms)
        if self._planned > 1 and self.end_ms != INFINITE:
            ended += int(self._run_ends[: self._planned].searchsorted(now_ms, side="right"))
        return ended

    def accept_length(self, now_ms: float) -> float:
        """Tokens per request and pass that emitted any, up to now_ms: 1 if nobody speculates."""
        return 1.0

    def _before_eviction(self, passes: int) -> int:
        """So many of `passes` passes of a run that none of them evicts; 1 if the first one may."""
        return max(min(self.scheduler.quiet_passes(passes), passes), 1)

    # --- for routers, which look at what has been published while a run is in flight

    def publishes_from_ms(self) -> float:
        """From when on the passes of a run in flight that have ended may have published events; infinite if never."""
        if self._planned < 2 or self.end_ms == INFINITE:
            return INFINITE
        ends = self._run_ends
        if self._seen_ends is not ends:  # a run that was not asked about before
            self._seen_ends = ends
            quiet = self.scheduler.quiet_passes(self._planned)
            self._quiet_until_ms = ends.item(quiet) if quiet < self._planned else INFINITE
        return self._quiet_until_ms

    def ends_inside(self, now_ms: float) -> bool:
        """Whether a pass of a run, but not the last one, ends exactly now."""
        if self._planned < 2 or self.end_ms == INFINITE:
            return False
        place = int(self._run_ends.searchsorted(now_ms))
        return place < self._planned - 1 and self._run_ends.item(place) == now_ms

    def commit_ended(self, now_ms: float) -> bool:
        """Commit the passes of a run that have ended by now, which is inside a pass; whether there were any.

        The run goes on.
        """
        if self._planned < 2 or self.end_ms == INFINITE:
            return False
        done = min(int(self._run_ends.searchsorted(now_ms, side="right")), self._planned - 1)
        if not done:
            return False
        passes = self.passes
        ends = passes.end_ms
        if not ends or ends[-1] != self._start_ms:
            passes.idle_pass.append(len(ends))
            passes.idle_until_ms.append(self._start_ms)
        ends.frombytes(self._run_ends[:done].tobytes())
        passes.passes_in_runs += done
        self._start_ms = ends[-1]
        self._run_ends = self._run_ends[done:]
        self._planned -= done
        self.scheduler.commit_decodes(done)
        return True

    def publish_quoted(self, content: Content) -> list[CacheEvent]:
        """Events of the blocks of `content` that requests here have generated, in passes that have ended.

        Within a run, those of `commit_ended`.
        """
        pool = self.scheduler.pool
        pending = pool.events  # of the pass in flight
        found: list[CacheEvent] = []
        pool.events = found
        self.scheduler.publish_quoted(content, self._planned == 0 and self.end_ms != INFINITE)
        pool.events = pending
        return found

    def _tell(self, shape: PassShape) -> None:
        """Add what the timing model asks for to the shape of a scheduled pass."""
        if self.timing.needs_physical_context:
            shape.physical_context_tokens = self.scheduler.physical_tokens()
        if self._tells_longest:
            shape.longest_context_tokens = self.scheduler.group.longest_context()

    def _price_run(self, passes: int, now_ms: float) -> None:
        """Fix the ends of the next `passes` passes of decodes."""
        group = self.scheduler.group
        if self._tells_more:
            ends = self._price_telling(passes)
        elif passes == 1:
            self.end_ms = now_ms + self.timing.price_pass_ms(PassShape(group.size, group.context_tokens))
            return
        else:
            ends = self.timing.price_run_ms(group.size, group.context_tokens, -1, passes)
        ends[0] = ends.item(0) + now_ms
        self._run_ends = ends = accumulate(ends)  # a running sum in order, as single passes make it
        self.end_ms = ends.item(-1)

    def _price_telling(self, passes: int) -> FloatArray:
        """Durations of the next `passes` passes of decodes, for a model that asks for more than most."""
        timing = self.timing
        group = self.scheduler.group
        physical = self.scheduler.physical_tokens() + group.size if timing.needs_physical_context else -1
        if not self._tells_longest:
            if passes > 1:
                return timing.price_run_ms(group.size, group.context_tokens, physical, passes)
            shape = PassShape(group.size, group.context_tokens)
            shape.physical_context_tokens = physical
            return np.array((timing.price_pass_ms(shape),))
        longest = group.longest_context()
        prices: FloatArray = np.empty(passes)
        for number in range(passes):
            shape = PassShape(group.size, group.context_tokens + number * group.size)
            if physical >= 0:
                shape.physical_context_tokens = physical + number * group.size
            shape.longest_context_tokens = longest + number
            prices[number] = timing.price_pass_ms(shape)
        return prices

    def _commit(self, done: int) -> None:
        passes = self.passes
        ends = passes.end_ms
        start_ms = self._start_ms
        if not ends or ends[-1] != start_ms:
            passes.idle_pass.append(len(ends))
            passes.idle_until_ms.append(start_ms)
        if not done:
            ends.append(self.end_ms)
            self.end_ms = INFINITE
            passes.single_passes += 1
            self.scheduler.conclude(start_ms)
            return
        if self._planned == 1:
            ends.append(self.end_ms)
        else:
            run_ends = self._run_ends
            ends.frombytes((run_ends if done == len(run_ends) else run_ends[:done]).tobytes())
        self._planned = 0
        self.end_ms = INFINITE
        passes.decode_runs += 1
        passes.passes_in_runs += done
        self.scheduler.commit_decodes(done)
