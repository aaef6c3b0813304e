"""Records written by hand: the numbers a report is checked against are visible in the test that checks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from windtunnel.config.schema import Config
from windtunnel.record.columns import Record, Status
from windtunnel.workload.session import Workload

# Dynamo's measured run of four prompts of 512 tokens with 1, 2, 5 and 9 output tokens, all sent at once to one
# worker of 64,000 tokens of KV cache. The first pass holds all four; each later pass decodes those that still run.
FOUR_OUTPUTS = (1, 2, 5, 9)
FOUR_PASS_ENDS_MS = (
    56.804864,
    63.828752,
    70.429647,
    77.032204,
    83.636422,
    89.811042,
    95.986499,
    102.162794,
    108.339926,
)


@dataclass
class HandmadeResult:
    """What a simulation returns, without a simulation."""

    workload: Workload
    record: Record
    config: Config = field(default_factory=Config)
    wall_time_ms: float = 250.0


def empty_result(num_requests: int = 0, num_workers: int = 1) -> HandmadeResult:
    workload = Workload("handmade")
    for _ in range(num_requests):
        workload.add([(0, 0, 10)], 1)
    return HandmadeResult(workload, Record(num_requests, num_workers))


def add_passes(result: HandmadeResult, worker: int, ends_ms: list[float]) -> None:
    result.record.passes[worker].end_ms.extend(ends_ms)


def complete(
    result: HandmadeResult,
    request: int,
    passes: list[int],
    *,
    worker: int = 0,
    arrival_ms: float = 0.0,
    input_tokens: int = 10,
) -> None:
    """Make a request complete that emitted one token in each of `passes`."""
    requests = result.record.requests
    ends_ms = result.record.passes[worker].end_ms
    result.workload.input_tokens[request] = input_tokens
    result.workload.output_tokens[request] = len(passes)
    requests.status[request] = Status.COMPLETED
    requests.arrival_ms[request] = arrival_ms
    requests.first_admit_ms[request] = arrival_ms
    requests.worker[request] = worker
    requests.output_tokens[request] = len(passes)
    requests.first_pass[request], requests.last_pass[request] = passes[0], passes[-1]
    requests.first_token_ms[request], requests.last_token_ms[request] = ends_ms[passes[0]], ends_ms[passes[-1]]
    requests.terminal_ms[request] = ends_ms[passes[-1]]
    requests.prefill_ms[request] = ends_ms[passes[0]] - arrival_ms
    requests.decode_ms[request] = ends_ms[passes[-1]] - ends_ms[passes[0]]
    for before, after in pairwise(passes):
        if after > before + 1:
            requests.break_request.append(request)
            requests.break_before.append(before)
            requests.break_after.append(after)
    result.record.end_ms = max(result.record.end_ms, ends_ms[passes[-1]])


def end(
    result: HandmadeResult, request: int, status: Status, *, at_ms: float, arrival_ms: float = 0.0, reason: str = ""
) -> None:
    """Make a request end without output."""
    requests = result.record.requests
    requests.status[request] = status
    requests.arrival_ms[request] = arrival_ms
    requests.terminal_ms[request] = at_ms
    requests.queued_ms[request] = at_ms - arrival_ms
    if reason:
        requests.reasons[request] = reason


def four_outputs() -> HandmadeResult:
    result = empty_result(len(FOUR_OUTPUTS))
    add_passes(result, 0, list(FOUR_PASS_ENDS_MS))
    for request, tokens in enumerate(FOUR_OUTPUTS):
        complete(result, request, list(range(tokens)), input_tokens=512)
    result.record.worker_ms = result.record.end_ms
    return result
