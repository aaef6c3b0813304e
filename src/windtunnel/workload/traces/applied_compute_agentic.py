"""The `applied-compute-agentic` trace format: JSON lines of agent sessions by their lengths.

A row is a session of num_turns + 1 turns. The prompt grows by the assistant's response and the tool's output, and each
turn begins so many seconds after the end of the one before as the tool call took. The prompt of a turn begins with that
of the turn before, but the responses in it are not the tokens that were really generated. Sessions of one group (the
row's number, modulo the number of groups) share the first blocks of their first prompt as far as asked for. There are
no arrivals: only a closed loop can send it. Source: the public replayer of Dynamo (applied_compute_agentic).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, nan
from typing import Annotated

import msgspec

from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.json_rows import MAX_TOKENS, InputTokens, OutputTokens, read_json_rows
from windtunnel.workload.traces.reading import CONTRADICTION, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head

BLOCK_SIZE = 512

_Lengths = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]], msgspec.Meta(description="a list of integers from 0 up")
]
_Latencies = Annotated[
    list[Annotated[float, msgspec.Meta(ge=0, le=9e12)]], msgspec.Meta(description="a list of numbers of seconds")
]


class AppliedComputeRow(msgspec.Struct, gc=False):
    """One session."""

    num_turns: OutputTokens
    input_prompt_length: InputTokens
    assistant_response_length: _Lengths
    tool_call_output_length: _Lengths
    tool_call_latency: _Latencies
    final_assistant_response_length: OutputTokens


class AppliedComputeAgentic:
    """Reader of the format."""

    name = "applied-compute-agentic"
    aliases: tuple[str, ...] = ("applied_compute_agentic",)
    row = "a JSON object with num_turns, input_prompt_length and lists of lengths and latencies"
    block_size: int | None = BLOCK_SIZE
    options = frozenset(("block_size", "prefix_ratio", "prefix_groups"))
    fields = frozenset(AppliedComputeRow.__struct_fields__)

    def recognises(self, head: Head) -> bool:
        return head.first.startswith(b"{") and {"num_turns", "input_prompt_length"} <= head.names

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        workload = Workload(", ".join(paths))
        workload.needs_concurrency = "traces of applied-compute-agentic have no arrival times"
        read_json_rows(paths, options, AppliedComputeRow, self.row, _adder(workload, options))
        return workload


def _adder(workload: Workload, options: ReadOptions) -> Callable[[AppliedComputeRow], None]:
    size = options.block_size or BLOCK_SIZE
    groups = options.prefix_groups

    def add(row: AppliedComputeRow) -> None:
        for field in ("assistant_response_length", "tool_call_output_length", "tool_call_latency"):
            count = len(getattr(row, field))
            if count != row.num_turns:
                message = f"found {count} entries for num_turns of {row.num_turns}, expected as many"
                raise BadRowError(message, kind=CONTRADICTION, field=field)
        outputs = [*row.assistant_response_length, row.final_assistant_response_length]
        tokens = row.input_prompt_length
        shared_tokens = min(_shared_blocks(tokens, size, options.prefix_ratio) * size, tokens)
        group = options.loading.rows % groups if groups else 0
        own = groups + workload.num_sessions
        session: int | None = None
        time_ms = nan
        for turn, output in enumerate(outputs):
            runs: list[Run] = [(group, 0, shared_tokens), (own, 0, tokens - shared_tokens)]
            request = workload.add(runs, output, session=session, time_ms=time_ms)
            session = workload.session[request]
            if turn < row.num_turns:
                tokens += output + row.tool_call_output_length[turn]
                time_ms = row.tool_call_latency[turn] * 1000.0

    return add


def _shared_blocks(tokens: int, block_size: int, ratio: float) -> int:
    """`ratio` of a prompt's blocks, halves rounded up (away from zero)."""
    share = -(-tokens // block_size) * ratio
    whole = floor(share)
    return whole + (share - whole >= 0.5)
