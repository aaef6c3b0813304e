"""What a writer of a trace format is, and what all of them say about what they lose.

Decides nothing about any format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from windtunnel.conversion.losses import Losses
from windtunnel.inspection.prefix_sharing import prefix_sharing
from windtunnel.workload.session import Workload


@dataclass(frozen=True)
class WriteOptions:
    """What is asked of a writer.

    Attributes:
        block_size: tokens a hash id stands for in the file; None for what is usual in the format.
        anonymise: write no names, and hash ids that count from 0 in the order in which they appear.
    """

    block_size: int | None = None
    anonymise: bool = False


class TraceWriter(Protocol):
    """How to write one kind of trace.

    Attributes:
        name: the trace format, as `FORMATS` calls it.
        block_size: tokens a hash id stands for unless the user says otherwise; None: the format has none.
        keeps_urgency: whether it writes how urgent requests are; keeps_outputs: which outputs are equal.
    """

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int | None: ...

    @property
    def keeps_urgency(self) -> bool: ...

    @property
    def keeps_outputs(self) -> bool: ...

    def lines(self, workload: Workload, options: WriteOptions, losses: Losses) -> Iterator[str]:
        """The lines of the file, without their ends. What is lost is known when the last one has been taken.

        Raises:
            InputError: the workload has no meaning in the format.
        """
        ...


def note_missing_arrivals(workload: Workload, losses: Losses) -> None:
    """A format with arrivals says zero where the source said nothing."""
    roots = len(workload.roots())
    missing = roots if workload.needs_concurrency else workload.loading.without_arrival if workload.loading else 0
    losses.note(min(missing, roots), roots, "arrivals", "are not stated in the source, and zero now")


def states_no_times(workload: Workload) -> bool:
    """Whether the source had neither arrivals nor delays."""
    loading = workload.loading
    nothing = workload.needs_concurrency or (loading is not None and loading.without_arrival >= len(workload.roots()))
    return bool(nothing) and not any(workload.time_ms)


def note_content(workload: Workload, losses: Losses) -> None:
    """A format of lengths shares nothing."""
    sharing = prefix_sharing(workload, 1)
    message = "would be served by an infinite cache, and no longer are: the format has lengths only"
    losses.note(sharing.shared_blocks, sharing.blocks, "prompt tokens", message)


def note_names(losses: Losses, names: list[str | None], things: str) -> None:
    """A format without such names."""
    lost = sum(name is not None for name in names)
    losses.note(lost, len(names), f"{things} names", "are not kept: the format has none")
