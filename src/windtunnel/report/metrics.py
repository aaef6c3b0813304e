"""The latencies of each request, and the summary: which requests count, and what each number means.

It reads columns only and never decides what happened. Definitions: TTFT = first token - arrival; TTST = second -
first token; TPOT = (last - first token) / (tokens - 1), what AIPerf calls inter token latency; ITL = every gap
between two tokens, pooled; E2E = last token - arrival. Names and order of the summary follow the Dynamo
simulator's report; its percentiles, throughput window and tokens per second per user do not (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windtunnel.config.schema import Config, SloConfig
from windtunnel.record.columns import Record, Status
from windtunnel.report.distribution import FloatArray, IntArray, describe
from windtunnel.report.offload import offload_facts
from windtunnel.report.token_times import BoolArray, TokenTimes
from windtunnel.workload.session import Workload

SHORTEST_WINDOW_S = 1e-9  # of throughputs

TERMINAL_STATES = (
    Status.COMPLETED,
    Status.REJECTED,
    Status.CANCELLED,
    Status.FAILED,
    Status.UNFINISHED,
    Status.NOT_ARRIVED,
)


class RequestLatencies(NamedTuple):
    """One entry a request, in ms; NaN where a latency does not exist.

    `ttft_ms`, `ttst_ms` and `tpot_ms` exist as soon as a request has emitted the tokens they need. `e2e_ms` exists
    for completed requests; one without output ends with its prefill.
    """

    ttft_ms: FloatArray
    ttst_ms: FloatArray
    tpot_ms: FloatArray
    e2e_ms: FloatArray


def request_latencies(record: Record, times: TokenTimes) -> RequestLatencies:
    """The latencies of all requests of a record; `times` are its token times."""
    requests = record.requests
    arrival_ms = np.asarray(requests.arrival_ms, dtype=np.float64)
    first_ms = np.asarray(requests.first_token_ms, dtype=np.float64)
    last_ms = np.asarray(requests.last_token_ms, dtype=np.float64)
    terminal_ms = np.asarray(requests.terminal_ms, dtype=np.float64)
    tokens = np.asarray(requests.output_tokens, dtype=np.int64)
    completed = with_status(record, Status.COMPLETED)
    tpot_ms = np.full(len(tokens), np.nan)
    np.divide(last_ms - first_ms, tokens - 1, out=tpot_ms, where=tokens >= 2)
    return RequestLatencies(
        ttft_ms=first_ms - arrival_ms,
        ttst_ms=times.second_ms() - first_ms,
        tpot_ms=tpot_ms,
        e2e_ms=np.where(completed, np.where(tokens > 0, last_ms, terminal_ms) - arrival_ms, np.nan),
    )


def class_limits(workload: Workload, config: Config) -> list[SloConfig]:
    """The limits of each class of clients of a workload, in order: its own, or those of all."""
    classes = config.workload.classes
    return [(classes[name].slo if name in classes else None) or config.slo for name in workload.class_names]


def summarize(
    workload: Workload, record: Record, slo: SloConfig, class_slo: Sequence[SloConfig] = ()
) -> dict[str, int | float]:
    """The flat summary, in the order in which reports show it.

    Counts cover all requests of the workload, each in one terminal state; `preemptions` are those of all requests.
    Everything else covers completed requests only: totals in tokens, `duration_ms` from the first arrival of any
    request to the last completion, throughputs over that window, shares of input tokens found in the prefix cache
    at the first (`hit`) and at the best (`reused`) admission, and the statistics of each latency. A completed
    request without output has no latencies. `goodput_` keys exist only when a limit is set, `accept_length` (output
    tokens per pass that emitted any, over requests) only when requests speculate.

    Args:
        workload, record: what was sent, and what happened.
        slo: limits of all requests; those of a class are judged by `class_slo` instead.
        class_slo: limits of each class of the workload, if it has any. Nothing limits a request whose class has none.
    """
    requests = record.requests
    times = TokenTimes(record)
    latencies = request_latencies(record, times)
    completed = with_status(record, Status.COMPLETED)
    num_completed = int(np.count_nonzero(completed))
    tokens = np.asarray(requests.output_tokens, dtype=np.int64)
    input_tokens = total(workload.input_tokens, completed)
    output_tokens = total(tokens, completed)
    duration_ms = window_ms(record)
    duration_s = max(duration_ms / 1000.0, SHORTEST_WINDOW_S)
    prefill_worker_s = record.prefill_worker_ms / 1000.0  # a worker that does both is accounted for under decode
    decode_worker_s = record.worker_ms / 1000.0

    summary: dict[str, int | float] = {"num_requests": requests.num_requests}
    for status in TERMINAL_STATES:
        summary[f"{status.label}_requests"] = requests.status.count(status)
    summary |= {
        "preemptions": sum(requests.preemptions),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "duration_ms": duration_ms,
        "request_throughput_rps": num_completed / duration_s,
        "input_throughput_tok_s": input_tokens / duration_s,
        "output_throughput_tok_s": output_tokens / duration_s,
        "total_throughput_tok_s": (input_tokens + output_tokens) / duration_s,
        "prefill_worker_seconds": prefill_worker_s,
        "decode_worker_seconds": decode_worker_s,
        "prefill_gpus_per_worker": record.prefill_gpus_per_worker,
        "decode_gpus_per_worker": record.decode_gpus_per_worker,
        "gpu_hours": (
            prefill_worker_s * record.prefill_gpus_per_worker + decode_worker_s * record.decode_gpus_per_worker
        )
        / 3600.0,
    }
    good = good_requests(workload, latencies, tokens, slo, class_slo)
    if good is not None:
        summary |= goodput(completed & good, tokens, duration_s)
    summary |= {
        "processed_tokens": input_tokens + output_tokens,
        "prefix_cache_hit_ratio": total(requests.hit_tokens, completed) / max(input_tokens, 1),
        "prefix_cache_reused_ratio": total(requests.reused_tokens, completed) / max(input_tokens, 1),
    }
    if record.speculates:
        extra = total(requests.extra_tokens, completed)
        summary["accept_length"] = output_tokens / max(output_tokens - extra, 1)
    if record.offload is not None:
        summary |= offload_facts(record, record.offload)
    return summary | latency_statistics(latencies, times, tokens, completed)


def latency_statistics(
    latencies: RequestLatencies, times: TokenTimes, tokens: IntArray, completed: BoolArray
) -> dict[str, int | float]:
    """The statistics of each latency, over the requests chosen by `completed`; `tokens` are those they emitted."""
    emitting = completed & (tokens > 0)
    several = completed & (tokens >= 2)
    tpot_ms = latencies.tpot_ms[several]
    gaps_ms, gap_counts = times.gaps_ms(completed)
    distributions = {
        "ttft_ms": describe(latencies.ttft_ms[emitting]),
        "ttst_ms": describe(latencies.ttst_ms[several]),
        "tpot_ms": describe(tpot_ms),
        "itl_ms": describe(gaps_ms, gap_counts),
        "e2e_latency_ms": describe(latencies.e2e_ms[emitting]),
        "output_token_throughput_per_user": describe(1000.0 / tpot_ms[tpot_ms > 0.0]),
    }
    return {
        f"{statistic}_{metric}": value
        for metric, statistics in distributions.items()
        for statistic, value in statistics.items()
    }


def window_ms(record: Record) -> float:
    """From the first arrival of any request to the last completion; 0 if nothing completed."""
    completed = with_status(record, Status.COMPLETED)
    if not completed.any():
        return 0.0
    last_ms = np.max(np.asarray(record.requests.terminal_ms, dtype=np.float64)[completed])
    return float(last_ms - np.nanmin(np.asarray(record.requests.arrival_ms, dtype=np.float64)))


def goodput(good: BoolArray, tokens: IntArray, duration_s: float) -> dict[str, int | float]:
    """What the `good` requests amount to over a window of so many seconds."""
    num_good = int(np.count_nonzero(good))
    return {
        "goodput_completed_requests": num_good,
        "goodput_request_throughput_rps": num_good / duration_s,
        "goodput_output_throughput_tok_s": total(tokens, good) / duration_s,
    }


def good_requests(
    workload: Workload,
    latencies: RequestLatencies,
    tokens: IntArray,
    slo: SloConfig,
    class_slo: Sequence[SloConfig],
) -> BoolArray | None:
    """Which requests keep every limit that is set for them; None if there is no limit at all."""
    if all(limits.is_empty for limits in [*class_slo, slo]):
        return None
    if not class_slo:
        return _within_limits(latencies, tokens, slo)
    good = np.zeros(len(tokens), dtype=np.bool_)
    number = workload.class_of_requests()
    for place, limits in enumerate([*class_slo, slo]):  # the last ones are those of sessions without a class
        good |= (number == place) & _within_limits(latencies, tokens, limits)
    return good


def with_status(record: Record, status: Status) -> BoolArray:
    """Which requests ended in this state."""
    statuses: npt.NDArray[np.uint8] = np.frombuffer(bytes(record.requests.status), dtype=np.uint8)
    chosen: BoolArray = statuses == int(status)
    return chosen


def total(column: object, chosen: BoolArray) -> int:
    """The sum of a column over some requests."""
    return int(np.sum(np.asarray(column, dtype=np.int64)[chosen]))


def _within_limits(latencies: RequestLatencies, tokens: IntArray, slo: SloConfig) -> BoolArray:
    """Which requests keep every limit that is set.

    Without a second token there is no mean gap to judge. Without any token only the E2E limit can be kept.
    """
    good = np.ones(len(tokens), dtype=np.bool_)
    if slo.ttft_ms is not None:
        good &= latencies.ttft_ms <= slo.ttft_ms
    if slo.itl_ms is not None:
        good &= (tokens == 1) | (latencies.tpot_ms <= slo.itl_ms)
    if slo.e2e_ms is not None:
        good &= latencies.e2e_ms <= slo.e2e_ms
    return good
