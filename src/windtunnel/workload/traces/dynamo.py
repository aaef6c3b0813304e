"""The `dynamo` trace format: request traces v1 of NVIDIA Dynamo, one or several files of JSON lines.

Reads request_end events, and tool events where they tell which requests they stand between; the block size is embedded.
Without agent contexts every request is sent when it was received. With them, sessions are chains of requests with the
gaps between them (`dynamo_graph`). The clock begins at the first request. Source: the `dynamo.request.trace.v1` records
of Dynamo, lib/data-gen/src/request_trace/load.rs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.dynamo_graph import RequestSpan, ToolCall, wait_of_each
from windtunnel.workload.traces.hash_blocks import HashBlocks
from windtunnel.workload.traces.json_rows import HashIds, InputTokens, OutputTokens, explain
from windtunnel.workload.traces.reading import (
    CONTRADICTION,
    DUPLICATE_ID,
    NOT_A_ROW,
    BadRowError,
    ReadOptions,
    read_rows,
    refuse,
)
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder

SCHEMA = "dynamo.request.trace.v1"

_UnixMs = Annotated[int, msgspec.Meta(ge=0, lt=2**53, description="an integer of ms since 1970")]
_Milliseconds = Annotated[float, msgspec.Meta(ge=-9e15, le=9e15, description="a number of ms")]
_BlockSize = Annotated[int, msgspec.Meta(ge=1, le=2**20, description="an integer from 1 to 1048576")]


class Replay(msgspec.Struct, gc=False):
    """What is known of a prompt."""

    trace_block_size: _BlockSize
    input_length: InputTokens
    input_sequence_hashes: HashIds


class Request(msgspec.Struct, gc=False):
    """One finished request."""

    request_id: str
    request_received_ms: _UnixMs
    output_tokens: OutputTokens
    replay: Replay
    total_time_ms: _Milliseconds | None = None


class ToolCausality(msgspec.Struct, gc=False):
    """Which requests a tool call stands between, where the harness knew it."""

    source_request_id: str
    execution_mode: Literal["blocking", "background"]
    consumer_request_id: str | None = None
    child_session_id: str | None = None


class Tool(msgspec.Struct, gc=False):
    """One tool call; how long it ran is part of the gap between two requests."""

    claude: ToolCausality | None = None


class AgentContext(msgspec.Struct, gc=False):
    """The session that an event belongs to."""

    session_id: str
    parent_session_id: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event."""

    schema: Literal["dynamo.request.trace.v1"]
    event_type: str
    event_time_unix_ms: _UnixMs
    agent_context: AgentContext | None = None
    request: Request | None = None
    tool: Tool | None = None


class Envelope(msgspec.Struct, gc=False):
    """A line: an event, bare or wrapped."""

    event: Event


class EventKind(msgspec.Struct, gc=False):
    """As much of a line as decides how to read it."""

    event_type: str | None = None
    event: EventKind | None = None


class Dynamo:
    """Reader of the format."""

    name = "dynamo"
    aliases: tuple[str, ...] = ("dynamo-request-trace",)
    row = f"a JSON object with the schema {SCHEMA}"
    block_size: int | None = None
    options = frozenset(("block_size", "on_hash_mismatch"))
    fields = frozenset(
        name
        for struct in (Envelope, Event, AgentContext, Request, Replay, Tool, ToolCausality)
        for name in struct.__struct_fields__
    )

    def recognises(self, head: Head) -> bool:
        return head.first.startswith(b"{") and {"schema", "event_type"} <= head.names

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        trace = _Trace(", ".join(paths), options)
        read_rows(paths, options, trace.add_line, place=trace.begin_row)
        return trace.build()


