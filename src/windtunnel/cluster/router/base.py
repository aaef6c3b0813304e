"""What a router sees and decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windtunnel.workload.content import Content


class RoutedRequest:
    """A request that needs a worker.

    Attributes:
        number: its number in the workload.
        session: number of its session; turn: its place in the session.
        input_tokens, output_tokens: prompt length and requested output length.
        content: the tokens of its prompt (and, beyond `input_tokens`, of the output it will generate).
    """

    __slots__ = ("content", "input_tokens", "number", "output_tokens", "session", "turn")

    def __init__(
        self, number: int, session: int, turn: int, input_tokens: int, output_tokens: int, content: Content
    ) -> None:
        self.number = number
        self.session = session
        self.turn = turn
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.content = content


class WorkerView(Protocol):
    """What a router may know of a worker at the instant it decides. All of it costs O(1) to read.

    Attributes:
        number: the worker's number; `route` returns one of these.
        num_requests: requests sent to it that have not ended.
        num_waiting, num_running: those in its queue and in its batch.
        free_blocks, num_blocks: KV blocks not held by running requests, and all there are.
    """

    @property
    def number(self) -> int: ...
    @property
    def num_requests(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...


class Router(Protocol):
    """Places requests. Anything with this method is one; see docs/routers.md for an example."""

    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        """The number of the worker that gets `request`. `workers` is in ascending order and never empty."""
        ...
