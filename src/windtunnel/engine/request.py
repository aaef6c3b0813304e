"""An engine's view of one request: what it still has to compute, and where its time went so far."""

from __future__ import annotations

from array import array

from windtunnel.engine.kv.block_pool import BlockTable
from windtunnel.workload.content import Content, output_origin

NAN = float("nan")
NO_BREAKS = array("q")  # shared by the many requests without any; never changed


class EngineRequest:
    """A request at an engine.

    Attributes:
        number: its number in the workload; `origin` is the content origin of its output.
        prompt_tokens, max_output_tokens: what it asks for; the output is already cut to the model's length.
        table: its KV blocks; the content holds the prompt, then all the output to come.
        output_tokens: tokens emitted. While decoding this lags behind and follows from the decode group.
        computed: tokens whose KV is computed; while decoding it is base + step of the group.
        decoding: a member of the decode group.
        admission: number of its last admission, which is its place in the batch.
        first_pass, last_pass: passes that emitted its first and last token, -1 before.
        finish: while decoding, the step of the group after which its last token is computed.
        home: the engine that it is at, by the number that its owner gives to that.
        priority: larger is more urgent; only looked at by a policy that asks for it.
        failure: why its engine gave it up, "" if it did not.
        emitting_from: while decoding, the pass from which on it emits a token in each.
        break_before, break_after: per stretch without a token, the last pass before it and the first after it.
        burst_extra: of a request that speculates, the tokens beyond one of each pass that emitted any, in order.
        cancelled_ms: when its client gave up, NaN if it did not (no time is greater than that).
        marker_ms: up to when its time is accounted for in the `_ms` fields that follow.
        recovering: preempted, and what was lost is not recomputed yet: up to position `lost`.
    """

    __slots__ = (
        "admission",
        "arrival_ms",
        "base",
        "break_after",
        "break_before",
        "burst_extra",
        "cancelled_ms",
        "computed",
        "decode_ms",
        "decoding",
        "emitting_from",
        "failure",
        "finish",
        "first_admit_ms",
        "first_pass",
        "hit_tokens",
        "home",
        "last_pass",
        "lost",
        "marker_ms",
        "max_output_tokens",
        "number",
        "origin",
        "output_tokens",
        "preempted_ms",
        "preemptions",
        "prefill_ms",
        "priority",
        "prompt_tokens",
        "queued_ms",
        "recovering",
        "reused_tokens",
        "stalled_ms",
        "table",
        "transfer_ms",
    )

    def __init__(
        self, number: int, content: Content, prompt_tokens: int, max_output_tokens: int, arrival_ms: float
    ) -> None:
        self.number = number
        self.origin = output_origin(number)
        self.table = BlockTable(content)
        self.prompt_tokens = prompt_tokens
        self.max_output_tokens = max_output_tokens
        self.output_tokens = 0
        self.computed = 0
        self.decoding = False
        self.base = 0
        self.finish = 0
        self.priority = 0
        self.failure = ""
        self.admission = 0
        self.home = -1
        self.hit_tokens = 0
        self.reused_tokens = 0
        self.preemptions = 0
        self.arrival_ms = arrival_ms
        self.first_admit_ms = NAN
        self.first_pass = -1
        self.last_pass = -1
        self.emitting_from = -1
        self.break_before = NO_BREAKS
        self.break_after = NO_BREAKS
        self.burst_extra = NO_BREAKS
        self.cancelled_ms = NAN
        self.marker_ms = arrival_ms
        self.queued_ms = 0.0
        self.prefill_ms = 0.0
        self.stalled_ms = 0.0
        self.preempted_ms = 0.0
        self.transfer_ms = 0.0
        self.decode_ms = 0.0
        self.recovering = False
        self.lost = 0

    @property
    def admitted(self) -> bool:
        """Whether it was ever scheduled."""
        return self.first_admit_ms == self.first_admit_ms

    @property
    def num_emitted(self) -> int:
        """Tokens that its client has received, as far as it is up to date."""
        if self.first_pass < 0:
            return 0
        silent = sum(self.break_after) - sum(self.break_before) - len(self.break_before)
        return self.last_pass - self.first_pass + 1 - silent + sum(self.burst_extra)

    def note_loss(self, now_ms: float) -> None:
        """All that it had is lost now."""
        if self.admitted:
            self.preempted_ms += now_ms - self.marker_ms
        else:
            self.queued_ms += now_ms - self.marker_ms
        self.marker_ms = now_ms

    def carry_over(self, lost: EngineRequest) -> None:
        """It is the same request anew, after an attempt that came to nothing: the time of that is accounted for."""
        self.priority = lost.priority
        self.marker_ms = lost.marker_ms
        self.queued_ms = lost.queued_ms
        self.preempted_ms = lost.preempted_ms + lost.prefill_ms + lost.stalled_ms + lost.decode_ms
        self.transfer_ms = lost.transfer_ms
        self.preemptions = lost.preemptions

    def note_admission(self, now_ms: float, hit_tokens: int) -> None:
        """A pass that starts now schedules it, with `hit_tokens` found in the cache.

        A preempted request may find tokens that it generated itself; only those of its prompt are counted as reused.
        """
        if hit_tokens > self.prompt_tokens:
            hit_tokens = self.prompt_tokens
        if self.admitted:
            self.note_wait(now_ms)
        else:
            self.first_admit_ms = now_ms
            self.hit_tokens = hit_tokens
            self.queued_ms += now_ms - self.marker_ms
            self.marker_ms = now_ms
        if hit_tokens > self.reused_tokens:
            self.reused_tokens = hit_tokens

    def note_wait(self, until_ms: float) -> None:
        """It did nothing up to until_ms."""
        if until_ms > self.cancelled_ms:
            until_ms = self.cancelled_ms
        waited_ms = until_ms - self.marker_ms
        if not self.admitted:
            self.queued_ms += waited_ms
        elif self.recovering:
            self.preempted_ms += waited_ms
        else:
            self.stalled_ms += waited_ms
        self.marker_ms = until_ms

    def note_chunk(self, start_ms: float, end_ms: float) -> None:
        """A pass from start_ms to end_ms computed a chunk of it, up to `computed`."""
        if self.marker_ms != start_ms:
            self.note_wait(start_ms)
        if end_ms > self.cancelled_ms:
            end_ms = self.cancelled_ms
            if start_ms > end_ms:  # the pass had been decided before
                start_ms = end_ms
        if self.recovering:
            self.preempted_ms += end_ms - start_ms
            self.recovering = self.computed < self.lost
        else:
            self.prefill_ms += end_ms - start_ms
        self.marker_ms = end_ms

    def note_transfer(self, until_ms: float) -> None:
        """It waited for a transfer of KV up to until_ms."""
        if until_ms > self.cancelled_ms:
            until_ms = self.cancelled_ms
        self.transfer_ms += until_ms - self.marker_ms
        self.marker_ms = until_ms

    def note_decodes(self, until_ms: float) -> None:
        """It decoded in every pass up to until_ms."""
        if until_ms > self.cancelled_ms:
            until_ms = self.cancelled_ms
        self.decode_ms += until_ms - self.marker_ms
        self.marker_ms = until_ms

    def note_preemption(self, now_ms: float) -> None:
        """A pass that starts now takes its blocks. Its tokens must be up to date."""
        self.note_wait(now_ms)
        self.preemptions += 1
        if not self.recovering:
            self.recovering = True
            self.lost = 0
        # the last token emitted was never computed, but the next one needs it
        lost = self.prompt_tokens + self.output_tokens if self.output_tokens else self.computed
        if lost > self.lost:
            self.lost = lost

    def note_tokens(self, first_pass: int, last_pass: int, end_ms: float) -> None:
        """It emitted one token in each pass of [first_pass, last_pass]; the last one ended at end_ms."""
        if end_ms > self.cancelled_ms:  # nobody was there to receive the last one
            last_pass -= 1
            if last_pass < first_pass:
                return
        if self.first_pass < 0:
            self.first_pass = first_pass
        elif first_pass != self.last_pass + 1:
            self.note_break(self.last_pass, first_pass)
        self.last_pass = last_pass

    def note_break(self, before: int, after: int) -> None:
        """It emitted nothing between two passes."""
        if self.break_before is NO_BREAKS:
            self.break_before = array("q")
            self.break_after = array("q")
        self.break_before.append(before)
        self.break_after.append(after)