class _Trace:
    def __init__(self, source: str, options: ReadOptions) -> None:
        self._source = source
        self._options = options
        self._decode_kind = msgspec.json.Decoder(EventKind).decode
        self._decode_bare = msgspec.json.Decoder(Event).decode
        self._decode_wrapped = msgspec.json.Decoder(Envelope).decode
        self._requests: list[tuple[RequestSpan, Request]] = []
        self._places: dict[str, tuple[str, int]] = {}  # by request id: file and line
        self._tools: list[ToolCall] = []
        self._place = ("", 0)
        self._has_contexts: bool | None = None

    def begin_row(self, path: str, line: int) -> None:
        self._place = (path, line)

    def add_line(self, text: bytes) -> None:
        """Keep what a line tells.

        Raises:
            BadRowError: the line is no event of this schema, or contradicts those before it.
        """
        try:
            kind = self._decode_kind(text)
            if "request_payload" in (kind.event_type, kind.event and kind.event.event_type):
                return
            event = self._decode_bare(text) if kind.event is None else self._decode_wrapped(text).event
        except (msgspec.DecodeError, RecursionError):
            is_wrapped = b'"event"' in text
            raise explain(text, Envelope if is_wrapped else Event, Dynamo.row) from None
        if event.event_type == "request_end":
            self._add_request(event)
        elif event.event_type in ("tool_end", "tool_error"):
            self._add_tool(event)
        elif event.event_type != "tool_start":
            message = f"found {event.event_type!r}, expected request_end, request_payload or a tool event"
            raise BadRowError(message, kind=NOT_A_ROW, field="event_type")

    def _add_request(self, event: Event) -> None:
        request = event.request
        if request is None:
            raise BadRowError("missing, expected what a request_end event is about", field="request")
        if request.request_id in self._places:
            message = f"duplicate request_id {request.request_id!r}, expected a new one"
            raise BadRowError(message, kind=DUPLICATE_ID, field="request.request_id")
        size = request.replay.trace_block_size
        asked = self._options.block_size
        if asked is not None and asked != size:
            message = f"found {size} in the trace, but {asked} was asked for: expected none, it is embedded"
            raise InputError(message, field="trace_block_size", source=self._place[0], line=self._place[1])
        if self._requests and size != self._requests[0][1].replay.trace_block_size:
            first = self._requests[0][1].replay.trace_block_size
            message = f"found {size} after {first}: mixed block sizes are not supported"
            raise BadRowError(message, kind=CONTRADICTION, field="request.replay.trace_block_size")
        has_context = event.agent_context is not None
        if self._has_contexts not in (None, has_context):
            message = "found on some requests only: expected it on all of them, or on none"
            raise BadRowError(message, kind=CONTRADICTION, field="agent_context")
        self._has_contexts = has_context
        start_ms = request.request_received_ms
        took_ms = request.total_time_ms
        if took_ms is None:
            end_ms = start_ms + max(0, event.event_time_unix_ms - start_ms)
        else:
            end_ms = start_ms + int(max(took_ms, 0.0) + 0.5)
        context = event.agent_context or AgentContext(request.request_id)
        span = RequestSpan(request.request_id, context.session_id, context.parent_session_id, start_ms, end_ms)
        self._places[request.request_id] = self._place
        self._requests.append((span, request))

    def _add_tool(self, event: Event) -> None:
        known = None if event.tool is None else event.tool.claude
        if known is not None and event.agent_context is not None:
            session = event.agent_context.session_id
            self._tools.append(
                ToolCall(session, known.source_request_id, known.consumer_request_id, known.child_session_id)
            )

    def build(self) -> Workload:
        """The workload of all requests, in the order of their starts."""
        options = self._options
        sessions = SessionBuilder(self._source)
        if not self._requests:
            if options.loading.skipped:
                return sessions.workload
            raise InputError("contains no request_end records", source=self._source)
        size = self._requests[0][1].replay.trace_block_size
        options.loading.block_size = size
        blocks = HashBlocks(size, options, exact=True)
        kept = []
        for span, request in self._requests:
            replay = request.replay
            try:
                runs = blocks.prompt(replay.input_sequence_hashes, replay.input_length, ids="input_sequence_hashes")
            except BadRowError as error:
                refuse(error, options, *self._places[span.request_id])
            else:
                kept.append((span, request.output_tokens, runs))
        kept.sort(key=lambda entry: (entry[0].start_ms, entry[0].end_ms, entry[0].request_id))
        if not kept:
            return sessions.workload
        first_ms = kept[0][0].start_ms
        if not self._has_contexts:
            for span, output, runs in kept:
                sessions.add(runs, output, request_id=span.request_id, time_ms=float(span.start_ms - first_ms))
            return sessions.workload
        waits = wait_of_each([span for span, _, _ in kept], self._tools, self._source)
        for (span, output, runs), wait in zip(kept, waits, strict=True):
            sessions.add(
                runs,
                output,
                session_name=span.session,
                request_id=span.request_id,
                time_ms=wait.delay_ms if wait.requests else float(span.start_ms - first_ms),
                after=wait.requests,
            )
        sessions.workload.origin_ms = 0.0
        return sessions.workload
