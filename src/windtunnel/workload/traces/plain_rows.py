"""Many Mooncake rows at once: columns of a workload from rows that have nothing but lengths, a time and hash ids.

Decides nothing that the row-by-row path does not: it takes only rows whose ids are exactly as many as their prompts
have blocks, and gives the same columns, an array at a time. Most public traces have no other rows. A million of them
load faster than Python's json alone would parse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import msgspec
import numpy as np

from windtunnel.workload.loading import Loading
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.hash_blocks import FIRST_INTERNED_ID
from windtunnel.workload.traces.json_rows import HashIds, InputTokens, OutputTokens, TimeMs

_NEWLINE, _RETURN, _OPENED, _CLOSED = b"\n\r{}"


class Row(Protocol):
    """What is read of a row; it is plain when everything from `input_tokens` on is None."""

    hash_ids: list[int] | None
    input_length: int | None
    output_length: int | None
    timestamp: float | None
    input_tokens: int | None
    output_tokens: int | None
    created_time: float | None
    delay: float | None
    delay_ms: float | None
    session_id: str | None
    request_id: str | None
    output_token_ids: list[int] | None
    wait_for: list[str] | None
    priority: int | None
    strict_priority: int | None
    policy_class: str | None


class BareRow(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A row that has nothing else; it need not be asked whether it is plain."""

    hash_ids: HashIds
    input_length: InputTokens
    output_length: OutputTokens
    timestamp: TimeMs | None = None


class PlainRows:
    """Appends blocks of rows to a workload."""

    def __init__(self, row: type[Row], workload: Workload, block_size: int, loading: Loading) -> None:
        self._loading = loading
        self._workload = workload
        self._block_size = block_size
        self._decode_bare = msgspec.json.Decoder(BareRow).decode_lines
        self._decode = msgspec.json.Decoder(row).decode_lines
        self._are_bare = True  # until a block has other rows

    def append(self, block: bytes, most: int | None) -> int:
        """Append all rows of a block, whole lines, and return their number.

        0, with nothing appended, if any line is not a plain row or there are more than `most`.
        """
        num_lines = _objects_by_line(block)
        if not num_lines or not block.isascii() or (most is not None and num_lines > most):
            return 0
        if self._are_bare:
            try:
                bare = self._decode_bare(block)
            except (msgspec.DecodeError, RecursionError):
                self._are_bare = False
            else:
                return self._append(bare, num_lines)
        try:
            rows = self._decode(block)
        except (msgspec.DecodeError, RecursionError):
            return 0
        return self._append(rows, num_lines) if all(map(_is_plain, rows)) else 0

    def _append(self, rows: Sequence[BareRow] | Sequence[Row], num_lines: int) -> int:
        first = self._workload.num_requests
        if len(rows) != num_lines:  # a line with several rows, which the decoder of lines takes
            return 0
        if not append_plain_rows(self._workload, rows, self._block_size):
            return 0
        tokens = np.array(self._workload.input_tokens[first:], dtype=np.int64)
        self._loading.hash_rows += len(rows)
        self._loading.hash_tokens += int(tokens.sum())
        self._loading.hash_ids += int((-(-tokens // self._block_size)).sum())
        return len(rows)


def _objects_by_line(block: bytes) -> int:
    """Number of lines, if every line begins and ends like an object, so that none goes on in the next one; else 0."""
    text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    last = ends - 1 - (text[ends - 1] == _RETURN)
    is_whole = text[0] == _OPENED and (text[ends[:-1] + 1] == _OPENED).all() and (text[last] == _CLOSED).all()
    return len(ends) if is_whole else 0


def append_plain_rows(workload: Workload, rows: Sequence[BareRow] | Sequence[Row], block_size: int) -> bool:
    """Append plain `rows` as sessions of one turn each.

    False, with nothing appended, if a row has more or fewer ids than its prompt has blocks, or very large ones, or if
    requests of the workload have names.
    """
    if not rows or workload.request_ids or workload.session_ids:
        return False
    hash_ids: list[list[int]] = [row.hash_ids for row in rows]  # type: ignore[misc]
    num_blocks = np.fromiter(map(len, hash_ids), dtype=np.int64, count=len(rows))
    try:
        ids = np.fromiter(chain.from_iterable(hash_ids), dtype=np.int64, count=int(num_blocks.sum()))
    except OverflowError:
        return False
    input_tokens = np.array([row.input_length for row in rows], dtype=np.int64)
    if (num_blocks != -(-input_tokens // block_size)).any() or ids.max() >= FIRST_INTERNED_ID:
        return False
    first_block = np.cumsum(num_blocks) - num_blocks
    breaks = np.empty(len(ids), dtype=np.bool_)  # whether a run begins at each block
    np.not_equal(ids[1:], ids[:-1] + 1, out=breaks[1:])
    breaks[first_block] = True
    at = np.flatnonzero(breaks)  # place of each run's first block among all blocks
    first_run = np.searchsorted(at, first_block)
    num_runs = np.diff(np.append(first_run, len(at)))
    position = (at - np.repeat(first_block, num_runs)) * block_size
    ends = np.append(position[1:], 0)
    ends[first_run + num_runs - 1] = input_tokens
    workload.extend(
        input_tokens,
        np.array([row.output_length for row in rows], dtype=np.int64),
        np.array([row.timestamp for row in rows], dtype=np.float64),  # None becomes NaN
        num_runs,
        (np.zeros(len(at), dtype=np.int64), ids[at] * block_size - position, ends),
    )
    return True


def _is_plain(row: Row) -> bool:
    return (
        row.session_id is None
        and row.request_id is None
        and row.delay is None
        and row.input_length is not None
        and row.output_length is not None
        and row.hash_ids is not None
        and row.input_tokens is None
        and row.output_tokens is None
        and row.created_time is None
        and row.delay_ms is None
        and row.output_token_ids is None
        and row.wait_for is None
        and not row.priority
        and not row.strict_priority
        and not row.policy_class
    )
