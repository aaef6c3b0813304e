"""What was measured: single passes of an engine, and benchmarks that kept a number of requests in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.timing.base import PassShape


@dataclass(frozen=True)
class PassObservation:
    """One pass.

    Attributes:
        shape: what it computed. ms: how long it took.
        place: where it was read, for messages.
        is_client_time: whether a client measured it, so that network and server are in it too.
    """

    shape: PassShape
    ms: float
    place: str
    is_client_time: bool = False

    @property
    def group(self) -> str:
        """Observations of a group are alike: neighbours would give each other away if they were held out apart."""
        if self.shape.num_decodes:
            return f"context {self.shape.decode_context_tokens / self.shape.num_decodes:.2g}"
        return f"prompt {sum(self.shape.chunk_tokens):.1g}"


@dataclass(frozen=True)
class Benchmark:
    """One run of a benchmark with a fixed number of requests in flight.

    Attributes:
        concurrency: that number. requests: how many completed.
        input_tokens, output_tokens: mean lengths; input_lengths and output_lengths: of each request, if recorded.
        ttft_ms, tpot_ms: means over requests; None if not recorded.
        place: where it was read.
    """

    concurrency: int
    requests: int
    input_tokens: float
    output_tokens: float
    ttft_ms: float | None
    tpot_ms: float | None
    place: str
    input_lengths: tuple[int, ...] = ()
    output_lengths: tuple[int, ...] = ()


@dataclass
class Observations:
    """Everything that was read.

    Attributes:
        skipped: rows that say nothing, and why, by reason.
    """

    passes: list[PassObservation] = field(default_factory=list)
    benchmarks: list[Benchmark] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
