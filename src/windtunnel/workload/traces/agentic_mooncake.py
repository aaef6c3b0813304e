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
from windtunnel.workload.traces.json_rows import DelayMs, HashIds, read_json_rows
from windtunnel.workload.traces.mooncake_fields import MooncakeFields, Stated, note_facts
from windtunnel.workload.traces.reading import CONTRADICTION, DUPLICATE_ID, BadRowError, ReadOptions, refuse
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder
from windtunnel.workload.traces.token_ids import TokenTree

BLOCK_SIZE = 512


class AgenticRow(MooncakeFields, gc=False, kw_only=True):
    """A row; what replay does not use (branches, request_kind, prefix_reset, tool_events) is unread."""

    request_id: str
    hash_ids: HashIds
    tool_wait_ms: DelayMs | None = None
    wait_for: list[str] = msgspec.field(default_factory=list)


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
        self._stated: list[Stated] = []
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
        stated = Stated(row, self._options)
        if not row.wait_for and (stated.delay or row.tool_wait_ms):
            field = "delay" if stated.delay else "tool_wait_ms"
            message = "has no effect on a row without wait_for: it is sent at its timestamp"
            raise BadRowError(message, kind=CONTRADICTION, field=field)
        self._ids.add(row.request_id)
        self._rows.append(row)
        self._stated.append(stated)
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
            try:
                prompts[place] = blocks.prompt(row.hash_ids, self._stated[place].input_tokens)
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
            stated = self._stated[place]
            timestamp_ms = stated.timestamp or 0.0
            timestamps_ms.append(timestamp_ms)
            delay_ms = (stated.delay or 0.0) + (row.tool_wait_ms or 0.0)
            request = sessions.add(
                prompts[place],
                stated.output_tokens,
                session_name=row.session_id,
                request_id=row.request_id,
                time_ms=delay_ms if row.wait_for else timestamp_ms,
                after=[numbers[name] for name in row.wait_for],
            )
            note_facts(sessions.workload, request, row, outputs)
            options.loading.without_output += not stated.states_output
        sessions.workload.origin_ms = min(timestamps_ms[1:], default=0.0)
        return sessions.workload

    def _refuse(self, place: int, error: InputError) -> None:
        path, line = self._places[place]
        refuse(error, self._options, path, line)
