"""A request that verifies drafts, and what one pass computes of it. It decides nothing."""

from __future__ import annotations

from array import array

import numpy as np

from windtunnel.engine.acceptance import NOTHING_DRAWN, VERIFICATIONS, Acceptance, CountArray
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content

NOTHING_ACCEPTED: CountArray = np.zeros(0, dtype=np.uint16)


class SpeculativeRequest(EngineRequest):
    """A request that speculates.

    `computed` counts drafts as accepted until their output is processed, and `output_tokens` is what its client has.
    While it is in a group (`decoding`) both lag behind, and so does everything below but what was drawn.

    Attributes:
        known_tokens: prompt and output as far as the scheduler has processed it.
        drafts: drafts that wait to be verified.
        in_flight: tokens scheduled whose output is not processed.
        pending: tokens that this output is taken to add.
        stale: tokens in flight that were scheduled before a preemption.
        verifications: passes that verified drafts of it.
        accepted: drafts that its first, second, ... verification accepts if none lacks, as far as it was drawn.
        lengths: tokens that its first 0, 1, 2, ... verifications yield if none lacks a draft, as far as it was drawn.
        is_prefill: its last pass computed a chunk that did not reach its end.
        decoded_ms: end of the last of its passes that decoded, none of which is in the accounts yet after `marker_ms`.
        group_start: while in a group, the position where the first pass in it starts; group_base: what is to be added
            to an entry of `lengths` for the position that a pass reaches.
    """

    __slots__ = (
        "accepted",
        "decoded_ms",
        "drafts",
        "group_base",
        "group_start",
        "in_flight",
        "is_prefill",
        "known_tokens",
        "lengths",
        "pending",
        "stale",
        "verifications",
    )

    def __init__(
        self, number: int, content: Content, prompt_tokens: int, max_output_tokens: int, arrival_ms: float
    ) -> None:
        super().__init__(number, content, prompt_tokens, max_output_tokens, arrival_ms)
        self.known_tokens = prompt_tokens
        self.drafts = 0
        self.in_flight = 0
        self.pending = 0
        self.stale = 0
        self.verifications = 0
        self.lengths = NOTHING_DRAWN
        self.accepted = NOTHING_ACCEPTED
        self.is_prefill = False
        self.decoded_ms = 0.0
        self.group_start = 0
        self.group_base = 0
        self.burst_extra = array("H")

    def draw(self, acceptance: Acceptance) -> None:
        """Know the verifications up to the one that yields its last token."""
        lengths = self.lengths
        needed = self.max_output_tokens - self.output_tokens + lengths.item(self.verifications)
        while (known := lengths.item(-1)) < needed:
            accepted, more = acceptance.block(self.number, len(self.accepted) // VERIFICATIONS)
            if known:
                accepted = np.concatenate((self.accepted, accepted))
                more = np.concatenate((lengths, more[1:] + known))
            self.accepted = accepted
            self.lengths = lengths = more

    def length(self, acceptance: Acceptance) -> int:
        """Tokens of its next verification if it lacks no draft."""
        at = self.verifications
        if at >= len(self.accepted):
            self.draw(acceptance)
        return 1 + self.accepted.item(at)

    def note_decoded(self) -> None:
        """Account for the passes that decoded, up to the last of them."""
        if self.decoded_ms > self.marker_ms:
            self.note_decodes(self.decoded_ms)


class Row:
    """What a pass computes of one request, and what comes of it.

    Attributes:
        start, tokens: where it starts, and how much; drafts: how many of the tokens are drafts.
        is_admission: it was admitted in this pass, so that its drafts are mere padding.
        samples: it yields a token; emitted: how many, accepted: of them drafts.
        is_last: with them the request is done.
    """

    __slots__ = ("accepted", "drafts", "emitted", "is_admission", "is_last", "request", "samples", "start", "tokens")

    def __init__(self, request: SpeculativeRequest, tokens: int, drafts: int, is_admission: bool) -> None:
        self.request = request
        self.start = 0
        self.tokens = tokens
        self.drafts = drafts
        self.is_admission = is_admission
        self.samples = False
        self.emitted = 0
        self.accepted = 0
        self.is_last = False
