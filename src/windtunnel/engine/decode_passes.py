"""Which passes of an engine decode, for requests that are not touched while they do.

An engine that runs prompts and decodes in passes of their own leaves all its decoding requests out of a prompt's
pass at once. This file notes such passes once for the whole engine; a request that stops decoding reads from it
which passes emitted its tokens and how long others made it wait. It decides nothing.
"""

from __future__ import annotations

from array import array

from windtunnel.engine.request import EngineRequest


class DecodePasses:
    """The passes that decode, as the gaps between them.

    Attributes:
        last: number of the last pass that decodes, -1 before the first.
        left_out_ms: total duration of the passes so far that decode nothing.
    """

    __slots__ = ("_gap_after", "_gap_before", "last", "left_out_ms")

    def __init__(self) -> None:
        self.last = -1
        self.left_out_ms = 0.0
        self._gap_before = array("q")  # per gap, the last pass before it and the first after it
        self._gap_after = array("q")

    @property
    def num_gaps(self) -> int:
        return len(self._gap_after)

    def add(self, first: int, last: int) -> None:
        """Passes [first, last] decode; they come after all that were added before."""
        if first != self.last + 1:
            self._gap_before.append(self.last)
            self._gap_after.append(first)
        self.last = last

    def forget_gaps(self) -> None:
        """Drop all gaps: nobody decodes, so nobody will ask for them."""
        del self._gap_before[:]
        del self._gap_after[:]

    def note_decodes(
        self, request: EngineRequest, first_gap: int, left_out_before_ms: float, known: int, end_ms: float
    ) -> None:
        """Write the tokens and the time of a request that has decoded since `emitting_from`, up to a known pass.

        Args:
            first_gap: number of gaps when it began; left_out_before_ms: `left_out_ms` after its first token.
            known: number of the last pass whose result is known; end_ms: when that ended.
        """
        last = self.last
        gaps = len(self._gap_after)
        while last > known:  # in flight
            last, gaps = self._before(last, gaps)
        idle_at_end = last != known  # the known pass left it out
        if end_ms > request.cancelled_ms and not idle_at_end:  # nobody was there to receive the last token
            last, gaps = self._before(last, gaps)
        self._note_tokens(request, first_gap, last, gaps)
        until_ms = end_ms
        left_out_ms = self.left_out_ms - left_out_before_ms
        if end_ms > request.cancelled_ms:
            until_ms = request.cancelled_ms
            if idle_at_end:
                left_out_ms -= end_ms - until_ms
        span_ms = until_ms - request.marker_ms
        # rounding aside, it is only out of bounds if the known pass was the one of its own prompt
        left_out_ms = min(max(left_out_ms, 0.0), span_ms)
        request.stalled_ms += left_out_ms
        request.decode_ms += span_ms - left_out_ms
        request.marker_ms = until_ms

    def _before(self, last: int, gaps: int) -> tuple[int, int]:
        """The pass that decodes before pass `last`, and the number of gaps before that; `gaps` are before `last`."""
        if gaps and self._gap_after[gaps - 1] == last:
            return self._gap_before[gaps - 1], gaps - 1
        return last - 1, gaps

    def _note_tokens(self, request: EngineRequest, first_gap: int, last: int, gaps: int) -> None:
        first = request.emitting_from
        if first_gap < gaps and self._gap_before[first_gap] == first - 1:  # it waited before it first decoded
            first = self._gap_after[first_gap]
            first_gap += 1
        if first > last:
            return
        if request.first_pass < 0:
            request.first_pass = first
        elif first != request.last_pass + 1:
            request.note_break(request.last_pass, first)
        for gap in range(first_gap, gaps):
            request.note_break(self._gap_before[gap], self._gap_after[gap])
        request.last_pass = last
