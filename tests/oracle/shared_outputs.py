"""Scenarios in which requests generate the same tokens as others, from the same prompt on.

Made from any scenario: some requests are sent what another was sent, or that and the beginning of its answer, and
generate what it generates, as far as to a token where they part.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from golden.vllm_format import Scenario


def share_outputs(data: st.DataObject, scenario: Scenario, output_seed: int) -> Scenario:
    """The scenario with outputs that are shared, always that of the first two requests."""
    requests: list[dict[str, Any]] = scenario["requests"]
    for number in range(1, len(requests)):
        if number > 1 and data.draw(st.integers(0, 2)) == 2:
            continue
        first = data.draw(st.integers(0, number - 1))
        described, model = requests[number], requests[first]
        answer = _answer(model, output_seed + first)
        own = [output_seed + number, described["output_len"]]
        common = data.draw(st.integers(1, model["output_len"]))
        quoted = data.draw(st.sampled_from([0, 0, common - 1]))
        room = _tokens(described["prompt"]) + described["output_len"]
        longest = room - described["output_len"] - _tokens(model["prompt"])
        if longest < quoted:
            if number > 1:
                continue  # it might be longer than the scenario allows
            quoted = 0
        described["prompt"] = [*map(list, model["prompt"]), *_beginning(answer, quoted)]
        described["output_len"] = max(1, min(described["output_len"], room - _tokens(described["prompt"])))
        described["output"] = [*_beginning(answer, common, quoted), own]
    return scenario


def _answer(described: dict[str, Any], seed: int) -> list[list[int]]:
    return _beginning(described.get("output") or [[seed, described["output_len"]]], described["output_len"])


def _tokens(segments: list[list[int]]) -> int:
    return sum(segment[1] for segment in segments)


def _beginning(segments: list[list[int]], upto: int, start: int = 0) -> list[list[int]]:
    """Tokens [start, upto) of some segments."""
    found = []
    at = 0
    for seed, length, *first in segments:
        begin, end = max(at, start), min(at + length, upto)
        if begin < end:
            found.append([seed, end - begin, sum(first) + begin - at])
        at += length
    return found
