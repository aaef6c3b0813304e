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
from windtunnel.report.row_blocks import Rows, Samples, floats, ints, row_blocks
from windtunnel.report.token_times import EVERY_ROW, BoolArray, Gaps, PassEnds, TokenTimes
from windtunnel.workload.session import Workload

SHORTEST_WINDOW_S = 1e-9  # of throughputs
INFINITE = float("inf")

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
    """The latencies of the requests of a record that the token times `times` are about."""
    requests = record.requests
    rows = times.rows
    arrival_ms = floats(requests.arrival_ms, rows)
    first_ms = floats(requests.first_token_ms, rows)
    last_ms = floats(requests.last_token_ms, rows)
    terminal_ms = floats(requests.terminal_ms, rows)
    tokens = ints(requests.output_tokens, rows)
    completed = with_status(record, Status.COMPLETED, rows)
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
    duration_ms = window_ms(record)
    duration_s = max(duration_ms / 1000.0, SHORTEST_WINDOW_S)
    everything = Totals(record)
    for rows in row_blocks(record, workload):
        times = TokenTimes(record, rows, everything.ends)
        latencies = request_latencies(record, times)
        completed = with_status(record, Status.COMPLETED, rows)
        good = good_requests(workload, latencies, rows, record, slo, class_slo)
        everything.add(workload, latencies, times, completed, good)
    input_tokens = everything.input_tokens
    output_tokens = everything.output_tokens
    prefill_worker_s = record.prefill_worker_ms / 1000.0  # a worker that does both is accounted for under decode
    decode_worker_s = record.worker_ms / 1000.0

    summary: dict[str, int | float] = {"num_requests": requests.num_requests}
    for status in TERMINAL_STATES:
        summary[f"{status.label}_requests"] = requests.status.count(status)
    summary |= {
        "preemptions": everything.preemptions,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "duration_ms": duration_ms,
        "request_throughput_rps": everything.completed / duration_s,
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
    if everything.is_limited:
        summary |= everything.goodput(duration_s)
    summary |= {"processed_tokens": input_tokens + output_tokens} | everything.cache_ratios()
    if record.speculates:
        summary["accept_length"] = output_tokens / max(output_tokens - everything.extra_tokens, 1)
    if record.offload is not None:
        summary |= offload_facts(record, record.offload)
    return summary | everything.latency_statistics()


class Totals:
    """What the completed requests of a record, or of a part of it, amount to: added block by block.

    Attributes:
        ends: passes of the record, which token times of all blocks share.
        preemptions: of all requests, completed or not.
        is_limited: whether goodput has a meaning.
    """

    def __init__(self, record: Record, ends: PassEnds | None = None) -> None:
        self._record = record
        self.ends = ends or PassEnds(record)
        self.completed = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.hit_tokens = 0
        self.reused_tokens = 0
        self.extra_tokens = 0
        self.preemptions = 0
        self.is_limited = False
        self._good = 0
        self._good_tokens = 0
        self._gaps = Gaps(self.ends.end_ms)
        self._samples = {
            metric: Samples()
            for metric in ("ttft_ms", "ttst_ms", "tpot_ms", "e2e_latency_ms", "output_token_throughput_per_user")
        }

    def add(
        self,
        workload: Workload,
        latencies: RequestLatencies,
        times: TokenTimes,
        completed: BoolArray,
        good: BoolArray | None,
        chosen: BoolArray | None = None,
    ) -> None:
        """A block.

        Args:
            completed: which of its requests count; good: which keep their limits, None if there are none.
            chosen: which of them belong to the part; None for all.
        """
        requests = self._record.requests
        rows = times.rows
        tokens = ints(requests.output_tokens, rows)
        preemptions = ints(requests.preemptions, rows)
        self.preemptions += int(np.sum(preemptions if chosen is None else preemptions[chosen]))
        self.completed += int(np.count_nonzero(completed))
        self.input_tokens += _sum(workload.input_tokens, rows, completed)
        self.output_tokens += int(np.sum(tokens[completed]))
        self.hit_tokens += _sum(requests.hit_tokens, rows, completed)
        self.reused_tokens += _sum(requests.reused_tokens, rows, completed)
        self.extra_tokens += _sum(requests.extra_tokens, rows, completed)
        if good is not None:
            self.is_limited = True
            self._good += int(np.count_nonzero(completed & good))
            self._good_tokens += int(np.sum(tokens[completed & good]))
        emitting = completed & (tokens > 0)
        several = completed & (tokens >= 2)
        tpot_ms = latencies.tpot_ms[several]
        self._gaps.add(times, completed)
        self._samples["ttft_ms"].add(latencies.ttft_ms[emitting])
        self._samples["ttst_ms"].add(latencies.ttst_ms[several])
        self._samples["tpot_ms"].add(tpot_ms)
        self._samples["e2e_latency_ms"].add(latencies.e2e_ms[emitting])
        self._samples["output_token_throughput_per_user"].add(1000.0 / tpot_ms[tpot_ms > 0.0])

    def goodput(self, duration_s: float) -> dict[str, int | float]:
        """What the good requests amount to over a window of so many seconds."""
        return {
            "goodput_completed_requests": self._good,
            "goodput_request_throughput_rps": self._good / duration_s,
            "goodput_output_throughput_tok_s": self._good_tokens / duration_s,
        }

    def cache_ratios(self) -> dict[str, int | float]:
        """Shares of the input tokens that were found in the prefix cache."""
        return {
            "prefix_cache_hit_ratio": self.hit_tokens / max(self.input_tokens, 1),
            "prefix_cache_reused_ratio": self.reused_tokens / max(self.input_tokens, 1),
        }

    def latency_statistics(self) -> dict[str, int | float]:
        """The statistics of each latency."""
        metrics = list(self._samples)
        metrics.insert(3, "itl_ms")
        found: dict[str, int | float] = {}
        for metric in metrics:
            statistics = describe(*self._gaps.all_ms()) if metric == "itl_ms" else describe(self._samples[metric])
            found |= {f"{statistic}_{metric}": value for statistic, value in statistics.items()}
        return found


def window_ms(record: Record) -> float:
    """From the first arrival of any request to the last completion; 0 if nothing completed."""
    first_ms = INFINITE
    last_ms = -INFINITE
    for rows in row_blocks(record):
        completed = with_status(record, Status.COMPLETED, rows)
        last_ms = max(last_ms, np.max(floats(record.requests.terminal_ms, rows)[completed], initial=-INFINITE))
        first_ms = min(first_ms, np.fmin.reduce(floats(record.requests.arrival_ms, rows), initial=INFINITE))
    return float(last_ms - first_ms) if last_ms > -INFINITE else 0.0


def good_requests(
    workload: Workload,
    latencies: RequestLatencies,
    rows: Rows,
    record: Record,
    slo: SloConfig,
    class_slo: Sequence[SloConfig],
) -> BoolArray | None:
    """Which requests of some rows keep every limit that is set for them; None if there is no limit at all."""
    if all(limits.is_empty for limits in [*class_slo, slo]):
        return None
    tokens = ints(record.requests.output_tokens, rows)
    if not class_slo:
        return _within_limits(latencies, tokens, slo)
    good = np.zeros(len(tokens), dtype=np.bool_)
    number = workload.class_of_requests(rows)
    for place, limits in enumerate([*class_slo, slo]):  # the last ones are those of sessions without a class
        good |= (number == place) & _within_limits(latencies, tokens, limits)
    return good


def with_status(record: Record, status: Status, rows: Rows = EVERY_ROW) -> BoolArray:
    """Which requests of some rows ended in this state."""
    statuses: npt.NDArray[np.uint8] = np.frombuffer(record.requests.status, dtype=np.uint8)
    chosen: BoolArray = statuses[rows] == int(status)
    return chosen


def _sum(column: object, rows: Rows, chosen: BoolArray) -> int:
    """The sum of a column over some requests."""
    return int(np.sum(ints(column, rows)[chosen]))


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
