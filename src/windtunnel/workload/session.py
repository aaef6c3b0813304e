"""A workload in columns: requests, grouped into sessions of turns.

A session sends its first turn at an arrival time and each later turn a delay after the turn before it has
ended (closed loop). Requests are numbered in the order they were added, sessions in the order they were
first seen; these numbers break ties at equal times everywhere. One request costs a few words here, whatever
its length; its `Content` is built when it is sent and dropped when it is done.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from windtunnel.workload.content import Content, Run


class Workload:
    """Requests to send. Build one with `add`; readers (traces, synthetic load) do exactly that.

    Attributes (columns, one entry a request unless said otherwise):
        input_tokens, output_tokens: prompt length and requested output length.
        session, turn: number of its session, and its place in it (0-based).
        next_turn: request that follows in the same session, -1 for the last turn.
        time_ms: for a first turn the arrival time, NaN where the source had none; else the delay after the
            end of the turn before.
        first_turn, last_turn: per session, request number.
        request_ids, session_ids: names from the source, empty lists when it has none.
        source: what the workload was read from, for reports.
    """

    def __init__(self, source: str = "python") -> None:
        self.source = source
        self.input_tokens = array("q")
        self.output_tokens = array("q")
        self.session = array("q")
        self.turn = array("q")
        self.next_turn = array("q")
        self.time_ms = array("d")
        self.first_turn = array("q")
        self.last_turn = array("q")
        self.request_ids: list[str] = []
        self.session_ids: list[str] = []
        self._runs_end = array("q")  # per request: end of its slice of the three run columns, which are as in Content
        self._run_origin = array("q")
        self._run_delta = array("q")
        self._run_end = array("q")
        self._quotes = False  # whether any prompt names an output

    @property
    def num_requests(self) -> int:
        return len(self.input_tokens)

    @property
    def num_sessions(self) -> int:
        return len(self.first_turn)

    @property
    def has_turns(self) -> bool:
        """Whether any session has more than one turn."""
        return self.num_requests > self.num_sessions

    def add(
        self,
        runs: Sequence[Run],
        output_tokens: int,
        *,
        session: int | None = None,
        time_ms: float = float("nan"),
    ) -> int:
        """Append a request and return its number.

        Args:
            runs: the prompt; its total length must be at least one token.
            output_tokens: tokens to generate, 0 or more.
            session: number of an existing session to append a turn to; None starts a new session.
            time_ms: arrival of a first turn (NaN: not stated), else delay after the previous turn.
        """
        request = len(self.input_tokens)
        content = Content(runs)
        self._run_origin.extend(content.origins)
        self._run_delta.extend(content.deltas)
        self._run_end.extend(content.ends)
        self._runs_end.append(len(self._run_origin))
        if content.sources:
            self._quotes = True
        self.input_tokens.append(content.length)
        self.output_tokens.append(output_tokens)
        self.next_turn.append(-1)
        self.time_ms.append(time_ms)
        if session is None:
            self.session.append(len(self.first_turn))
            self.turn.append(0)
            self.first_turn.append(request)
            self.last_turn.append(request)
        else:
            before = self.last_turn[session]
            self.session.append(session)
            self.turn.append(self.turn[before] + 1)
            self.next_turn[before] = request
            self.last_turn[session] = request
        return request

    def content(self, request: int, output_tokens: int) -> Content:
        """The prompt, then the `output_tokens` tokens that the request will generate."""
        first = self._runs_end[request - 1] if request else 0
        end = self._runs_end[request]
        content = Content(())
        content.origins = self._run_origin[first:end].tolist()
        content.deltas = self._run_delta[first:end].tolist()
        content.ends = self._run_end[first:end].tolist()
        content.length = self.input_tokens[request]
        if self._quotes:
            content.find_sources()
        content.append_output(request, output_tokens)
        return content

    def prompt_runs(self, request: int) -> list[Run]:
        """The prompt of a request as (origin, start, length)."""
        return self.content(request, 0).runs()

    def request_id(self, request: int) -> str:
        """The source's name for a request, else its number."""
        return self.request_ids[request] if self.request_ids else str(request)
