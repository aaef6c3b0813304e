"""The `bailian` trace format: JSON lines of the Qwen-Bailian usage traces, a tree of chats.

Times are in seconds, a hash id stands for 16 tokens. A request whose parent is -1, or not above it, begins a
session at its timestamp; any other follows the end of its parent after the time between the two timestamps, as turns of
Mooncake sessions do. Of several that continue one parent, the first is the next turn and the others branch off.
Source: alibaba-edu/qwen-bailian-usagetraces-anon, README; NVIDIA AIPerf's loader of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.hash_blocks import HashBlocks
from windtunnel.workload.traces.json_rows import HashIds, InputTokens, OutputTokens, TimeS, read_json_rows
from windtunnel.workload.traces.reading import CONTRADICTION, DUPLICATE_ID, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder, in_words

BLOCK_SIZE = 16


class BailianRow(msgspec.Struct, gc=False):
    """The fields of a row that are read."""

    chat_id: int
    timestamp: TimeS
    input_length: InputTokens
    output_length: OutputTokens
    hash_ids: HashIds
    parent_chat_id: int = -1


class Bailian:
    """Reader of the format."""

    name = "bailian"
    aliases = ("qwen-bailian", "qwen_bailian")
    row = "a JSON object with chat_id, parent_chat_id, timestamp in seconds and hash_ids of 16 tokens"
    block_size: int | None = BLOCK_SIZE
    options = frozenset(("block_size", "on_hash_mismatch"))
    fields = frozenset(BailianRow.__struct_fields__)

    def recognises(self, head: Head) -> bool:
        return head.is_json and {"chat_id", "parent_chat_id"} <= head.names

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        builder = _Builder(", ".join(paths), options)
        read_json_rows(paths, options, BailianRow, self.row, builder.add)
        return builder.sessions.workload


class _Builder:
    def __init__(self, source: str, options: ReadOptions) -> None:
        self.sessions = SessionBuilder(source)
        self._blocks = HashBlocks(options.block_size or BLOCK_SIZE, options)
        self._requests: dict[int, int] = {}  # by chat id
        self._roots: dict[int, str] = {}  # by chat id: name of its session
        self._arrival_ms: dict[int, float] = {}

    def add(self, row: BailianRow) -> None:
        if row.chat_id in self._requests:
            raise BadRowError(f"found {row.chat_id} again, expected a new one", kind=DUPLICATE_ID, field="chat_id")
        workload = self.sessions.workload
        timestamp_ms = row.timestamp * 1000.0
        parent = self._requests.get(row.parent_chat_id)
        root = self._roots[row.parent_chat_id] if parent is not None else str(row.chat_id)
        time_ms = timestamp_ms
        after: list[int] | None = None
        if parent is not None:
            time_ms -= self._arrival_ms[row.parent_chat_id]
            if time_ms < 0:
                raise BadRowError(
                    f"found {in_words(row.timestamp)}, before that of its parent {row.parent_chat_id}",
                    kind=CONTRADICTION,
                    field="timestamp",
                )
            is_next_turn = workload.last_turn[workload.session[parent]] == parent and workload.next_turn[parent] < 0
            after = None if is_next_turn else [parent]
        runs = self._blocks.prompt(row.hash_ids, row.input_length)
        request = self.sessions.add(
            runs, row.output_length, session_name=root, request_id=str(row.chat_id), time_ms=time_ms, after=after
        )
        self._requests[row.chat_id] = request
        self._roots[row.chat_id] = root
        self._arrival_ms[row.chat_id] = timestamp_ms
