"""Writes `llmservingsim` rows: token ids, so that prompts and outputs share exactly what they share here.

Decides the ids: they are equal where tokens are, and mean nothing else. Requests that follow others are sub-requests
of a session, each after the tool duration of the one before; so the rows of a session stand together. The reader, and
the source of the rules, is `workload/traces/llmservingsim.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from windtunnel.conversion.losses import Losses, Rounding
from windtunnel.conversion.names import request_names, session_names
from windtunnel.conversion.structure import as_sessions
from windtunnel.conversion.writers.writer import WriteOptions, note_missing_arrivals, note_names
from windtunnel.errors import InputError
from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload

_NS_PER_MS = 1e6
_CHUNK_TOKENS = 64  # ids are given out by chunks of an origin, so that few of them are remembered
_MOST_CHUNKS = 2**32 // _CHUNK_TOKENS


class LlmServingSimWriter:
    """Writer of the format."""

    name = "llmservingsim"
    block_size: int | None = None
    keeps_urgency = False
    keeps_outputs = True

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """See `TraceWriter.lines`."""
        workload = as_sessions(workload, losses)
        note_missing_arrivals(workload, losses)
        note_names(losses, request_names(workload, anonymise=options.anonymise), "request")
        self._note_quotes(workload, losses)
        names = session_names(workload, anonymise=options.anonymise)
        ids = _TokenIds()
        rounding = Rounding()
        for session, name in enumerate(names):
            request = workload.first_turn[session]
            row: dict[str, object] = {"arrival_time_ns": _ns(workload.time_ms[request], rounding)}
            following = workload.next_turn[request]
            if name is None and following < 0:
                yield json.dumps(row | _lengths(workload, request, ids))
                continue
            if name is not None:
                row = {"session_id": name} | row
            turns = []
            while request >= 0:
                turn = _lengths(workload, request, ids)
                request = workload.next_turn[request]
                if request >= 0:
                    turn["tool_duration_ns"] = _ns(workload.time_ms[request], rounding)
                turns.append(turn)
            yield json.dumps(row | {"sub_requests": turns}, ensure_ascii=False)
        rounding.note(losses, workload.num_requests)

    def _note_quotes(self, workload: Workload, losses: Losses) -> None:
        if workload.accumulates:
            quoting = sum(
                any(origin < 0 for origin, _, _ in workload.stated_runs(request))
                for request in range(workload.num_requests)
            )
            message = "hold outputs as they were asked for, and no longer what was really generated"
            losses.note(quoting, workload.num_requests, "prompts", message)


class _TokenIds:
    """Numbers of tokens, by the origin and offset that they have in contents."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int], int] = {}

    def of(self, runs: Sequence[Run]) -> list[int]:
        """The ids of the tokens of some runs.

        Raises:
            InputError: there are more different ones than the format has numbers for.
        """
        chunks = self._chunks
        ids: list[int] = []
        for origin, start, length in runs:
            at = start
            while at < start + length:
                place, offset = divmod(at, _CHUNK_TOKENS)
                chunk = chunks.setdefault((origin, place), len(chunks))
                count = min(_CHUNK_TOKENS - offset, start + length - at)
                ids.extend(range(chunk * _CHUNK_TOKENS + offset, chunk * _CHUNK_TOKENS + offset + count))
                at += count
        if len(chunks) > _MOST_CHUNKS:
            raise InputError(f"has more different tokens than ids of {LlmServingSimWriter.name} can tell apart")
        return ids


def _lengths(workload: Workload, request: int, ids: _TokenIds) -> dict[str, object]:
    """What a request computes and generates."""
    output_tokens = workload.output_tokens[request]
    runs = workload.content(request, output_tokens).runs()
    every = ids.of(runs)
    prompt_tokens = len(every) - output_tokens
    found: dict[str, object] = {
        "input_toks": prompt_tokens,
        "output_toks": output_tokens,
        "input_tok_ids": every[:prompt_tokens],
    }
    if output_tokens:
        found["output_tok_ids"] = every[prompt_tokens:]
    return found


def _ns(time_ms: float, rounding: Rounding) -> int:
    ns = round(time_ms * _NS_PER_MS)
    rounding.written(time_ms, ns / _NS_PER_MS)
    return ns
