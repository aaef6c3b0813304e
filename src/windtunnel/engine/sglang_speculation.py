"""SGLang's scheduler when its requests verify drafts (EAGLE, MTP, a draft model, or n-grams).

Prompts are admitted as without, the output to come reserved likewise. Before a pass that decodes, KV slots must be free
for all that it drafts and verifies; else requests are retracted, the last of the batch first. It yields a token of each
request and the drafts that it accepts, keeps the KV of these, and frees that of the others. The first token comes with
the prompt. A result is processed before the next batch is formed: overlap scheduling with speculation (SGLang's second
version of it) is not modelled. Source: SGLang 0.5.x, ScheduleBatch.new_tokens_required_next_decode, retract_decode and
the verification of its EAGLE worker. What a request accepts, and what a pass costs, is not decided here.
"""

from __future__ import annotations

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.acceptance import Acceptance, IntArray
from windtunnel.engine.new_token_ratio import NewTokenRatio
from windtunnel.engine.request import EngineRequest
from windtunnel.engine.running_batch import RunningBatch
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_request import NO_ENDERS, Batch, Chunk, SglangRequest
from windtunnel.engine.sglang_verification import VerifyingGroup, VerifyingPasses, VerifyingRequest
from windtunnel.record.columns import PassColumns
from windtunnel.timing.base import PassShape
from windtunnel.timing.verification import VerifyingShape


class VerifyingBatch(RunningBatch):
    """A running batch whose requests verify drafts.

    Attributes:
        verifying: its group.
        rejected_tokens: what the single pass in flight computes and does not keep.
    """

    def __init__(self, ratio: NewTokenRatio, group: VerifyingGroup) -> None:
        super().__init__(group.block_size, ratio, overlap=False)
        self.verifying = group
        self.group = group
        self.log = VerifyingPasses()
        self.rejected_tokens = 0

    def launch(self, number: int, passes: int) -> list[SglangRequest]:
        group = self.verifying
        before = group.computed_tokens()
        drafted = group.size * (1 + group.num_drafts)
        self.log.add(number - passes + 1, number)
        group.advance(passes)
        enders = self._take_enders() if group.finish_step == group.step else NO_ENDERS
        kept = group.computed_tokens() + sum(request.computed for request in enders) - before
        self.rejected_tokens = drafted - kept if passes == 1 else 0
        return enders

    def retraction_order(self, requests: list[SglangRequest]) -> list[SglangRequest]:
        return requests

    def room_tokens(self, requests: list[SglangRequest]) -> int:
        return len(requests) * self.verifying.room_blocks * self.verifying.block_size

    def computed(self, request: SglangRequest) -> int:
        if not request.decoding:
            return request.computed
        assert isinstance(request, VerifyingRequest)
        return self.verifying.computed(request)

    def reserved_tokens(self) -> float:
        return super().reserved_tokens() if self._num_uncertain else float(self.verifying.remaining_tokens())

    def _known_output(self, request: SglangRequest) -> int:
        # its last token has no KV yet
        return self.computed(request) + 1 - request.prompt_tokens if request.decoding else request.output_tokens


class SglangSpeculation(SglangScheduler):
    """The scheduler of an SGLang engine whose requests speculate.

    Attributes:
        num_drafts: tokens that a pass verifies of each request, beside the one before them.
        verifying: the requests that decode, as a group.
    """

    request_type: type[EngineRequest] = VerifyingRequest

    def __init__(
        self, config: SglangConfig, passes: PassColumns, acceptance: Acceptance, publish_events: bool = False
    ) -> None:
        speculation = config.speculation
        assert speculation is not None
        room_tokens = speculation.room_tokens(config.page_size)
        self.num_drafts = speculation.verified_tokens - 1
        self.verifying = VerifyingGroup(
            config.page_size, acceptance, self.num_drafts, -(-room_tokens // config.page_size)
        )
        super().__init__(config, passes, publish_events)
        self._beside = f" beside the {room_tokens} that drafts need"

    def _make_batch(self) -> RunningBatch:
        self.batch = VerifyingBatch(self.ratio, self.verifying)
        return self.batch

    def physical_tokens(self) -> int:
        return super().physical_tokens() + self.batch.rejected_tokens

    # --- what a run costs

    def contexts(self, passes: int) -> IntArray:
        """Positions that each of the next passes of a run reaches, summed over the requests."""
        return self.verifying.contexts(passes)

    def physical_contexts(self, contexts: IntArray) -> IntArray:
        """Distinct tokens that requests hold in passes that reach so far."""
        return contexts + (self.physical_tokens() - self.verifying.computed_tokens())

    # --- passes that decode

    def blocks_for(self, passes: int) -> int:
        return self.verifying.blocks_for(passes)

    def quiet_passes(self, passes: int) -> int:
        wanted = self.verifying.room_for(passes) * self.page_size
        return passes if wanted <= self.pool.free_tokens else 0

    def conclude(self, start_ms: float) -> None:
        self.batch.rejected_tokens = 0
        super().conclude(start_ms)

    def commit_decodes(self, passes: int) -> None:
        super().commit_decodes(passes)
        self.batch.rejected_tokens = 0

    def _launch_decodes(self, number: int, passes: int) -> list[SglangRequest]:
        group = self.verifying
        pool = self.pool
        pool.evict_until(group.room_for(passes) * self.page_size)
        pool.take(group.blocks_for(passes) * self.page_size)
        self.ratio.note_decodes(passes)
        return self.running.launch(number, passes)

    def _fitting_decodes(self) -> int:
        group = self.verifying
        pool = self.pool
        wanted = group.room_for(1) * self.page_size
        pool.evict_until(wanted)
        return group.blocks_for(1) if wanted <= pool.free_tokens else -1

    def _decode_shape(self) -> PassShape:
        group = self.verifying
        shape = VerifyingShape()
        shape.add_verifications(group.size, group.contexts(1).item(0), group.size * group.num_drafts)
        return shape

    # --- results

    def _conclude_chunk(self, chunk: Chunk, batch: Batch, end_ms: float) -> None:
        request = chunk.request
        assert isinstance(request, VerifyingRequest)
        before = request.num_passes_noted
        super()._conclude_chunk(chunk, batch, end_ms)
        if request.num_passes_noted > before:
            request.burst_extra.append(0)
