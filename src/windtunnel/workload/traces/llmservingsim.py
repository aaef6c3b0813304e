"""The `llmservingsim` trace format: JSON lines of LLMServingSim workloads, flat requests and agentic sessions.

Times are in nanoseconds. Token ids, where a row has them, become content that shares exactly the real prefixes; prompts
without ids are unique. The sub-requests of a session are turns: each follows the end of the one before it after that
one's tool duration. Source: casys-kaist/LLMServingSim, workloads/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.json_rows import InputTokens, OutputTokens, TimeNs, TokenIds, read_json_rows
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import CONTRADICTION, DUPLICATE_ID, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder
from windtunnel.workload.traces.token_ids import TokenTree


class SubRequest(msgspec.Struct, gc=False):
    """One request of a session."""

    input_toks: InputTokens
    output_toks: OutputTokens
    tool_duration_ns: TimeNs = 0
    input_tok_ids: TokenIds | None = None
    output_tok_ids: TokenIds | None = None


class LlmServingSimRow(msgspec.Struct, gc=False):
    """A flat request, or a session of sub-requests."""

    arrival_time_ns: TimeNs
    input_toks: InputTokens | None = None
    output_toks: OutputTokens | None = None
    input_tok_ids: TokenIds | None = None
    output_tok_ids: TokenIds | None = None
    session_id: str | None = None
    sub_requests: list[SubRequest] | None = None


class LlmServingSim:
    """Reader of the format."""

    name = "llmservingsim"
    aliases: tuple[str, ...] = ("llm-serving-sim",)
    row = "a JSON object with arrival_time_ns, and input_toks and output_toks or sub_requests"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset((*LlmServingSimRow.__struct_fields__, *SubRequest.__struct_fields__))

    def recognises(self, head: Head) -> bool:
        return head.is_json and ("input_toks" in head.names or "sub_requests" in head.names)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`. Times count from the first row."""
        builder = _Builder(", ".join(paths))
        read_json_rows(paths, options, LlmServingSimRow, self.row, builder.add)
        return builder.sessions.workload


class _Builder:
    def __init__(self, source: str) -> None:
        self.sessions = SessionBuilder(source)
        self._tree = TokenTree()
        self._first_ns: int | None = None

    def add(self, row: LlmServingSimRow) -> None:
        name = row.session_id
        if row.sub_requests is None:
            if row.input_toks is None or row.output_toks is None:
                missing = "input_toks" if row.input_toks is None else "output_toks"
                raise BadRowError("missing, expected a number of tokens, or sub_requests", field=missing)
            turns = [SubRequest(row.input_toks, row.output_toks, 0, row.input_tok_ids, row.output_tok_ids)]
            name = None
        else:
            turns = row.sub_requests
            if not turns:
                raise BadRowError("found none, expected at least one", field="sub_requests")
            if self.sessions.session_of(name) is not None:
                raise BadRowError(f"found {name!r} again, expected a new one", kind=DUPLICATE_ID, field="session_id")
        for place, turn in enumerate(turns):
            _check_ids(turn, "" if row.sub_requests is None else f"sub_requests[{place}].")
        if self._first_ns is None:
            self._first_ns = row.arrival_time_ns
        time_ms = (row.arrival_time_ns - self._first_ns) / 1e6  # of integers: exact, whatever epoch they count from
        session: int | None = None
        for turn in turns:
            workload = self.sessions.workload
            if session is None:
                request = self.sessions.add(self._prompt(turn), turn.output_toks, session_name=name, time_ms=time_ms)
                session = workload.session[request]
            else:
                request = workload.add(self._prompt(turn), turn.output_toks, session=session, time_ms=time_ms)
            time_ms = turn.tool_duration_ns / 1e6
            if turn.input_tok_ids and turn.output_tok_ids:
                workload.plan(request, self._tree.output(turn.input_tok_ids, turn.output_tok_ids, request))

    def _prompt(self, turn: SubRequest) -> list[Run]:
        if turn.input_tok_ids:
            return self._tree.prompt(turn.input_tok_ids)
        return unique_prompt(1 + self.sessions.workload.num_requests, turn.input_toks)  # 0 is for token ids


def _check_ids(turn: SubRequest, prefix: str) -> None:
    for ids, tokens, field in (
        (turn.input_tok_ids, turn.input_toks, "input_tok_ids"),
        (turn.output_tok_ids, turn.output_toks, "output_tok_ids"),
    ):
        if ids and len(ids) != tokens:
            length = field.replace("_tok_ids", "_toks")
            message = f"found {len(ids)} ids for {length} of {tokens}, expected as many"
            raise BadRowError(message, kind=CONTRADICTION, field=prefix + field)
