"""What a benchmark would have measured on a simulated engine: the same requests in flight, the same lengths.

Prompts share nothing. Where a tool recorded no lengths of single requests, all have the mean ones. Long benchmarks are
cut: a mean over some rounds of the loop, the first burst in it, is what is compared.
"""

from __future__ import annotations

import numpy as np

from windtunnel.assembly import simulate
from windtunnel.calibration.observations import Benchmark
from windtunnel.config.schema import Config
from windtunnel.timing.base import TimingModel
from windtunnel.workload.session import Workload

MOST_ROUNDS = 8  # requests of a benchmark that are played, in multiples of those in flight
FEWEST_REQUESTS = 200  # and at least so many of them, where the benchmark had as many


def play_benchmark(benchmark: Benchmark, timing: TimingModel, config: Config) -> tuple[float, float]:
    """Mean TTFT and mean TPOT in ms of the requests of a benchmark, under a timing model.

    Args:
        config: its engine and cluster serve them.
    """
    workload = Workload("benchmark")
    count = min(benchmark.requests, max(MOST_ROUNDS * benchmark.concurrency, FEWEST_REQUESTS))
    for number in range(count):
        if benchmark.input_lengths:
            tokens, output = benchmark.input_lengths[number], benchmark.output_lengths[number]
        else:
            tokens, output = max(round(benchmark.input_tokens), 1), max(round(benchmark.output_tokens), 1)
        workload.add([(number, 0, tokens)], output)
    engine = {**config.engine.model_dump(), "num_gpu_blocks": config.engine.num_gpu_blocks}
    served_by = Config.model_validate(
        {
            "engine": engine,
            "cluster": config.cluster.model_dump(),
            "workload": {"concurrency": benchmark.concurrency},
        }
    )
    requests = simulate(served_by, workload=workload, timing=timing).record.requests
    arrival, first, last = (np.array(t) for t in (requests.arrival_ms, requests.first_token_ms, requests.last_token_ms))
    output_tokens = np.array(requests.output_tokens)
    several = output_tokens > 1
    tpot = (last - first)[several] / (output_tokens[several] - 1)
    return float(np.nanmean(first - arrival)), float(np.nanmean(tpot)) if several.any() else 0.0
