"""For tests: someone to tell every decision of a scheduler to, pass by pass."""

from __future__ import annotations

from typing import Protocol

from windtunnel.engine.request import EngineRequest

BatchRow = tuple[EngineRequest, int, int]  # request, tokens computed before, tokens of this pass


class PassObserver(Protocol):
    """Told of every decision in order. With one, runs of decodes walk their passes; they decide the same."""

    def on_admission(self, request: EngineRequest, hit_tokens: int) -> None: ...

    def on_preemption(self, victim: EngineRequest, requester: EngineRequest) -> None: ...

    def on_refusal(self, head: EngineRequest, hit_tokens: int, free_blocks: int) -> None:
        """The head of the queue does not fit in the free blocks."""
        ...

    def on_scheduled(self, rows: list[BatchRow]) -> None:
        """The batch in order. Empty if nothing can run."""
        ...

    def on_concluded(self) -> None:
        """The pass has ended and its output is processed."""
        ...
