"""What every request at an SGLang engine holds, how it ends, and where its time went.

Rows, KV leases, tokens and times change together here, so that they cannot disagree. The file decides nothing: who is
admitted, retracted or given up is the scheduler's business.
"""

from __future__ import annotations

from windtunnel.engine.kv.radix import RadixCache
from windtunnel.engine.running_batch import RunningBatch
from windtunnel.engine.sglang_request import Batch, SglangRequest
from windtunnel.record.columns import PassColumns


class SglangLedger:
    """The requests of one engine.

    Attributes:
        live: those that have not ended, by number, in the order of their submission.
        free_rows: how many more requests may hold KV.
        departed: members of the running batch that have ended, and leave it at the next turn.
    """

    def __init__(self, pool: RadixCache, running: RunningBatch, passes: PassColumns, rows: int) -> None:
        self.live: dict[int, SglangRequest] = {}
        self.free_rows = rows
        self.departed: list[SglangRequest] = []
        self._pool = pool
        self._running = running
        self._passes = passes

    def note_admissions(self, batch: Batch) -> None:
        """A batch starts to run."""
        for chunk in batch.chunks:
            if chunk.admits and not chunk.request.gone:
                chunk.request.note_admission(batch.start_ms, chunk.start)

    def account(self, request: SglangRequest, now_ms: float) -> None:
        """Bring the tokens and the time of a request up to date; now_ms is a boundary between passes."""
        if request.prefilled and request.merge >= 0:
            known = len(self._passes.end_ms) - 1
            self._running.log.note_decodes(request, request.first_gap, request.left_out_before_ms, known, now_ms)
        else:
            request.note_wait(now_ms)

    def lose(self, victim: SglangRequest, now_ms: float) -> None:
        """Take all KV of a running request, without storing it; a token in flight is lost."""
        self.account(victim, now_ms)
        victim.note_preemption(now_ms)
        self._vacate(victim, keep=False)
        victim.lease.inserted = 0
        victim.prefix = victim.chunk_end = victim.computed = 0
        victim.prefilled = False
        victim.retracted = True
        victim.merge = -1

    def give_up(self, request: SglangRequest) -> None:
        """A request ends because there is no room for it; its KV is freed without being stored."""
        self.account(request, self._passes.end_ms[-1])
        self.remove(request, keep=False)

    def remove(self, request: SglangRequest, keep: bool) -> None:
        """A request ends; `keep` leaves what it has computed in the tree."""
        if request.has_row:
            self._vacate(request, keep)
        request.gone = True
        del self.live[request.number]
        if self._running.members.get(request.admission) is request:
            self.departed.append(request)

    def unfilled_tokens(self) -> int:
        """Tokens that would fill the last pages of requests that hold KV and do not decode."""
        pool = self._pool
        holders = [request for request in self.live.values() if request.has_row and not request.decoding]
        return sum(pool.pages(request.computed) - request.computed for request in holders)

    def _vacate(self, request: SglangRequest, keep: bool) -> None:
        self._pool.release(request.lease, request.computed, keep)
        request.has_row = False
        self.free_rows += 1
