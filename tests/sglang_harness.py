"""An SGLang engine to drive turn by turn, for small scenarios: geometry and numbers in, decisions and times out.

It drives the scheduler below the front end: nothing is clipped or refused unless a test asks for it.
"""

from __future__ import annotations

from typing import Any

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.engine import INFINITE, Engine
from windtunnel.engine.overlap import OverlapEngine
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_invariants import check_invariants
from windtunnel.engine.sglang_request import Batch, SglangRequest
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import TimingModel
from windtunnel.timing.polynomial import PolynomialTiming
from windtunnel.workload.content import Content, Run, output_origin


class SglangHarness:
    """One engine.

    Attributes:
        now_ms: when the last turn ended.
        batches: what each pass computed, as {request: tokens}; decodes count as one token.
        finished: requests in the order in which they ended.
    """

    def __init__(
        self, pool_tokens: int, timing: TimingModel | None = None, events: bool = False, **fields: Any
    ) -> None:
        page_size = fields.get("page_size", 1)
        self.config = SglangConfig(num_gpu_blocks=pool_tokens // page_size, **fields)
        self.passes = PassColumns()
        self.scheduler = SglangScheduler(self.config, self.passes, events)
        self.pool = self.scheduler.pool
        if timing is None:
            timing = PolynomialTiming(self.config.kv_capacity_tokens, first_tokens_decode=False)
        engine_type = OverlapEngine if self.config.overlap_schedule else Engine
        self.engine = engine_type(self.scheduler, timing, self.passes)
        self.now_ms = 0.0
        self.batches: list[dict[int, int]] = []
        self.finished: list[int] = []
        self._number = 0
        self.scheduler.observer = self

    def submit(self, prompt_tokens: int, output_tokens: int, prompt: list[Run] | None = None) -> SglangRequest:
        """A request arrives now, with a prompt of its own unless one is given."""
        runs = prompt if prompt is not None else [(1000 + self._number, 0, prompt_tokens)]
        content = Content.of(runs, (output_origin(self._number), 0, output_tokens))
        assert sum(run[2] for run in runs) == prompt_tokens
        request = SglangRequest(self._number, content, prompt_tokens, output_tokens, self.now_ms)
        self._number += 1
        self.engine.submit(request, self.now_ms)
        return request

    def turn(self) -> dict[int, int]:
        """One turn of the loop; what the batch that it launched computes, empty if it launched none."""
        before = len(self.batches)
        if self.engine.begin(self.now_ms) == INFINITE:
            return {}
        self.engine.cut(self.now_ms)
        self.now_ms = self.engine.end_ms
        self.finished += [request.number for request in self.engine.end()]
        check_invariants(self.scheduler)
        return self.batches[before] if len(self.batches) > before else {}

    def run(self) -> None:
        """Turns until nothing is left to do."""
        while self.engine.begin(self.now_ms) < INFINITE:
            self.now_ms = self.engine.end_ms
            self.finished += [request.number for request in self.engine.end()]
            check_invariants(self.scheduler)

    # --- as the observer of the scheduler

    def on_retraction(self, victim: SglangRequest) -> None:
        pass

    def on_failure(self, request: SglangRequest) -> None:
        pass

    def on_scheduled(self, batch: Batch | None) -> None:
        if batch is None:
            return
        computed = {chunk.request.number: chunk.end - chunk.start for chunk in batch.chunks}
        if batch.decodes:
            computed |= {request.number: 1 for _, request in sorted(self.scheduler.running.members.items())}
        self.batches.append(computed)

    def on_result(self, batch: Batch) -> None:
        pass

    def on_concluded(self) -> None:
        pass
