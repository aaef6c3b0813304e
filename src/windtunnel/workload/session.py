"""A workload in columns: requests, grouped into sessions of turns.

A session sends its first turn at an arrival time and each later turn a delay after the turn before it has
ended (closed loop); a request with dependencies is sent a delay after the last of them has ended, whatever its
session. Requests are numbered in the order they were added, sessions in the order they were first seen; these
numbers break ties at equal times everywhere. One request costs a few words here, whatever its length; its `Content`
is built when it is sent and dropped when it is done.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from windtunnel.disk_columns import NEVER, DiskColumn, first_row_on_disk, give_back
from windtunnel.errors import InputError
from windtunnel.workload.closed_loop import ClosedLoop
from windtunnel.workload.content import NO_SOURCES, Content, Run, quoted_outputs
from windtunnel.workload.loading import Loading, ObservedLengths
from windtunnel.workload.planned_outputs import PlannedOutputs
from windtunnel.workload.urgency import Urgency

MAX_TOKENS = 2**31  # of a prompt or an output: far above any model, far below where sums lose exactness
MAX_TIME_MS = 2.0**53  # beyond, milliseconds are no longer told apart

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]


_COLUMNS = (
    *("input_tokens", "output_tokens", "session", "turn", "next_turn", "time_ms", "first_turn", "last_turn"),
    *("_runs_end", "_run_origin", "_run_delta", "_run_end"),
)


class Workload:
    """Requests to send. Build one with `add`; readers (traces, synthetic load) do exactly that.

    Columns of very many requests live on disk (`disk_columns`), and only what is in use of them in memory.

    Attributes (columns, one entry a request unless said otherwise):
        input_tokens, output_tokens: prompt length and requested output length.
        session, turn: number of its session, and its place in it (0-based).
        next_turn: request that follows in the same session, -1 for the last turn and for what has dependencies.
        time_ms: for a root the arrival time, NaN where the source had none; else the delay after the end of the turn
            before, or of the last dependency.
        first_turn, last_turn: per session, request number.
        dependencies: by request number, the requests that must have ended before it is sent. A request that is in
            here is no turn of a chain, its session is a mere label; with an empty tuple it is a root.
        priorities: of the requests that have one other than 0, by number; larger is more urgent.
        request_ids, session_ids: names from the source, empty lists when it has none.
        source: what the workload was read from, for reports.
        origin_ms: time on the clock of the source that is to be zero; None: the earliest arrival of a root.
        accumulates: whether prompts hold what was generated, however short that was; else a prompt that quotes an
            output holds those tokens whatever became of the request.
        needs_concurrency: why it can only be sent in a closed loop, "" if it can be sent at its arrival times.
        urgency: of the requests that are not as urgent as any other.
        planned: outputs that are known to be, or begin, alike; None if all that is generated is private.
        loading: what became of the rows of the files it was read from; None for a load that was not read.
        observed_lengths: by file, how many rows of it lengths are drawn from.
        class_names: classes of clients, in the order of their sessions; empty for a load that has none.
        class_ends: per class, the number of the first session after its own.
        closed_loops: sessions that are sent in closed loops of their own, whatever `time_ms` says of them.
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
        self.dependencies: dict[int, tuple[int, ...]] = {}
        self.priorities: dict[int, int] = {}
        self.request_ids: list[str] = []
        self.session_ids: list[str] = []
        self.origin_ms: float | None = None
        self.accumulates = False
        self.needs_concurrency = ""
        self.urgency: dict[int, Urgency] = {}
        self.planned: PlannedOutputs | None = None
        self.loading: Loading | None = None
        self.observed_lengths: dict[str, ObservedLengths] = {}
        self.class_names: list[str] = []
        self.class_ends = array("q")
        self.closed_loops: list[ClosedLoop] = []
        self._runs_end = array("q")  # per request: end of its slice of the three run columns, which are as in Content
        self._run_origin = array("q")
        self._run_delta = array("q")
        self._run_end = array("q")
        self._quotes = False  # whether any prompt names an output
        self._generated: dict[int, int] = {}  # output tokens of requests that generated fewer than were asked for
        self._disk: dict[str, DiskColumn] = {}  # columns that are on disk, by name
        self._make_room_at = first_row_on_disk()  # number of requests at which columns have to be made to grow

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

    def end_class(self, name: str) -> None:
        """The sessions added since the last class ended, or since the beginning, are the class `name`."""
        self.class_names.append(name)
        self.class_ends.append(self.num_sessions)

    def class_of_requests(self, rows: slice | IntColumn = slice(None)) -> IntColumn:
        """The number of the class of each request, or of those in some rows; that of sessions after the last class is
        the number of classes."""
        sessions = np.asarray(self.session, dtype=np.int64)[rows]
        return np.searchsorted(np.asarray(self.class_ends), sessions, side="right").astype(np.int64)

    @property
    def has_only_roots(self) -> bool:
        """Whether every request has an arrival time of its own, so that roots and requests are the same."""
        return not self.dependencies and not self.has_turns

    def roots(self) -> IntColumn:
        """Numbers of the requests that have an arrival time of their own, ascending."""
        if not self.dependencies:
            return np.array(self.first_turn, dtype=np.int64)
        waits = self.dependencies
        return np.array([r for r, turn in enumerate(self.turn) if not waits.get(r, turn)], dtype=np.int64)

    def add(
        self,
        runs: Sequence[Run],
        output_tokens: int,
        *,
        session: int | None = None,
        time_ms: float = float("nan"),
        after: Sequence[int] | None = None,
    ) -> int:
        """Append a request and return its number.

        Args:
            runs: the prompt; its total length must be at least one token, not counting outputs that it quotes.
            output_tokens: tokens to generate, 0 or more.
            session: number of an existing session to append a turn to; None starts a new session.
            time_ms: arrival of a root (NaN: not stated), else delay after the previous turn or the dependencies.
            after: the requests that it waits for, by number (which may be those of later ones), instead of for the
                previous turn. None waits for that turn; an empty sequence makes a root.

        Raises:
            InputError: a length or a time that no request can have, or a session that does not exist.
        """
        request = len(self.input_tokens)
        if request >= self._make_room_at:
            self._make_room()
        content = Content.of(runs)
        if not (
            0 <= output_tokens <= MAX_TOKENS
            and 0 < content.length <= MAX_TOKENS
            and (time_ms != time_ms or -MAX_TIME_MS <= time_ms <= MAX_TIME_MS)
            and (session is None or (0 <= session < len(self.first_turn) and (after is not None or not time_ms < 0.0)))
        ):
            raise _unusable(request, content.length, output_tokens, time_ms, session, len(self.first_turn))
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
            if after is None:
                self.next_turn[before] = request
            self.last_turn[session] = request
        if after is not None:
            self.dependencies[request] = tuple(dict.fromkeys(after))
        return request

    def extend(
        self,
        input_tokens: IntColumn,
        output_tokens: IntColumn,
        time_ms: FloatColumn,
        num_runs: IntColumn,
        runs: tuple[IntColumn, IntColumn, IntColumn],
    ) -> None:
        """Append many sessions of one turn: what `add` would do for each, from columns.

        Args:
            input_tokens, output_tokens, time_ms: one entry a request.
            num_runs: runs of each prompt.
            runs: origins, deltas and ends of all runs in order, in the canonical form of `Content`.

        Raises:
            InputError: a prompt or an output is longer than any request's can be.
        """
        for lengths in (input_tokens, output_tokens):
            if lengths.max(initial=0) > MAX_TOKENS:
                place = int(lengths.argmax())
                longest = int(input_tokens[place]), int(output_tokens[place])
                raise _unusable(self.num_requests + place, *longest, 0.0, None, self.num_sessions)
        first = self.num_requests
        if first >= self._make_room_at:
            self._make_room()
        sessions = np.arange(self.num_sessions, self.num_sessions + len(input_tokens), dtype=np.int64)
        requests = np.arange(first, first + len(input_tokens), dtype=np.int64)
        self._runs_end.frombytes((np.cumsum(num_runs) + len(self._run_origin)).astype(np.int64).tobytes())
        for column, values in zip((self._run_origin, self._run_delta, self._run_end), runs, strict=True):
            column.frombytes(values.tobytes())
        self.input_tokens.frombytes(input_tokens.tobytes())
        self.output_tokens.frombytes(output_tokens.tobytes())
        self.time_ms.frombytes(time_ms.tobytes())
        self.session.frombytes(sessions.tobytes())
        self.turn.frombytes(bytes(8 * len(requests)))
        self.next_turn.frombytes(b"\xff" * (8 * len(requests)))  # -1
        self.first_turn.frombytes(requests.tobytes())
        self.last_turn.frombytes(requests.tobytes())

    def complete(self) -> None:
        """Make columns that are on disk as fast to read as those in memory; `add` is possible still."""
        for name, column in self._disk.items():
            if getattr(self, name) is column:
                setattr(self, name, column.mapped())
                self._make_room_at = 0

    def give_back(self) -> None:
        """Drop what memory holds of columns that are on disk; what is used again is read again."""
        if self._disk:
            for name in _COLUMNS:
                give_back(getattr(self, name))

    def _make_room(self) -> None:
        """Let the columns grow on disk."""
        if not self._disk:
            self._disk = {name: DiskColumn(getattr(self, name)) for name in _COLUMNS}
        for name, column in self._disk.items():
            setattr(self, name, column)
        self._make_room_at = NEVER

    def for_run(self) -> Workload:
        """A copy whose prompts may still change (`shorten`), which shares everything else with this one."""
        copied = copy(self)
        copied.input_tokens = array("q", self.input_tokens)
        copied._generated = {}
        return copied

    def shorten(self, request: int, output_tokens: int) -> None:
        """Note that a request generated fewer tokens than it was asked for; to be told before it is quoted."""
        self._generated[request] = output_tokens

    def settle(self, request: int) -> None:
        """Bring `input_tokens` of a request up to date with the outputs that it quotes."""
        if self._generated:
            self.input_tokens[request] = self.content(request, 0).length

    def content(self, request: int, output_tokens: int) -> Content:
        """The prompt, then the `output_tokens` tokens that the request will generate."""
        first = self._runs_end[request - 1] if request else 0
        end = self._runs_end[request]
        length = self.input_tokens[request]
        if end == first + 1:  # slices of arrays take longer
            origins, deltas, ends = [self._run_origin[first]], [self._run_delta[first]], [self._run_end[first]]
        else:
            origins = self._run_origin[first:end].tolist()
            deltas = self._run_delta[first:end].tolist()
            ends = self._run_end[first:end].tolist()
        sources = NO_SOURCES
        if self._quotes:
            if self._generated or self.planned is not None:
                prompt = Content(origins, deltas, ends, length, sources).runs()
                if self._generated:
                    prompt = [self._as_generated(run) for run in prompt]
                if self.planned is not None:
                    return self.planned.content(request, prompt, output_tokens)
                return Content.of(prompt, (-1 - request, 0, output_tokens))
            sources = quoted_outputs(origins)
        if output_tokens:
            origins.append(-1 - request)
            deltas.append(-length)
            length += output_tokens
            ends.append(length)
        return Content(origins, deltas, ends, length, sources)

    def prompt_runs(self, request: int) -> list[Run]:
        """The prompt of a request as (origin, start, length)."""
        return self.content(request, 0).runs()

    def stated_runs(self, request: int) -> list[Run]:
        """The prompt as it was added: outputs that it quotes are those of requests, whatever they will be."""
        first = self._runs_end[request - 1] if request else 0
        end = self._runs_end[request]
        columns = (self._run_origin[first:end], self._run_delta[first:end], self._run_end[first:end])
        origins, deltas, ends = (column.tolist() for column in columns)
        return Content(origins, deltas, ends, ends[-1], NO_SOURCES).runs()

    def plan(self, request: int, runs: Sequence[Run]) -> None:
        """State what a request generates, as content that quotes the outputs of others; see `PlannedOutputs.add`.

        An output that begins like no other stays private to its request.
        """
        if runs and runs[0][0] != -1 - request:
            self.share_outputs(self.planned or PlannedOutputs())
            assert self.planned is not None
            self.planned.add(request, runs, self.output_tokens)

    def share_outputs(self, planned: PlannedOutputs | None) -> None:
        """Take over plans of outputs."""
        self.planned = planned
        self._quotes = self._quotes or planned is not None

    def take_over(self, other: Workload, number: dict[int, int] | None = None) -> None:
        """What another workload says of single requests besides its columns: how urgent they are, what they generate.

        Args:
            number: of the requests of `other` that are here, theirs in this workload; None if all have kept theirs.
        """
        if number is None:
            number = {request: request for request in (*other.priorities, *other.urgency)}
            self.share_outputs(other.planned)
        elif other.planned is not None:
            self.share_outputs(other.planned.renumbered(number))
        self.priorities = {number[r]: priority for r, priority in other.priorities.items() if r in number}
        self.urgency = {number[r]: urgency for r, urgency in other.urgency.items() if r in number}

    def _as_generated(self, run: Run) -> Run:
        """A run of a prompt, no longer than the output it quotes."""
        origin, start, length = run
        generated = self._generated.get(-1 - origin) if origin < 0 else None
        return run if generated is None else (origin, start, min(length, max(0, generated - start)))

    def request_id(self, request: int) -> str:
        """The source's name for a request, else its number."""
        return self.request_ids[request] if self.request_ids else str(request)


def _unusable(
    request: int, input_tokens: int, output_tokens: int, time_ms: float, session: int | None, num_sessions: int
) -> InputError:
    """What is wrong with a request that cannot be added."""
    if not 0 < input_tokens <= MAX_TOKENS:
        field, message = "runs", f"found {input_tokens} prompt tokens, expected from 1 to {MAX_TOKENS}"
    elif not 0 <= output_tokens <= MAX_TOKENS:
        field, message = "output_tokens", f"found {output_tokens}, expected from 0 to {MAX_TOKENS}"
    elif session is not None and not 0 <= session < num_sessions:
        field, message = "session", f"found {session}, expected the number of one of {num_sessions} sessions"
    elif session is not None and -MAX_TIME_MS <= time_ms < 0.0:
        field, message = "time_ms", f"found {time_ms}, expected a delay of at least 0 after the turn before"
    else:
        field, message = "time_ms", f"found {time_ms}, expected at most {MAX_TIME_MS:.0f} ms, or NaN if not stated"
    return InputError(message, source=f"request {request}", field=field)
