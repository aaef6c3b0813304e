"""Classes of clients, each by itself: the same numbers as the summary has, over the requests of one class.

Throughputs are over the window of the whole, so that those of all classes, goodput among them, add up to it. What
belongs to the deployment, such as GPU hours, has no part here. A request is good by the limits of its own class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from windtunnel.config.schema import SloConfig
from windtunnel.record.columns import Record, Status
from windtunnel.report.metrics import (
    SHORTEST_WINDOW_S,
    TERMINAL_STATES,
    Totals,
    good_requests,
    request_latencies,
    window_ms,
    with_status,
)
from windtunnel.report.row_blocks import row_blocks
from windtunnel.report.token_times import PassEnds, TokenTimes
from windtunnel.workload.session import Workload


def summarize_classes(
    workload: Workload, record: Record, slo: SloConfig, class_slo: Sequence[SloConfig]
) -> dict[str, dict[str, int | float]]:
    """A summary per class, by name, in order; see `metrics.summarize` for the arguments and the numbers."""
    duration_s = max(window_ms(record) / 1000.0, SHORTEST_WINDOW_S)
    ends = PassEnds(record)
    parts = [Totals(record, ends) for _ in workload.class_names]
    counts = [Counter[str]() for _ in workload.class_names]
    for rows in row_blocks(record, workload):
        times = TokenTimes(record, rows, ends)
        latencies = request_latencies(record, times)
        in_state = {status: with_status(record, status, rows) for status in TERMINAL_STATES}
        good = good_requests(workload, latencies, rows, record, slo, class_slo)
        number = workload.class_of_requests(rows)
        for place, (part, count) in enumerate(zip(parts, counts, strict=True)):
            chosen = number == place
            part.add(workload, latencies, times, chosen & in_state[Status.COMPLETED], good, chosen)
            count["num_requests"] += int(np.count_nonzero(chosen))
            for status in TERMINAL_STATES:
                count[f"{status.label}_requests"] += int(np.count_nonzero(chosen & in_state[status]))
    summaries: dict[str, dict[str, int | float]] = {}
    for name, part, count in zip(workload.class_names, parts, counts, strict=True):
        input_tokens = part.input_tokens
        output_tokens = part.output_tokens
        summary: dict[str, int | float] = dict(count)
        summary |= {
            "preemptions": part.preemptions,
            "total_input_tokens": input_tokens,
            "total_output_tokens": output_tokens,
            "request_throughput_rps": part.completed / duration_s,
            "input_throughput_tok_s": input_tokens / duration_s,
            "output_throughput_tok_s": output_tokens / duration_s,
            "total_throughput_tok_s": (input_tokens + output_tokens) / duration_s,
        }
        if part.is_limited:
            summary |= part.goodput(duration_s)
        summaries[name] = summary | part.cache_ratios() | part.latency_statistics()
    return summaries
