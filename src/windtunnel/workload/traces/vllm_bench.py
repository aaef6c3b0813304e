"""The `vllm-bench` trace format: the result file of `vllm bench serve --save-result --save-detailed`.

One JSON object with one entry a request in input_lens, output_lens and start_times (seconds); without start_times, as
older releases write it, requests have no arrivals. A request that failed in the benchmark has no output and asks for
none here. Lengths only. Source: vLLM 0.33, vllm/benchmarks/serve.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from windtunnel.errors import InputError
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.json_document import read_object
from windtunnel.workload.traces.json_rows import MAX_TOKENS, OUTPUT_EXPECTED
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import ZERO_TOKENS, BadRowError, ReadOptions, refuse
from windtunnel.workload.traces.rows import Head

_Lengths = Annotated[list[int], msgspec.Meta(description="a list of integers")]
_Times = Annotated[list[float], msgspec.Meta(description="a list of numbers of seconds")]


class BenchResult(msgspec.Struct):
    """The fields of a result that are read."""

    input_lens: _Lengths | None = None
    output_lens: _Lengths | None = None
    start_times: _Times | None = None


class VllmBench:
    """Reader of the format."""

    name = "vllm-bench"
    aliases = ("vllm_bench",)
    row = "one JSON object with input_lens, output_lens and start_times"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset(BenchResult.__struct_fields__)

    def recognises(self, head: Head) -> bool:
        is_result = "input_lens" in head.names or {"total_input_tokens", "request_throughput"} <= head.names
        return head.is_json and is_result

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        workload = Workload(", ".join(paths))
        for path in paths:
            result = read_object(path, BenchResult, self.row)
            if result.input_lens is None or result.output_lens is None:
                missing = "input_lens" if result.input_lens is None else "output_lens"
                message = "missing: expected a result that was saved with --save-detailed"
                raise InputError(message, source=path, field=missing)
            if result.start_times is None:
                workload.needs_concurrency = "the result has no start_times"
            _add_all(workload, path, result.input_lens, result.output_lens, result.start_times, options)
        return workload


def _add_all(
    workload: Workload,
    path: str,
    input_lens: list[int],
    output_lens: list[int],
    start_times: list[float] | None,
    options: ReadOptions,
) -> None:
    if len(output_lens) != len(input_lens) or (start_times is not None and len(start_times) != len(input_lens)):
        counts = f"{len(input_lens)} input_lens and {len(output_lens)} output_lens"
        if start_times is not None:
            counts += f" and {len(start_times)} start_times"
        raise InputError(f"found {counts}, expected as many of each", source=path)
    for place, (prompt, output) in enumerate(zip(input_lens, output_lens, strict=True)):
        if options.loading.rows == options.limit:
            return
        options.loading.rows += 1
        try:
            if not 1 <= prompt <= MAX_TOKENS:
                kind = {"kind": ZERO_TOKENS} if prompt == 0 else {}
                message = f"found {prompt}, expected an integer from 1 to {MAX_TOKENS}"
                raise BadRowError(message, field=f"input_lens[{place}]", **kind)
            if not 0 <= output <= MAX_TOKENS:
                raise BadRowError(f"found {output}, expected {OUTPUT_EXPECTED}", field=f"output_lens[{place}]")
            start_s = float("nan") if start_times is None else start_times[place]
            if abs(start_s) > 9e12:
                message = f"found {start_s}, expected a number of seconds within ±9e12"
                raise BadRowError(message, field=f"start_times[{place}]")
        except BadRowError as error:
            refuse(error, options, path, None)
        else:
            workload.add(unique_prompt(workload.num_requests, prompt), output, time_ms=start_s * 1000.0)
