"""For tests: someone to tell every decision of an SGLang scheduler to, turn by turn."""

from __future__ import annotations

from typing import Protocol

from windtunnel.engine.sglang_request import Batch, SglangRequest


class TurnObserver(Protocol):
    """Told of every decision in order. With one, runs of decodes walk their turns; they decide the same."""

    def on_retraction(self, victim: SglangRequest) -> None: ...

    def on_failure(self, request: SglangRequest) -> None:
        """The engine gives a request up."""
        ...

    def on_scheduled(self, batch: Batch | None) -> None:
        """A turn has launched a batch, or nothing."""
        ...

    def on_result(self, batch: Batch) -> None:
        """The result of a batch will be processed now."""
        ...

    def on_concluded(self) -> None:
        """The turn has ended."""
        ...
