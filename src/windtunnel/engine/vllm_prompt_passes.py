"""Passes in which one prompt takes all of the budget that the decodes leave.

Such a pass admits nobody and ends neither the prompt nor a request, so how many of them are ahead can be told before
the first one, and what they have done can be written down after the last. It is what a long prompt is made of. Says
nothing about a pass in which anything else happens: those are decided in vllm.py, which decides the same on these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.engine.vllm_offload import VllmOffload
from windtunnel.timing.base import PassShape

if TYPE_CHECKING:
    from windtunnel.engine.vllm import VllmScheduler


class VllmPromptPasses:
    """Those that are ahead of a scheduler, between two passes."""

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: VllmScheduler) -> None:
        self._scheduler = scheduler

    def ahead(self) -> int:
        """How many there are for certain, as long as nothing happens to the engine."""
        scheduler = self._scheduler
        if not scheduler.prefilling or scheduler.threshold_tokens or not scheduler.is_settled:
            return 0
        request = scheduler.prefilling[0]
        group = scheduler.group
        decodes = group.size
        tokens = scheduler.max_num_batched_tokens - decodes
        if tokens <= 0 or request.admission < group.last_admission:
            return 0
        if scheduler.offload is not None and scheduler.offload.num_parked:  # who may come back any time
            return 0
        if request.recovering or request.table.content.sources:  # either is looked at in each pass
            return 0
        end = min(request.prompt_tokens + request.output_tokens, scheduler.max_model_len - 1)
        passes = (end - request.computed - 1) // tokens
        if decodes and passes >= group.finish_step - group.step:
            passes = group.finish_step - group.step - 1
        bs = scheduler.block_size
        need = decodes * (passes // bs + 1) + passes * tokens // bs + 1
        return passes if need <= scheduler.pool.free_blocks else 0

    def shape(self, number: int) -> PassShape:
        """One of them, from 0."""
        scheduler = self._scheduler
        group = scheduler.group
        request = scheduler.prefilling[0]
        decodes = group.size
        tokens = scheduler.max_num_batched_tokens - decodes
        shape = PassShape(decodes, group.context_tokens + number * decodes)
        shape.add_chunk(request.computed + number * tokens, tokens, request.prompt_tokens, False)
        return shape

    def commit(self, passes: int, start_ms: float) -> None:
        """So many have happened, one after another from start_ms on; their ends are recorded."""
        scheduler = self._scheduler
        request = scheduler.prefilling[0]
        decodes = scheduler.group.size
        tokens = scheduler.max_num_batched_tokens - decodes
        offload = scheduler.offload
        if offload is not None:
            self._commit_one_by_one(offload, passes, tokens, start_ms)
            return
        if decodes:
            scheduler.decodes.advance(passes)
        scheduler.cover(request, passes * tokens)
        for end_ms in scheduler.passes.end_ms[-passes:]:
            request.note_chunk(start_ms, end_ms)
            start_ms = end_ms

    def _commit_one_by_one(self, offload: VllmOffload, passes: int, tokens: int, start_ms: float) -> None:
        """The same with tiers, which learn of each."""
        scheduler = self._scheduler
        request = scheduler.prefilling[0]
        for end_ms in scheduler.passes.end_ms[-passes:]:
            if scheduler.group.size:
                scheduler.decodes.advance(1)
            scheduler.cover(request, tokens)
            scheduler.tell_untold(offload)  # asynchronous: of the pass before, now that this one is decided
            request.note_chunk(start_ms, end_ms)
            offload.tiers.haulage.run_on(end_ms)
            scheduler.tell_tiers(offload, request, request.computed)
            start_ms = end_ms
