"""One record a request: when it arrived, what it got and where its time went.

It never aggregates and never leaves a request out. Records are JSON lines in order of arrival (equal times in
workload order; what never arrived comes last), made in batches, so memory does not grow with their number. In a load
of several classes of clients a record has the name of its `class`. Field names follow the Dynamo simulator's
per-request records, except for `tpot_ms`, which that one calls `itl_ms`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, TypeAlias

import msgspec
import numpy as np

from windtunnel.record.columns import Status
from windtunnel.report.distribution import FloatArray, IntArray
from windtunnel.report.document import SimulationResult
from windtunnel.report.metrics import RequestLatencies, request_latencies
from windtunnel.report.row_blocks import arrival_blocks, numbers_of
from windtunnel.report.token_times import PassEnds, TokenTimes
from windtunnel.workload.session import Workload

RequestRecord: TypeAlias = dict[str, str | int | float | None]

_BATCH_REQUESTS = 4096


def request_records(result: SimulationResult) -> Iterator[RequestRecord]:
    """The records, in order of arrival; None stands for what never happened.

    Times are virtual ms. `queued_ms + prefill_ms + stalled_ms + preempted_ms + transfer_ms + decode_ms` is the time
    from arrival to the terminal state, and `e2e_latency_ms` of a completed request: to its last token, or, when it
    was asked for no output, to the end of its prefill. `prefix_hit_tokens` counts prompt tokens found in the prefix
    cache at the first admission, `reused_input_tokens` at the best one.
    """
    for batch in _batches(result):
        yield from batch


def write_requests(result: SimulationResult, file: BinaryIO) -> None:
    """Write the records of `request_records` as compact JSON lines."""
    encoder = msgspec.json.Encoder()
    for batch in _batches(result):
        file.write(encoder.encode_lines(batch))


def _batches(result: SimulationResult) -> Iterator[list[RequestRecord]]:
    record = result.record
    ends = PassEnds(record)
    for block in arrival_blocks(record, result.workload):
        numbers = numbers_of(block, record.requests.num_requests)
        for start in range(0, len(numbers), _BATCH_REQUESTS):
            rows = numbers[start : start + _BATCH_REQUESTS]
            yield _batch(result, request_latencies(record, TokenTimes(record, rows, ends)), rows)


def _batch(result: SimulationResult, latencies: RequestLatencies, rows: IntArray) -> list[RequestRecord]:
    workload = result.workload
    requests = result.record.requests
    numbers: list[int] = rows.tolist()
    labels = [status.label for status in sorted(Status)]

    def counts(column: object) -> list[int]:
        chosen: list[int] = np.asarray(column, dtype=np.int64)[rows].tolist()
        return chosen

    def times(column: object) -> list[float | None]:
        return known(np.asarray(column, dtype=np.float64)[rows])

    def known(chosen: FloatArray) -> list[float | None]:
        values: list[float | None] = chosen.tolist()
        for i in np.flatnonzero(np.isnan(chosen)).tolist():
            values[i] = None
        return values

    def worker_numbers(column: object) -> list[int | None]:
        return [result.record.worker_numbers[index] if index >= 0 else None for index in counts(column)]

    handoffs = result.record.handoffs
    session_ids: Sequence[str | None] = [None] * len(numbers)
    if workload.session_ids:
        session_ids = [workload.session_ids[session] for session in counts(workload.session)]
    columns: dict[str, Sequence[str | int | float | None]] = {
        "request_id": [workload.request_id(number) for number in numbers],
        **_class_column(workload, rows),
        "session_id": session_ids,
        "turn_index": counts(workload.turn),
        "terminal_status": [labels[requests.status[number]] for number in numbers],
        "reason": [requests.reasons.get(number) for number in numbers],
        "arrival_time_ms": times(requests.arrival_ms),
        "first_admit_ms": times(requests.first_admit_ms),
        "first_token_ms": times(requests.first_token_ms),
        "last_token_ms": times(requests.last_token_ms),
        "terminal_time_ms": times(requests.terminal_ms),
        "ttft_ms": known(latencies.ttft_ms),
        "ttst_ms": known(latencies.ttst_ms),
        "tpot_ms": known(latencies.tpot_ms),
        "e2e_latency_ms": known(latencies.e2e_ms),
        "input_length": counts(workload.input_tokens),
        "requested_output_length": counts(workload.output_tokens),
        "output_length": counts(requests.output_tokens),
        "prefix_hit_tokens": counts(requests.hit_tokens),
        "reused_input_tokens": counts(requests.reused_tokens),
        **_restored_tokens(result, numbers),
        "preemptions": counts(requests.preemptions),
        "worker": worker_numbers(requests.worker),
        "queued_ms": times(requests.queued_ms),
        "prefill_ms": times(requests.prefill_ms),
        "stalled_ms": times(requests.stalled_ms),
        "preempted_ms": times(requests.preempted_ms),
        "transfer_ms": times(requests.transfer_ms),
        "decode_ms": times(requests.decode_ms),
    }
    if handoffs is not None:
        columns |= {
            "prefill_worker": worker_numbers(handoffs.prefill_worker),
            "source_held_ms": times(handoffs.source_held_ms),
            "destination_reserved_ms": times(handoffs.reserved_ms),
            "destination_activated_ms": times(handoffs.activated_ms),
            "decode_admit_ms": times(handoffs.decode_admit_ms),
            "source_released_ms": times(handoffs.released_ms),
            "destination_missing_tokens": counts(handoffs.missing_tokens),
        }
    if result.record.speculates:
        tokens, extra = (np.asarray(c, dtype=np.int64)[rows] for c in (requests.output_tokens, requests.extra_tokens))
        columns["accept_length"] = [
            None if not count else count / (count - more)
            for count, more in zip(tokens.tolist(), extra.tolist(), strict=True)
        ]
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _class_column(workload: Workload, rows: IntArray) -> dict[str, Sequence[str | None]]:
    """The class of each request, if the load has classes."""
    if not workload.class_names:
        return {}
    sessions = np.asarray(workload.session, dtype=np.int64)[rows]
    places = np.searchsorted(np.asarray(workload.class_ends), sessions, side="right")
    names = [*workload.class_names, None]
    return {"class": [names[place] for place in places.tolist()]}


def _restored_tokens(result: SimulationResult, numbers: list[int]) -> dict[str, list[int]]:
    """With KV offload, the tokens that each request got back from each tier before it was first admitted."""
    offload = result.record.offload
    if offload is None:
        return {}
    nothing = [0] * len(offload.tiers)
    restored = [offload.restored_tokens.get(number, nothing) for number in numbers]
    return {f"restored_{tier.name}_tokens": [tokens[i] for tokens in restored] for i, tier in enumerate(offload.tiers)}
