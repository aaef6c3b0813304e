"""How far a report can be trusted: whether the load left the range that prices were measured in, and saturation.

It reads the record only. Shares are of what the range is about: contexts of output tokens, prompt tokens, time that
requests decode together. They are upper bounds where the record does not tell more: a chunk is taken to be as large as
the budget of a pass allows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windtunnel.config.schema import Config, VllmConfig
from windtunnel.record.columns import Record
from windtunnel.report.distribution import FloatArray, IntArray
from windtunnel.workload.session import Workload

# Above this a small error of the timing model is a large one of latencies: with 20 % less capacity, mean times to the
# first token have been seen to go from 64 ms to two minutes. On the sample trace 20 % less triple them from here on.
HIGH_RATIO = 0.7

Trust = Mapping[str, float | int]


def trust_facts(config: Config, workload: Workload, record: Record) -> dict[str, float | int]:
    """The overhead in prices, and shares between 0 and 1; those about a range only if the timing model has one.

    `beyond_measured_contexts_ratio`: output tokens decoded with shorter or longer contexts than were measured;
    `beyond_measured_batches_ratio`: time in which fewer or more requests decoded together, of the time any did;
    `beyond_measured_prompts_ratio`: prompt tokens that were computed in larger passes.
    In an open loop on workers of one kind also, while requests arrived, `prompt_busy_ratio`: time in which a worker had
    some prompt waiting or being computed; `running_occupancy_ratio` and `kv_occupancy_ratio`: mean use of the running
    slots and of the KV cache, a cached prefix counted once; and `near_saturation`, 1 if one of these is above 0.7.
    """
    facts: dict[str, float | int] = {}
    measured = record.timing_range
    if record.timing_overhead is not None:
        facts["pass_overhead_ms"] = record.timing_overhead.pass_ms
        facts["request_overhead_ms"] = record.timing_overhead.request_ms
    requests = record.requests
    inputs = np.asarray(workload.input_tokens, dtype=np.int64)
    outputs = np.asarray(requests.output_tokens, dtype=np.int64)
    if measured is not None:
        low, high = measured.context_tokens
        decoded = np.maximum(outputs - 1, 0)  # the first token comes with the prompt
        below = np.clip(np.ceil(low) - (inputs + 2), 0, decoded)
        above = np.clip(inputs + outputs - np.maximum(np.floor(high), inputs + 1), 0, decoded)
        facts["beyond_measured_contexts_ratio"] = _share(float(np.sum(below + above)), float(np.sum(decoded)))
        facts["beyond_measured_batches_ratio"] = _batches_outside(record, measured.decodes)
        chunks = np.minimum(inputs - np.asarray(requests.hit_tokens, dtype=np.int64), _pass_tokens(config))
        admitted = ~np.isnan(np.asarray(requests.first_admit_ms, dtype=np.float64))
        large = admitted & (chunks > measured.pass_tokens[1])
        facts["beyond_measured_prompts_ratio"] = _share(float(np.sum(inputs[large])), float(np.sum(inputs[admitted])))
    if config.workload.concurrency is None and not config.cluster.is_split:
        facts |= _saturation(config, record, inputs, outputs)
    return facts


def trust_lines(record: Record, facts: Trust) -> list[tuple[str, str]]:
    """The same in words, as name and value."""
    lines = []
    overhead = record.timing_overhead
    if overhead is not None:
        text = f"{overhead.pass_ms:g} ms a pass and {overhead.request_ms:g} ms a request in it, besides kernels"
        lines.append(("Overhead", text))
    measured = record.timing_range
    if measured is not None:
        low, high = measured.context_tokens
        outside = (
            ("contexts", "of output tokens had contexts outside", f"{low:,.0f}-{high:,.0f}"),
            ("batches", "of the time batches were outside", f"{measured.decodes[0]:,}-{measured.decodes[1]:,}"),
            ("prompts", "of prompt tokens were in passes of more than", f"{measured.pass_tokens[1]:,}"),
        )
        shares = {what: facts[f"beyond_measured_{what}_ratio"] for what, _, _ in outside}
        found = [f"{shares[what]:.1%} {text} {bounds}" for what, text, bounds in outside if shares[what]]
        within = (
            f"contexts within {low:,.0f}-{high:,.0f}, batches within {measured.decodes[0]:,}-{measured.decodes[1]:,}, "
            f"prompts within {measured.pass_tokens[1]:,} tokens a pass"
        )
        lines.append(("Timing data", "extrapolated: " + "; ".join(found) if found else f"measured: {within}"))
    lines += [("Timing note", note) for note in record.timing_notes]
    if facts.get("near_saturation"):
        lines.append(
            (
                "Near saturation",
                f"prompts waited or were computed {facts['prompt_busy_ratio']:.0%} of the time, "
                f"{facts['running_occupancy_ratio']:.0%} of running slots and {facts['kv_occupancy_ratio']:.0%} of the "
                "KV cache were in use: a small error of the timing model is a large one of latencies here",
            )
        )
    return lines


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0


def _pass_tokens(config: Config) -> int:
    """Most prompt tokens of a pass."""
    engine = config.engine
    if isinstance(engine, VllmConfig):
        return engine.max_num_batched_tokens
    return engine.chunked_prefill_size if engine.chunked_prefill_size > 0 else engine.max_prefill_tokens


def _batches_outside(record: Record, decodes: tuple[int, int]) -> float:
    """Share of the time in which some number of requests outside the range decoded together on a worker."""
    requests = record.requests
    first_ms = np.asarray(requests.first_token_ms, dtype=np.float64)
    last_ms = np.asarray(requests.last_token_ms, dtype=np.float64)
    worker = np.asarray(requests.worker, dtype=np.int64)
    decoded = last_ms > first_ms  # false for NaN
    times = np.concatenate((first_ms[decoded], last_ms[decoded]))
    steps = np.concatenate((np.ones(np.count_nonzero(decoded)), -np.ones(np.count_nonzero(decoded))))
    workers = np.concatenate((worker[decoded], worker[decoded]))
    order = np.lexsort((steps, times, workers))
    batches = np.cumsum(steps[order])[:-1]  # each worker's returns to zero before the next one's begins
    spans = np.diff(times[order])
    busy = batches > 0
    outside = busy & ((batches < decodes[0]) | (batches > decodes[1]))
    return _share(float(np.sum(spans[outside])), float(np.sum(spans[busy])))


def _saturation(config: Config, record: Record, inputs: IntArray, outputs: IntArray) -> dict[str, float | int]:
    """How full the deployment was while requests arrived."""
    requests = record.requests
    arrival_ms = np.asarray(requests.arrival_ms, dtype=np.float64)
    admit_ms = np.asarray(requests.first_admit_ms, dtype=np.float64)
    terminal_ms = np.asarray(requests.terminal_ms, dtype=np.float64)
    first_ms = np.asarray(requests.first_token_ms, dtype=np.float64)
    worker = np.asarray(requests.worker, dtype=np.int64)
    served = ~np.isnan(admit_ms) & ~np.isnan(terminal_ms)
    busy = running = kv = 0.0
    start_ms, end_ms = _arrivals(arrival_ms)
    if end_ms > start_ms and np.any(served):
        available_ms = max(len(record.passes), 1) * (end_ms - start_ms)
        inside = np.clip(np.minimum(terminal_ms, end_ms) - np.maximum(admit_ms, start_ms), 0.0, None)[served]
        held = (inputs - np.asarray(requests.hit_tokens, dtype=np.int64) + outputs / 2.0)[served]
        running = _share(float(np.sum(inside)), available_ms * config.engine.max_decodes)
        kv = _share(float(np.sum(inside * held)), available_ms * config.engine.kv_capacity_tokens)
        emitted = served & ~np.isnan(first_ms)
        ends = np.minimum(first_ms[emitted], end_ms)
        busy = _share(_covered_ms(worker[emitted], arrival_ms[emitted], ends), available_ms)
    return {
        "prompt_busy_ratio": busy,
        "running_occupancy_ratio": running,
        "kv_occupancy_ratio": kv,
        "near_saturation": int(max(busy, running, kv) > HIGH_RATIO),
    }


def _covered_ms(worker: IntArray, start_ms: FloatArray, end_ms: FloatArray) -> float:
    """Time that is in any of these intervals, added over workers."""
    total = 0.0
    for number in np.unique(worker):
        own = worker == number
        order = np.argsort(start_ms[own], kind="stable")
        starts, ends = start_ms[own][order], np.maximum.accumulate(end_ms[own][order])
        covered_until = np.concatenate(([-np.inf], ends[:-1]))
        total += float(np.sum(np.clip(ends - np.maximum(starts, covered_until), 0.0, None)))
    return total


def _arrivals(arrival_ms: FloatArray) -> tuple[float, float]:
    arrived = arrival_ms[~np.isnan(arrival_ms)]
    return (float(np.min(arrived)), float(np.max(arrived))) if len(arrived) else (0.0, 0.0)
