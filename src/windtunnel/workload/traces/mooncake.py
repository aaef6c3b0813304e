"""The `mooncake` trace format: JSON lines with lengths, block hash ids, and optional sessions.

Decides what a row means: its prompt as runs of content, its place in a session, its arrival or delay. It never moves
or scales times. Rules: the format's public releases (kvcache-ai/Mooncake) and the public replayer that added sessions
and delays to it, except that a row longer than its hash ids cover is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from windtunnel.errors import InputError
from windtunnel.workload.content import Run, output_origin
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.hash_blocks import HashBlocks
from windtunnel.workload.traces.json_rows import explain
from windtunnel.workload.traces.mooncake_fields import MooncakeFields, Stated, note_facts
from windtunnel.workload.traces.plain_rows import PlainRows
from windtunnel.workload.traces.reading import CONTRADICTION, BadRowError, ReadOptions, refuse
from windtunnel.workload.traces.rows import Head, blocks, require_utf8
from windtunnel.workload.traces.sessions import SessionBuilder
from windtunnel.workload.traces.token_ids import TokenTree

BLOCK_SIZE = 512


class MooncakeRow(MooncakeFields, gc=False):
    """A row of this format."""

    request_id: str | None = None
    wait_for: list[str] | None = None


OWN_NAMES = frozenset(("hash_ids", "input_length", "output_length"))
# Names in rows that other formats write with the same names of lengths and ids, but with other units or meanings.
FOREIGN_NAMES = frozenset(
    ("parent_chat_id", "wait_for", "img_ids", "input_sequence_hashes", "duration", "text", "texts", "turns")
)


class Mooncake:
    """Reader of the format."""

    name = "mooncake"
    aliases: tuple[str, ...] = ()
    row = "a JSON object with hash_ids, input_length and output_length"
    block_size: int | None = BLOCK_SIZE
    options = frozenset(("block_size", "on_hash_mismatch", "missing_output_tokens"))
    fields = frozenset(MooncakeRow.__struct_fields__) - {"wait_for"}
    accumulates = False  # whether a row holds only what its prompt adds to the session so far
    ms_per_unit = 1.0

    def recognises(self, head: Head) -> bool:
        """Whether it looks like an object with one of the format's own keys, even if it is cut off or wrong."""
        has_own = any(f'"{name}"'.encode() in head.first for name in OWN_NAMES)
        return head.first.startswith(b"{") and has_own and not FOREIGN_NAMES & head.names

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        builder = _Builder(self, ", ".join(paths), options)
        workload = builder.sessions.workload
        decode = msgspec.json.Decoder(MooncakeRow).decode
        plain = PlainRows(MooncakeRow, workload, builder.blocks.block_size, options.loading)
        loading = options.loading
        for path in paths:
            for first_line, block in blocks(path):
                if builder.is_columnar:
                    most = None if options.limit is None else options.limit - loading.rows
                    appended = plain.append(block, most)
                    loading.rows += appended
                    if appended:
                        continue
                for line, text in enumerate(block.split(b"\n"), start=first_line):
                    if loading.rows == options.limit:
                        return workload
                    if text and not text.isspace():
                        try:
                            builder.add_text(text, decode, path, line)
                        except InputError as error:
                            refuse(error, options, path, line)
                        loading.rows += 1
        return workload


class _Builder:
    """Turns rows into requests, in order. Errors name the field only."""

    def __init__(self, kind: Mooncake, source: str, options: ReadOptions) -> None:
        self.sessions = SessionBuilder(source)
        self.sessions.workload.accumulates = kind.accumulates
        self.blocks = HashBlocks(options.block_size or BLOCK_SIZE, options)
        self.is_columnar = not kind.accumulates and kind.ms_per_unit == 1.0
        self._ms_per_unit = kind.ms_per_unit
        self._history: dict[str, list[Run]] | None = {} if kind.accumulates else None
        self._options = options
        self._outputs = TokenTree()

    def add_text(self, text: bytes, decode: Callable[[bytes], MooncakeRow], path: str, line: int) -> None:
        """Append a row as a request.

        Raises:
            InputError: the row is none.
        """
        if not text.isascii():
            require_utf8(text, path, line)
        try:
            row = decode(text)
        except (msgspec.DecodeError, RecursionError):
            raise explain(text, MooncakeRow, Mooncake.row) from None
        self.add(row)

    def add(self, row: MooncakeRow) -> None:
        """Append a decoded row as a request.

        Raises:
            BadRowError: the row contradicts itself or the rows before it.
        """
        stated = Stated(row, self._options)
        if row.wait_for:
            message = "is a field of the format agentic-mooncake, and means nothing here: name the format with `format`"
            raise BadRowError(message, kind=CONTRADICTION, field="wait_for")
        sessions = self.sessions
        name = row.session_id
        timestamp_ms = None if stated.timestamp is None else stated.timestamp * self._ms_per_unit
        delay_ms = None if stated.delay is None else stated.delay * self._ms_per_unit
        time_ms = sessions.time_ms(
            name,
            timestamp_ms,
            delay_ms,
            timestamp_field="timestamp" if row.created_time is None else "created_time",
            delay_field="delay" if row.delay_ms is None else "delay_ms",
        )
        runs = self.blocks.prompt(row.hash_ids, stated.input_tokens)
        if self._history is not None and name is not None:
            runs = [*self._history.get(name, ()), *runs]
        request = sessions.add(
            runs,
            stated.output_tokens,
            session_name=name,
            request_id=row.request_id,
            time_ms=time_ms,
            timestamp_ms=timestamp_ms,
        )
        note_facts(sessions.workload, request, row, self._outputs)
        if self._history is not None and name is not None:
            self._history[name] = [*runs, (output_origin(request), 0, stated.output_tokens)]
        self._options.loading.without_output += not stated.states_output
