"""Results of benchmark tools, brought to one form: requests in flight, lengths, mean TTFT and TPOT.

TPOT is (last token - first token) / (tokens - 1) of a request: `mean_tpot_ms` of vLLM, "inter token latency" of AIPerf
and of GuideLLM, whose own "time per output token" counts the first token's wait too and is not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windtunnel.calibration.observations import Benchmark
from windtunnel.errors import InputError


def read_benchmarks(document: Any, source: str) -> list[Benchmark]:
    """The benchmarks in a JSON document of one of the three tools, or in a list of such.

    Raises:
        InputError: it is of none of them, or lacks what a closed loop needs.
    """
    if isinstance(document, list):
        if not document:
            raise InputError("is an empty list, expected benchmark results", source=source)
        return [benchmark for entry in document for benchmark in read_benchmarks(entry, source)]
    if not isinstance(document, dict):
        raise InputError("expected a JSON object", source=source)
    if isinstance(document.get("benchmarks"), list):
        return [_guidellm(entry, f"{source}: benchmark {i}") for i, entry in enumerate(document["benchmarks"])]
    if "time_to_first_token" in document:
        return [_aiperf(document, source)]
    if "mean_ttft_ms" in document or "mean_tpot_ms" in document:
        return [_vllm(document, source)]
    found = ", ".join(list(document)[:6]) or "nothing"
    raise InputError(
        f"found {found}; expected a result of vllm bench serve (mean_ttft_ms), AIPerf (time_to_first_token) or "
        "GuideLLM (benchmarks), a sweep of Dynamo's planner (z_itl), or rows of passes (ms)",
        source=source,
    )


def _vllm(result: Mapping[str, Any], source: str) -> Benchmark:
    completed = _positive(result.get("completed"), "completed", source)
    inputs = tuple(int(n) for n in result.get("input_lens") or ())
    outputs = tuple(int(n) for n in result.get("output_lens") or ())
    return Benchmark(
        concurrency=_concurrency(result.get("max_concurrency"), "max_concurrency", source),
        requests=int(completed),
        input_tokens=_positive(result.get("total_input_tokens"), "total_input_tokens", source) / completed,
        output_tokens=_positive(result.get("total_output_tokens"), "total_output_tokens", source) / completed,
        ttft_ms=_optional(result.get("mean_ttft_ms"), "mean_ttft_ms", source),
        tpot_ms=_optional(result.get("mean_tpot_ms"), "mean_tpot_ms", source),
        place=source,
        input_lengths=inputs if len(inputs) == len(outputs) and min(inputs + outputs, default=0) > 0 else (),
        output_lengths=outputs if len(inputs) == len(outputs) and min(inputs + outputs, default=0) > 0 else (),
    )


def _aiperf(result: Mapping[str, Any], source: str) -> Benchmark:
    def mean(name: str) -> Any:
        metric = result.get(name)
        return metric.get("avg") if isinstance(metric, Mapping) else None

    count = _positive(mean("request_count"), "request_count.avg", source)
    inputs = mean("input_sequence_length")
    if inputs is None and mean("total_isl") is not None:
        inputs = _positive(mean("total_isl"), "total_isl.avg", source) / count
    given = result.get("input_config")
    load = given.get("loadgen") if isinstance(given, Mapping) else None
    concurrency = load.get("concurrency") if isinstance(load, Mapping) else None
    return Benchmark(
        concurrency=_concurrency(concurrency, "input_config.loadgen.concurrency", source),
        requests=int(count),
        input_tokens=_positive(inputs, "input_sequence_length.avg", source),
        output_tokens=_positive(mean("output_sequence_length"), "output_sequence_length.avg", source),
        ttft_ms=_optional(mean("time_to_first_token"), "time_to_first_token.avg", source),
        tpot_ms=_optional(mean("inter_token_latency"), "inter_token_latency.avg", source),
        place=source,
    )


def _guidellm(result: Any, source: str) -> Benchmark:
    if not isinstance(result, Mapping) or not isinstance(result.get("metrics"), Mapping):
        raise InputError("expected an object with metrics", source=source)
    metrics = result["metrics"]

    def mean(name: str) -> Any:
        metric = metrics.get(name)
        successful = metric.get("successful") if isinstance(metric, Mapping) else None
        return successful.get("mean") if isinstance(successful, Mapping) else None

    totals = metrics.get("request_totals") or result.get("request_totals") or result.get("run_stats", {})
    config = result.get("config") or result.get("args") or {}
    strategy = config.get("strategy") if isinstance(config, Mapping) else {}
    strategy = strategy if isinstance(strategy, Mapping) else {}
    kind = strategy.get("type_")
    concurrency = strategy.get("streams") or (strategy.get("max_concurrency") if kind in (None, "concurrent") else None)
    if kind == "synchronous":
        concurrency = 1
    return Benchmark(
        concurrency=_concurrency(concurrency, "config.strategy.streams", source),
        requests=int(_positive(totals.get("successful") if isinstance(totals, Mapping) else None, "requests", source)),
        input_tokens=_positive(mean("prompt_token_count"), "prompt_token_count", source),
        output_tokens=_positive(mean("output_token_count"), "output_token_count", source),
        ttft_ms=_optional(mean("time_to_first_token_ms"), "time_to_first_token_ms", source),
        tpot_ms=_optional(mean("inter_token_latency_ms"), "inter_token_latency_ms", source),
        place=source,
    )


def _positive(value: Any, name: str, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise InputError(f"found {value!r}, expected a number above 0", source=source, field=name)
    return float(value)


def _optional(value: Any, name: str, source: str) -> float | None:
    """A latency; tools write 0 or leave it out where there is none."""
    if value is None or value == 0:
        return None
    return _positive(value, name, source)


def _concurrency(value: Any, name: str, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value != int(value):
        raise InputError(
            f"found {value!r}, expected how many requests were in flight: only closed loops can be fitted, an open one "
            "does not say how many ran at once",
            source=source,
            field=name,
        )
    return int(value)
