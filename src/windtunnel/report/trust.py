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
from windtunnel.report.row_blocks import arrival_blocks, floats, ints, row_blocks
from windtunnel.report.token_times import PassEnds, TokenTimes
from windtunnel.timing.measured_range import MeasuredRange
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
    if measured is not None:
        facts |= _outside(config, workload, record, measured)
    if config.workload.concurrency is None and not config.cluster.is_split:
        facts |= _saturation(config, workload, record)
    return facts


def _outside(config: Config, workload: Workload, record: Record, measured: MeasuredRange) -> dict[str, float | int]:
    """Shares of what was priced outside the range that was measured."""
    requests = record.requests
    low, high = measured.context_tokens
    far = decoded_tokens = 0.0
    large_tokens = admitted_tokens = 0
    batches = Batches(PassEnds(record))
    for rows in row_blocks(record, workload):
        inputs = ints(workload.input_tokens, rows)
        outputs = ints(requests.output_tokens, rows)
        decoded = np.maximum(outputs - 1, 0)  # the first token comes with the prompt
        below = np.clip(np.ceil(low) - (inputs + 2), 0, decoded)
        above = np.clip(inputs + outputs - np.maximum(np.floor(high), inputs + 1), 0, decoded)
        far += float(np.sum(below + above))
        decoded_tokens += float(np.sum(decoded))
        chunks = np.minimum(inputs - ints(requests.hit_tokens, rows), _pass_tokens(config))
        admitted = ~np.isnan(floats(requests.first_admit_ms, rows))
        large_tokens += int(np.sum(inputs[admitted & (chunks > measured.pass_tokens[1])]))
        admitted_tokens += int(np.sum(inputs[admitted]))
        batches.add(TokenTimes(record, rows, batches.ends))
    return {
        "beyond_measured_contexts_ratio": _share(far, decoded_tokens),
        "beyond_measured_batches_ratio": batches.outside(measured.decodes),
        "beyond_measured_prompts_ratio": _share(float(large_tokens), float(admitted_tokens)),
    }


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


class Batches:
    """How many requests decode together on a worker, from one pass to the next, breaks included."""

    def __init__(self, ends: PassEnds) -> None:
        self.ends = ends
        self._steps = np.zeros(len(ends.end_ms) + 1, dtype=np.int32)

    def add(self, times: TokenTimes) -> None:
        """The requests of a block."""
        decoded = times.last > times.first
        np.add.at(self._steps, times.first[decoded], 1)
        np.subtract.at(self._steps, times.last[decoded], 1)

    def outside(self, decodes: tuple[int, int]) -> float:
        """Share of the time in which some number of requests outside the range decoded together on a worker."""
        if not len(self.ends.end_ms):
            return 0.0
        batches = np.cumsum(self._steps, dtype=np.int32)[:-2]  # 0 between the passes of two workers
        spans = np.diff(self.ends.end_ms)
        busy = batches > 0
        outside = busy & ((batches < decodes[0]) | (batches > decodes[1]))
        return _share(float(np.sum(spans[outside])), float(np.sum(spans[busy])))


def _saturation(config: Config, workload: Workload, record: Record) -> dict[str, float | int]:
    """How full the deployment was while requests arrived."""
    requests = record.requests
    start_ms, end_ms = arrival_span_ms(record)
    used_ms = used_token_ms = 0.0
    covered = Covered()
    for rows in arrival_blocks(record, workload) if end_ms > start_ms else ():
        arrival_ms = floats(requests.arrival_ms, rows)
        admit_ms = floats(requests.first_admit_ms, rows)
        terminal_ms = floats(requests.terminal_ms, rows)
        first_ms = floats(requests.first_token_ms, rows)
        served = ~np.isnan(admit_ms) & ~np.isnan(terminal_ms)
        inside = np.clip(np.minimum(terminal_ms, end_ms) - np.maximum(admit_ms, start_ms), 0.0, None)[served]
        hits = ints(requests.hit_tokens, rows)
        held = (ints(workload.input_tokens, rows) - hits + ints(requests.output_tokens, rows) / 2.0)[served]
        used_ms += float(np.sum(inside))
        used_token_ms += float(np.sum(inside * held))
        emitted = served & ~np.isnan(first_ms)
        ends = np.minimum(first_ms[emitted], end_ms)
        covered.add(ints(requests.worker, rows)[emitted], arrival_ms[emitted], ends)
    available_ms = max(len(record.passes), 1) * (end_ms - start_ms)
    running = _share(used_ms, available_ms * config.engine.max_decodes)
    kv = _share(used_token_ms, available_ms * config.engine.kv_capacity_tokens)
    busy = _share(covered.total_ms, available_ms)
    return {
        "prompt_busy_ratio": busy,
        "running_occupancy_ratio": running,
        "kv_occupancy_ratio": kv,
        "near_saturation": int(max(busy, running, kv) > HIGH_RATIO),
    }


class Covered:
    """Time that is in any of some intervals, added over workers.

    Attributes:
        total_ms: of the intervals so far.
    """

    def __init__(self) -> None:
        self.total_ms = 0.0
        self._until_ms: dict[int, float] = {}  # by worker

    def add(self, worker: IntArray, start_ms: FloatArray, end_ms: FloatArray) -> None:
        """More intervals, none of which starts before an earlier one."""
        for number in np.unique(worker).tolist():
            own = worker == number
            starts = start_ms[own]
            until = self._until_ms.get(number, -np.inf)
            ends = np.maximum.accumulate(np.maximum(end_ms[own], until))
            covered_until = np.concatenate(([until], ends[:-1]))
            self.total_ms += float(np.sum(np.clip(ends - np.maximum(starts, covered_until), 0.0, None)))
            self._until_ms[number] = float(ends[-1])


def arrival_span_ms(record: Record) -> tuple[float, float]:
    """When the first and the last request arrived; 0 if none did."""
    first_ms, last_ms = np.inf, -np.inf
    for rows in row_blocks(record):
        arrival_ms = floats(record.requests.arrival_ms, rows)
        first_ms = min(first_ms, float(np.fmin.reduce(arrival_ms, initial=np.inf)))
        last_ms = max(last_ms, float(np.fmax.reduce(arrival_ms, initial=-np.inf)))
    return (first_ms, last_ms) if last_ms >= first_ms else (0.0, 0.0)
