"""Writes `bailian` rows: a tree of chats with timestamps in seconds and blocks of 16 tokens.

Decides which chat is whose parent: the turn before, or the one request that a request waits for. A chat has one parent,
so other waits are left out; the delay of a chat is the difference between its timestamp and that of its parent. The
reader, and the source of the rules, is `workload/traces/bailian.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from windtunnel.conversion.block_prompts import BlockPrompts
from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names
from windtunnel.conversion.numbers import number_for, plain_number, time_after
from windtunnel.conversion.structure import nominal_times_ms
from windtunnel.conversion.writers.writer import WriteOptions, note_missing_arrivals, note_names
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.bailian import BLOCK_SIZE


class BailianWriter:
    """Writer of the format."""

    name = "bailian"
    block_size: int | None = BLOCK_SIZE
    keeps_urgency = False
    keeps_outputs = False

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        prompts = BlockPrompts(workload, options.block_size or BLOCK_SIZE, renumber=options.anonymise)
        note_missing_arrivals(workload, losses)
        chat_ids = _chat_ids(request_names(workload, anonymise=options.anonymise), losses)
        if workload.session_ids and not options.anonymise:
            _note_session_names(workload, chat_ids, losses)
        parents = _parents(workload, losses)
        nominal_ms = nominal_times_ms(workload)
        written_ms: list[float] = []
        rounding = Rounding()
        for request, parent in enumerate(parents):
            time_ms = workload.time_ms[request] if parent is not None else nominal_ms[request]
            base_ms = 0.0 if parent is None else written_ms[parent]
            timestamp = number_for(time_ms, (base_ms + time_ms) / 1000.0, time_after(base_ms, 1000.0))
            written_ms.append(timestamp * 1000.0)
            rounding.written(time_ms, written_ms[request] - base_ms)
            tokens, ids = prompts.row(request)
            row = {
                "chat_id": chat_ids[request],
                "parent_chat_id": -1 if parent is None else chat_ids[parent],
                "timestamp": plain_number(timestamp),
                "input_length": tokens,
                "output_length": workload.output_tokens[request],
                "type": "text",
                "turn": workload.turn[request] + 1,
                "hash_ids": ids,
            }
            yield json.dumps(row)
        rounding.note(losses, workload.num_requests)
        prompts.note_losses(losses)


def _note_session_names(workload: Workload, chat_ids: list[int], losses: Losses) -> None:
    """A session is called by its first chat."""
    names = [
        None if name in (str(first), str(chat_ids[first])) else name
        for name, first in zip(workload.session_ids, workload.first_turn, strict=True)
    ]
    note_names(losses, names, "session")


def _chat_ids(names: list[str | None], losses: Losses) -> list[int]:
    """Chats are called by numbers: those of the source if all of its names are such, else the requests' own."""
    numbers = [
        number if name is None else int(name) if name.isdecimal() and name.isascii() and len(name) < 16 else -1
        for number, name in enumerate(names)
    ]
    if min(numbers, default=0) >= 0 and len(set(numbers)) == len(numbers):
        return numbers
    note_names(losses, names, "request")
    return list(range(len(names)))


def _parents(workload: Workload, losses: Losses) -> list[int | None]:
    parents: list[int | None] = [None] * workload.num_requests
    for request, following in enumerate(workload.next_turn):
        if following >= 0:
            parents[following] = request
    total = left_out = 0
    for request, waits in workload.dependencies.items():
        earlier = [other for other in waits if other < request]
        own = [other for other in earlier if workload.session[other] == workload.session[request]]
        if earlier:
            parents[request] = max(own or earlier)
        total += len(waits)
        left_out += len(waits) - bool(earlier)
    losses.note(
        left_out, total, "waits", "for other requests are left out: a chat has one parent, which stands before it"
    )
    _note_kinds(workload, parents, losses)
    return parents


def _note_kinds(workload: Workload, parents: list[int | None], losses: Losses) -> None:
    """A reader takes the first chat below the last one of a session for its next turn, and others for branches."""
    root: list[int] = []
    last: dict[int, int] = {}  # by root
    turns = waits = 0
    for request, parent in enumerate(parents):
        root.append(request if parent is None else root[parent])
        is_turn = parent is not None and last[root[parent]] == parent
        was_turn = workload.turn[request] > 0 and request not in workload.dependencies
        turns += parent is not None and was_turn and not is_turn
        waits += parent is not None and is_turn and not was_turn
        last[root[request]] = request
    total = workload.num_requests
    losses.note(turns, total, "turns", "become requests that wait for the turn before: they are not sent if it fails")
    losses.note(waits, total, "requests", "that wait for another become its next turn: they are sent even if it fails")
