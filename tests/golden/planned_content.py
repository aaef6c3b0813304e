"""Content of scenarios in which requests state what they generate: found from token ids, as readers of traces do."""

from __future__ import annotations

from typing import Any

from golden.vllm_format import token_ids
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.token_ids import TokenTree


def output_ids(described: dict[str, Any], number: int, output_seed: int) -> list[int]:
    """The token ids that request `number` of a scenario generates, given the seed of the output of the first."""
    segments = described.get("output") or [[output_seed + number, described["output_len"]]]
    return token_ids(segments)[: described["output_len"]]


def planned_workload(requests: list[dict[str, Any]], output_seed: int) -> Workload | None:
    """The requests of a scenario as a workload; None if all their outputs are private."""
    if not any("output" in described for described in requests):
        return None
    numbers: dict[int, int] = {}  # ids of traces have 32 bits
    tree = TokenTree()
    workload = Workload("scenario")
    for number, described in enumerate(requests):
        prompt = [numbers.setdefault(token, len(numbers)) for token in token_ids(described["prompt"])]
        output = [numbers.setdefault(token, len(numbers)) for token in output_ids(described, number, output_seed)]
        workload.add(tree.prompt(prompt), len(output))
        workload.plan(number, tree.output(prompt, output, number))
    return workload
