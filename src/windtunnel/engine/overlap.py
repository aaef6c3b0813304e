"""The pass loop of an engine that forms its next batch while a pass runs (overlap scheduling).

The turn that launches pass i begins when pass i-2 has ended and its result is processed, and ends when pass i-1 has:
so it sees arrivals up to its beginning, and forms its batch without the result of pass i-1. The first launch after a
pause takes no time, and the second follows at once. Passes run back to back; the host is not the slower part. A token
reaches its client when the pass that computed it ends, as without overlap. A run of decodes that ends with a completion
goes on for the turn in which that completion is in flight.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from windtunnel.engine.engine import INFINITE, MAX_PLANNED_PASSES, Engine, Scheduler
from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape, TimingModel


class OverlapScheduler(Scheduler, Protocol):
    """What this engine needs besides."""

    def after_completion(self, passes: int) -> PassShape | None: ...


class OverlapEngine(Engine):
    """One scheduler on a clock, a pass ahead of it.

    It is used like `Engine`, whose `end_ms` is here the end of the turn in progress. The ends of passes are recorded
    when their turn ends.
    """

    def __init__(self, scheduler: OverlapScheduler, timing: TimingModel, passes: PassColumns) -> None:
        super().__init__(scheduler, timing, passes)
        self._looks_ahead = scheduler  # the same object
        self._flight_end_ms = INFINITE  # of the pass whose result this turn waits for, if there is one
        self._flight_start_ms = 0.0  # of the first pass after a pause
        self._after_pause = False  # whether the pass in flight is that
        self._launch_end_ms = INFINITE  # of the single pass that is launched in this turn, or after a run

    def begin(self, now_ms: float) -> float:
        """Launch a pass or a run of decodes; returns when the turn ends, infinite if nothing runs or can run."""
        scheduler = self.scheduler
        flight_end_ms = self._flight_end_ms
        start_ms = now_ms if flight_end_ms == INFINITE else flight_end_ms
        passes = scheduler.decode_passes()
        if passes:
            if passes > MAX_PLANNED_PASSES:
                passes = MAX_PLANNED_PASSES
            if self.publishes_singly:
                passes = self._before_eviction(passes)
            self._price_run(passes, start_ms)
            if passes == 1:
                self._run_ends = np.array((self.end_ms,))
            shape = self._looks_ahead.after_completion(passes)
            if shape is not None:
                if self._tells_more:
                    if self.timing.needs_physical_context:
                        computed = passes * scheduler.group.size + shape.num_decodes
                        shape.physical_context_tokens = scheduler.physical_tokens() + computed
                    if self._tells_longest:
                        shape.longest_context_tokens = scheduler.group.longest_context(passes)
                self._launch_end_ms = self.end_ms + self.timing.price_pass_ms(shape)
                passes += 1
            self._planned = passes
            # the turn that launches a pass ends with the pass before
            self.end_ms = flight_end_ms if passes == 1 else self._run_ends.item(passes - 2)
            return self.end_ms
        self._planned = 0
        shape = scheduler.schedule(start_ms)
        if shape is None:
            self._launch_end_ms = INFINITE
            if flight_end_ms == INFINITE and not scheduler.finished:
                return INFINITE
        else:
            if self._tells_more:
                self._tell(shape)
            self._launch_end_ms = start_ms + self.timing.price_pass_ms(shape)
        self._start_ms = start_ms
        self.end_ms = start_ms
        return start_ms

    def cut(self, now_ms: float) -> float:
        """End a run with the turn in progress now; returns the end of what is in flight."""
        if self._planned:
            reach = self._turns_begun(now_ms)
            if reach < self._planned:
                self._planned = reach
                self.end_ms = self._flight_end_ms if reach == 1 else self._run_ends.item(reach - 2)
                self.passes.cuts += 1
        return self.end_ms

    def halt(self, now_ms: float) -> tuple[list[EngineRequest], list[EngineRequest]]:
        finished: list[EngineRequest] = []
        if self.end_ms <= now_ms:
            finished = self.end()
        elif self._planned and self.end_ms != INFINITE and self._flight_end_ms <= now_ms:
            self._commit(int(self._run_ends.searchsorted(now_ms, side="right")) + 1)
        self.end_ms = INFINITE
        at_ms = self.passes.end_ms[-1] if self.passes.end_ms else now_ms
        return finished, self.scheduler.settle(min(at_ms, now_ms))

    def free_blocks(self, now_ms: float) -> int:
        """KV blocks that nobody holds at now_ms, also inside a run."""
        free = self.scheduler.pool.free_blocks
        if self._planned and self.end_ms != INFINITE:
            free -= self.scheduler.blocks_for(min(self._turns_begun(now_ms), self._planned))
        return free

    def publishes_from_ms(self) -> float:
        if self._planned < 2 or self.end_ms == INFINITE:
            return INFINITE
        return self._flight_end_ms if self.scheduler.quiet_passes(self._planned) < self._planned else INFINITE

    def ends_inside(self, now_ms: float) -> bool:
        if self._planned < 2 or self.end_ms == INFINITE:
            return False
        if self._flight_end_ms == now_ms:
            return True
        place = int(self._run_ends.searchsorted(now_ms))
        return place < self._planned - 2 and self._run_ends.item(place) == now_ms

    def commit_ended(self, now_ms: float) -> bool:
        planned = self._planned
        if planned < 2 or self.end_ms == INFINITE or self._flight_end_ms > now_ms:
            return False
        run_ends = self._run_ends
        end_ms = self.end_ms
        done = min(int(run_ends.searchsorted(now_ms, side="right")) + 1, planned - 1)
        self._commit(done)
        self.passes.decode_runs -= 1  # it goes on
        self._planned = planned - done
        self._run_ends = run_ends[done:]
        self.end_ms = end_ms
        return True

    def _turns_begun(self, now_ms: float) -> int:
        """How many turns of a run have begun before now_ms, the first one in any case."""
        if self._flight_end_ms >= now_ms:
            return 1
        return int(self._run_ends.searchsorted(now_ms)) + 2

    def _commit(self, done: int) -> None:
        """`done` passes of a run, or the single pass if that is 0, have been launched, and the one before has ended."""
        passes = self.passes
        ends = passes.end_ms
        self.end_ms = INFINITE
        flight_end_ms = self._flight_end_ms
        if flight_end_ms != INFINITE:
            if self._after_pause:
                self._after_pause = False
                if not ends or ends[-1] != self._flight_start_ms:
                    passes.idle_pass.append(len(ends))
                    passes.idle_until_ms.append(self._flight_start_ms)
            ends.append(flight_end_ms)
        if done:
            self._planned = 0
            run_ends = self._run_ends
            if done > 1:
                ends.frombytes(run_ends[: done - 1].tobytes())
            self._flight_end_ms = run_ends.item(done - 1) if done <= len(run_ends) else self._launch_end_ms
            passes.decode_runs += 1
            passes.passes_in_runs += done
            self.scheduler.commit_decodes(done)
            return
        if flight_end_ms == INFINITE:
            self._after_pause = True
            self._flight_start_ms = self._start_ms
        self._flight_end_ms = self._launch_end_ms
        if self._launch_end_ms != INFINITE:
            passes.single_passes += 1
        self.scheduler.conclude(self._start_ms)
