"""The `agentic-mooncake` trace format: Mooncake rows with names that wait for each other.

A row without `wait_for` is sent at its timestamp (none: 0); any other when all it waits for have ended, and delay and
tool_wait_ms have passed since. Sessions are labels. The clock begins at the smallest timestamp of all rows, those that
wait included. Hash ids must be exactly as many as the prompt has blocks. `branches` name requests that begin when this
one does something else: the row that they are in does not wait for them, their own `wait_for` says when they are
sent. Source: the public replayer of Dynamo, lib/data-gen/src/mooncake.rs (AgenticMooncakeRow).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.dependencies import usable_rows
from windtunnel.workload.traces.hash_blocks import HashBlocks
from windtunnel.workload.traces.json_rows import (
    DelayMs,
    HashIds,
    InputTokens,
    OutputTokens,
    Signed32,
    TimeMs,
    TokenIds,
    Unsigned32,
    either,
    read_json_rows,
    required_output,
)
from windtunnel.workload.traces.reading import CONTRADICTION, DUPLICATE_ID, BadRowError, ReadOptions, refuse
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder
from windtunnel.workload.traces.token_ids import TokenTree
from windtunnel.workload.urgency import NO_URGENCY, urgency_of

BLOCK_SIZE = 512


class AgenticRow(msgspec.Struct, gc=False):
    """The fields of a row; what replay does not use (branches, request_kind, prefix_reset, tool_events) is unread."""

    request_id: str
    hash_ids: HashIds
    session_id: str | None = None
    input_length: InputTokens | None = None
    input_tokens: InputTokens | None = None
    output_length: OutputTokens | None = None
    output_tokens: OutputTokens | None = None
    timestamp: TimeMs | None = None
    created_time: TimeMs | None = None
    delay: DelayMs | None = None
    delay_ms: DelayMs | None = None
    tool_wait_ms: DelayMs | None = None
    wait_for: list[str] = []
    output_token_ids: TokenIds | None = None
    priority: Signed32 | None = None
    strict_priority: Unsigned32 | None = None
    policy_class: str | None = None


class AgenticMooncake:
    """Reader of the format."""

    name = "agentic-mooncake"
    aliases: tuple[str, ...] = ("agentic_mooncake",)
    row = "a row of mooncake with request_id and wait_for"
    block_size: int | None = BLOCK_SIZE
    options = frozenset(("block_size", "on_hash_mismatch", "missing_output_tokens"))
    fields = frozenset(AgenticRow.__struct_fields__)

    def recognises(self, head: Head) -> bool:
        own = {"wait_for", "tool_wait_ms", "branches", "request_kind"}
        return head.first.startswith(b"{") and {"request_id", "hash_ids"} <= head.names and bool(own & head.names)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        graph = Graph(", ".join(paths), options, options.block_size or BLOCK_SIZE)
        read_json_rows(paths, options, AgenticRow, self.row, graph.add, place=graph.begin_row)
        return graph.build()


class Graph:
    """Collects rows, then makes requests of those that can be sent."""

    def __init__(self, source: str, options: ReadOptions, block_size: int) -> None:
        self._source = source
        self._options = options
        self._block_size = block_size
        self._rows: list[AgenticRow] = []
        self._places: list[tuple[str, int]] = []  # file and line of each row
        self._ids: set[str] = set()
        self._place = ("", 0)

    def begin_row(self, path: str, line: int) -> None:
        """The next row is this one."""
        self._place = (path, line)

    def add(self, row: AgenticRow) -> None:
        """Keep a row.

        Raises:
            BadRowError: it contradicts itself, or has the name of another.
        """
        if not row.request_id:
            raise BadRowError("is empty, expected a name", field="request_id")
        if row.request_id in self._ids:
            message = f"duplicate request_id {row.request_id!r}, expected a new one"
            raise BadRowError(message, kind=DUPLICATE_ID, field="request_id")
        either(row.input_length, row.input_tokens, "input_length", "input_tokens")
        output = either(row.output_length, row.output_tokens, "output_length", "output_tokens")
        either(row.timestamp, row.created_time, "timestamp", "created_time")
        delay = either(row.delay, row.delay_ms, "delay", "delay_ms")
        output = required_output(output, self._options)
        if row.output_token_ids is not None and len(row.output_token_ids) != output:
            raise BadRowError(
                f"found {len(row.output_token_ids)} ids for an output_length of {output}, expected as many",
                kind=CONTRADICTION,
                field="output_token_ids",
            )
        if not row.wait_for and (delay or row.tool_wait_ms):
            field = "delay" if delay else "tool_wait_ms"
            message = "has no effect on a row without wait_for: it is sent at its timestamp"
            raise BadRowError(message, kind=CONTRADICTION, field=field)
        self._ids.add(row.request_id)
        self._rows.append(row)
        self._places.append(self._place)

    def build(self) -> Workload:
        """The workload of all rows that were kept and can be sent.

        Raises:
            InputError: a row cannot be sent, or has the wrong number of hash ids, and bad rows are errors.
        """
        options = self._options
        sessions = SessionBuilder(self._source)
        blocks = HashBlocks(self._block_size, options, exact=True)
        prompts = {}
        for place, row in enumerate(self._rows):
            length = row.input_length if row.input_length is not None else row.input_tokens
            try:
                prompts[place] = blocks.prompt(row.hash_ids, length)
            except BadRowError as error:
                self._refuse(place, error)
        kept = list(prompts)
        usable = usable_rows(
            [self._rows[place].request_id for place in kept],
            [self._rows[place].wait_for for place in kept],
            lambda number, error: self._refuse(kept[number], error),
        )
        numbers = {self._rows[kept[place]].request_id: number for number, place in enumerate(usable)}
        outputs = TokenTree()
        timestamps_ms = [0.0]
        for place in (kept[number] for number in usable):
            row = self._rows[place]
            timestamp_ms = (row.timestamp if row.timestamp is not None else row.created_time) or 0.0
            timestamps_ms.append(timestamp_ms)
            output = row.output_length if row.output_length is not None else row.output_tokens
            delay_ms = (row.delay or row.delay_ms or 0.0) + (row.tool_wait_ms or 0.0)
            request = sessions.add(
                prompts[place],
                required_output(output, options),
                session_name=row.session_id,
                request_id=row.request_id,
                time_ms=delay_ms if row.wait_for else timestamp_ms,
                after=[numbers[name] for name in row.wait_for],
            )
            if row.output_token_ids:
                sessions.workload.plan(request, outputs.output((), row.output_token_ids, request))
            if row.priority:
                sessions.workload.priorities[request] = row.priority
            options.loading.without_output += output is None
            urgency = urgency_of(row.priority, row.strict_priority, row.policy_class)
            if urgency is not NO_URGENCY:
                sessions.workload.urgency[request] = urgency
        sessions.workload.origin_ms = min(timestamps_ms[1:], default=0.0)
        return sessions.workload

    def _refuse(self, place: int, error: InputError) -> None:
        path, line = self._places[place]
        refuse(error, self._options, path, line)
