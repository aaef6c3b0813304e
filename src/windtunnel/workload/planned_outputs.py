"""Outputs whose tokens a trace states, as content that several requests may generate.

Without a plan an output is private to its request: no other output is ever equal to it. A plan says which content an
output is, so that a cache finds what one request has generated for another that has the same prompt and generates, or
quotes, the same tokens: real engines know blocks by their tokens, whoever computed them. Only plans that have something
in common are kept, all others change nothing. What request r is the first to generate has an origin of its own,
`planned_origin(r)`, whatever becomes of r: a part of a trace may have its content without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windtunnel.workload.content import Content, Run

FIRST_PLANNED = -(2**40)  # origins from here down are planned outputs; those from -1 down to here are private ones


def planned_origin(request_index: int) -> int:
    """Origin of the tokens that request number `request_index` is the first to generate."""
    return FIRST_PLANNED - request_index


class PlannedOutputs:
    """What requests will generate, of those that do not generate it alone.

    Attributes:
        runs: by request number, its output from the first token on.
        origins: those of all of them.
    """

    def __init__(self) -> None:
        self.runs: dict[int, tuple[Run, ...]] = {}
        self.origins: set[int] = set()

    def add(self, request: int, runs: Sequence[Run], output_tokens: Sequence[int]) -> None:
        """Plan the output of a request, which quotes other outputs, or its own, as prompts do.

        Args:
            runs: as long as the output.
            output_tokens: that each request was asked for.
        """
        planned: list[Run] = []
        for origin, start, length in runs:
            if FIRST_PLANNED < origin < 0:
                first = -1 - origin
                if first != request and first not in self.runs:
                    self._keep(first, [(planned_origin(first), 0, output_tokens[first])])
                origin = planned_origin(first)
            planned.append((origin, start, length))
        self._keep(request, planned)

    def _keep(self, request: int, runs: Sequence[Run]) -> None:
        self.runs[request] = tuple(runs)
        self.origins.update(origin for origin, _, _ in runs)

    def renumbered(self, number: dict[int, int]) -> PlannedOutputs:
        """The same plans under the new numbers of their requests, without those that are not there."""
        result = PlannedOutputs()
        for request, runs in self.runs.items():
            if request in number:
                result._keep(number[request], runs)
        return result

    def resolve(self, runs: Iterable[Run]) -> list[Run]:
        """Runs of a prompt, what they quote replaced by what was planned for it."""
        found: list[Run] = []
        for run in runs:
            origin, start, length = run
            planned = self.runs.get(-1 - origin) if origin < 0 else None
            if planned is None:
                found.append(run)
            else:
                found += _part(planned, start, length)
        return found

    def content(self, request: int, prompt: Sequence[Run], output_tokens: int) -> Content:
        """A prompt, then the output of its request.

        Its `sources` are all origins that others may generate, those of the output included: a hit on them may grow
        while they do.
        """
        runs = self.resolve(prompt)
        sources = [origin for origin, _, _ in runs if origin < 0 or origin in self.origins]
        planned = self.runs.get(request)
        if planned is None:
            content = Content.of(runs, (-1 - request, 0, output_tokens))
        else:
            output = _part(planned, 0, output_tokens)
            sources += [origin for origin, _, _ in output]
            content = Content.of([*runs, *output])
        content.sources = list(dict.fromkeys(sources))
        return content


def is_planned(origin: int) -> bool:
    """Whether a source of a content is planned, so that several requests may generate it."""
    return origin >= 0 or origin <= FIRST_PLANNED


def _part(runs: Sequence[Run], start: int, length: int) -> list[Run]:
    """`length` tokens of some runs from `start` on."""
    found: list[Run] = []
    for origin, first, tokens in runs:
        skipped = min(start, tokens)
        taken = min(tokens - skipped, length)
        if taken > 0:
            found.append((origin, first + skipped, taken))
        start -= skipped
        length -= taken
    return found
