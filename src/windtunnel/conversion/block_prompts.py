"""The prompts of a workload as rows of hash ids, and what their prefixes share less for it.

Decides nothing that `HashIds` does not; it counts. The loss is what an infinite cache would serve of the given
prompts and not of those that a reader makes of the ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.conversion.hash_ids import HashIds
from windtunnel.conversion.losses import Losses
from windtunnel.conversion.structure import like
from windtunnel.inspection.prefix_sharing import prefix_sharing
from windtunnel.workload.content import Run, output_origin
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.hash_blocks import HashBlocks
from windtunnel.workload.traces.reading import ReadOptions


class BlockPrompts:
    """Prompts as hash ids.

    Args:
        own: the tokens that the row of each request holds.
        grows: whether the prompt of a later turn is the one before, its output, and the tokens of its own row.
        block_size, renumber: as for `HashIds`.
    """

    def __init__(
        self,
        workload: Workload,
        block_size: int,
        *,
        renumber: bool,
        own: Sequence[Sequence[Run]] | None = None,
        grows: bool = False,
    ) -> None:
        self._workload = workload
        self._own = own
        self._grows = grows
        everything = range(workload.num_requests)
        self._ids = HashIds(lambda: map(self.runs, everything), block_size, renumber=renumber)

    def runs(self, request: int) -> Sequence[Run]:
        """The tokens of the row of a request."""
        return self._workload.prompt_runs(request) if self._own is None else self._own[request]

    def row(self, request: int) -> tuple[int, list[int]]:
        """Length and hash ids of the row of a request."""
        runs = self.runs(request)
        return sum(length for _, _, length in runs), self._ids.ids(runs)

    def note_losses(self, losses: Losses) -> None:
        """Say what prompts share less than before, and whether they quoted outputs that they no longer do."""
        workload = self._workload
        if workload.accumulates and not self._grows:
            quoting = sum(bool(workload.content(request, 0).sources) for request in range(workload.num_requests))
            message = "hold outputs as they were asked for, and no longer what was really generated"
            losses.note(quoting, workload.num_requests, "prompts", message)
        if self._ids.keeps_blocks:
            return
        before = prefix_sharing(workload, 1)
        after = prefix_sharing(self._as_read(), 1)
        losses.note(
            before.shared_blocks - after.shared_blocks,
            before.shared_blocks,
            "prompt tokens that an infinite cache would serve",
            f"are no longer shared: prompts part inside a block of {self._ids.block_size}, or held an output",
        )

    def _as_read(self) -> Workload:
        workload = self._workload
        blocks = HashBlocks(self._ids.block_size, ReadOptions())
        result = like(workload)
        latest: dict[int, list[Run]] = {}  # by session: the prompt of its last turn, and its output
        for request in range(workload.num_requests):
            tokens, ids = self.row(request)
            session = workload.session[request]
            output = workload.output_tokens[request]
            runs = blocks.prompt(ids, tokens)
            if self._grows:
                runs = [*latest.get(session, ()), *runs]
                latest[session] = [*runs, (output_origin(request), 0, output)]
            result.add(runs, output)
        return result
