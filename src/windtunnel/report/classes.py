"""Classes of clients, each by itself: the same numbers as the summary has, over the requests of one class.

Throughputs are over the window of the whole, so that those of all classes, goodput among them, add up to it. What
belongs to the deployment, such as GPU hours, has no part here. A request is good by the limits of its own class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windtunnel.config.schema import SloConfig
from windtunnel.record.columns import Record, Status
from windtunnel.report.metrics import (
    SHORTEST_WINDOW_S,
    TERMINAL_STATES,
    good_requests,
    goodput,
    latency_statistics,
    request_latencies,
    total,
    window_ms,
    with_status,
)
from windtunnel.report.token_times import TokenTimes
from windtunnel.workload.session import Workload


def summarize_classes(
    workload: Workload, record: Record, slo: SloConfig, class_slo: Sequence[SloConfig]
) -> dict[str, dict[str, int | float]]:
    """A summary per class, by name, in order; see `metrics.summarize` for the arguments and the numbers."""
    requests = record.requests
    times = TokenTimes(record)
    latencies = request_latencies(record, times)
    tokens = np.asarray(requests.output_tokens, dtype=np.int64)
    duration_s = max(window_ms(record) / 1000.0, SHORTEST_WINDOW_S)
    in_state = {status: with_status(record, status) for status in TERMINAL_STATES}
    good = good_requests(workload, latencies, tokens, slo, class_slo)
    number = workload.class_of_requests()
    summaries: dict[str, dict[str, int | float]] = {}
    for place, name in enumerate(workload.class_names):
        chosen = number == place
        completed = chosen & in_state[Status.COMPLETED]
        num_completed = int(np.count_nonzero(completed))
        input_tokens = total(workload.input_tokens, completed)
        output_tokens = total(tokens, completed)
        summary: dict[str, int | float] = {"num_requests": int(np.count_nonzero(chosen))}
        for status in TERMINAL_STATES:
            summary[f"{status.label}_requests"] = int(np.count_nonzero(chosen & in_state[status]))
        summary |= {
            "preemptions": total(requests.preemptions, chosen),
            "total_input_tokens": input_tokens,
            "total_output_tokens": output_tokens,
            "request_throughput_rps": num_completed / duration_s,
            "input_throughput_tok_s": input_tokens / duration_s,
            "output_throughput_tok_s": output_tokens / duration_s,
            "total_throughput_tok_s": (input_tokens + output_tokens) / duration_s,
        }
        if good is not None:
            summary |= goodput(completed & good, tokens, duration_s)
        summary |= {
            "prefix_cache_hit_ratio": total(requests.hit_tokens, completed) / max(input_tokens, 1),
            "prefix_cache_reused_ratio": total(requests.reused_tokens, completed) / max(input_tokens, 1),
        }
        summaries[name] = summary | latency_statistics(latencies, times, tokens, completed)
    return summaries
