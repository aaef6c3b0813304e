"""The `servegen` trace format: JSON lines of ServeGen's offline traces.

They have no arrivals: a batch that is there from the beginning, or a closed loop. Traces a to c have hash ids of 16
tokens and no output lengths; d to f have both lengths and no hash ids. Images have no content of their own here beyond
their tokens. Source: first rows of alibaba/ServeGen, data/offline/trace_a..f.jsonl.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.hash_blocks import HashBlocks
from windtunnel.workload.traces.json_rows import HashIds, InputTokens, OutputTokens, read_json_rows, required_output
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import DUPLICATE_ID, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder

BLOCK_SIZE = 16


class ServeGenRow(msgspec.Struct, gc=False):
    """The fields of a row that are read."""

    request_id: int
    input_length: InputTokens
    output_length: OutputTokens | None = None
    hash_ids: HashIds | None = None


class ServeGen:
    """Reader of the format."""

    name = "servegen"
    aliases = ("servegen-offline",)
    row = "a JSON object with request_id, type, input_length and either hash_ids and img_ids or output_length"
    block_size: int | None = BLOCK_SIZE
    options = frozenset(("block_size", "on_hash_mismatch", "missing_output_tokens"))
    fields = frozenset(ServeGenRow.__struct_fields__)

    def recognises(self, head: Head) -> bool:
        names = head.names
        is_own = {"request_id", "type", "input_length"} <= names and ("img_ids" in names or "duration" in names)
        return head.is_json and is_own and "timestamp" not in names

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        sessions = SessionBuilder(", ".join(paths))
        blocks = HashBlocks(options.block_size or BLOCK_SIZE, options)
        seen: set[int] = set()

        def add(row: ServeGenRow) -> None:
            if row.request_id in seen:
                message = f"found {row.request_id} again, expected a new one"
                raise BadRowError(message, kind=DUPLICATE_ID, field="request_id")
            output = required_output(row.output_length, options)
            if row.hash_ids is None:
                runs = unique_prompt(1 + sessions.workload.num_requests, row.input_length)  # 0 is for hash ids
            else:
                runs = blocks.prompt(row.hash_ids, row.input_length)
            sessions.add(runs, output, request_id=str(row.request_id))
            options.loading.without_output += row.output_length is None
            seen.add(row.request_id)

        read_json_rows(paths, options, ServeGenRow, self.row, add)
        return sessions.workload
