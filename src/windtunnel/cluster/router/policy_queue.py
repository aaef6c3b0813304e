"""The queue of a router: who goes next of those that found all workers busy.

Within a class the strictly more urgent go first, then the higher score; between classes a deficit round robin shares
out uncached prompt tokens by quantum. Rules of Dynamo's policy queue. The file does not know workers: its owner says
which classes are blocked.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from windtunnel.cluster.router.base import RefusalError, RoutedRequest
from windtunnel.cluster.router.block_index import Numbers
from windtunnel.config.policy_classes import PolicyClass, PolicyClasses


class QueuedRequest:
    """A request that waits.

    Attributes:
        cached: leading blocks of its prompt by worker, as they were known when it arrived.
        uncached_tokens: of its prompt, on the worker that has most of it; at least 1.
        gone: it was sent or withdrawn.
    """

    __slots__ = ("cached", "gone", "policy_class", "request", "uncached_tokens")

    def __init__(self, request: RoutedRequest, policy_class: int, cached: Numbers, uncached_tokens: int) -> None:
        self.request = request
        self.policy_class = policy_class
        self.cached = cached
        self.uncached_tokens = uncached_tokens
        self.gone = False


class _Backlog:
    """The requests that wait in one class, and what it may send."""

    def __init__(self, rules: PolicyClass) -> None:
        self.rules = rules
        self.heap: list[tuple[int, float, int, QueuedRequest]] = []
        self.requests = 0
        self.raw_tokens = 0
        self.cached_tokens = 0
        self.deficit_tokens = 0

    def head(self) -> QueuedRequest:
        """The next one; there must be any."""
        while self.heap[0][3].gone:
            heappop(self.heap)
        return self.heap[0][3]

    def count(self, entry: QueuedRequest, sign: int) -> None:
        raw_tokens = entry.request.input_tokens
        self.requests += sign
        self.raw_tokens += sign * raw_tokens
        self.cached_tokens += sign * max(raw_tokens - entry.uncached_tokens, 0)
        if not self.requests:
            self.heap.clear()
            self.deficit_tokens = 0


class PolicyQueue:
    """Requests that wait, by class."""

    def __init__(self, classes: PolicyClasses) -> None:
        self.classes = classes
        self._backlogs = [_Backlog(rules) for rules in classes.classes]
        self._waiting: dict[int, QueuedRequest] = {}
        self._entered = 0
        self._cursor = 0  # the class whose turn it is
        self._carried: int | None = None  # the class that was served last, and may have a deficit left

    def __len__(self) -> int:
        return len(self._waiting)

    def has_backlog(self, policy_class: int) -> bool:
        """Whether anybody waits in a class."""
        return self._backlogs[policy_class].requests > 0

    def push(self, entry: QueuedRequest, now_ms: float, num_workers: int) -> None:
        """Let a request wait.

        Raises:
            RefusalError: its class is at one of its limits already.
        """
        backlog = self._backlogs[entry.policy_class]
        rules = backlog.rules
        for what, current, limit in (
            ("requests", backlog.requests, rules.request_queue_limit_per_worker),
            ("prompt tokens", backlog.raw_tokens, rules.raw_isl_token_queue_limit_per_worker),
            ("cached prompt tokens", backlog.cached_tokens, rules.cached_token_queue_limit_per_worker),
        ):
            if limit is not None and current >= limit * num_workers:
                raise RefusalError(
                    f"router queue of class {rules.name} is full: {current} {what} wait, "
                    f"its limit is {limit} for each of {num_workers} workers"
                )
        urgency = entry.request.urgency
        priority = max(urgency.priority, 0)
        if rules.queue_policy == "wspt":
            score = (1 + priority) / max(entry.uncached_tokens, 1)
        elif rules.queue_policy == "lcfs":
            score = priority + now_ms / 1000.0
        else:
            score = priority - now_ms / 1000.0
        self._entered += 1
        heappush(backlog.heap, (-urgency.strict_priority, -score, self._entered, entry))
        backlog.count(entry, 1)
        self._waiting[entry.request.number] = entry

    def withdraw(self, number: int) -> None:
        """Forget a request that waits."""
        self._remove(self._waiting[number])

    def pop(self, is_blocked: Callable[[PolicyClass], bool]) -> QueuedRequest | None:
        """The next one of a class that is not blocked; None if there is none."""
        open_classes = [
            number
            for number, backlog in enumerate(self._backlogs)
            if backlog.requests and not is_blocked(backlog.rules)
        ]
        if not open_classes:
            return None
        entry = self._backlogs[self._next_class(open_classes)].head()
        self._remove(entry)
        return entry

    def _next_class(self, open_classes: list[int]) -> int:
        """Deficit round robin; the class that is returned has paid for its head."""
        backlogs = self._backlogs
        carried = self._carried
        if carried is not None and carried in open_classes and self._pay(carried):
            return carried
        turn = [n for n in open_classes if n >= self._cursor] + [n for n in open_classes if n < self._cursor]
        for number in turn:
            backlogs[number].deficit_tokens += backlogs[number].rules.quantum
            if self._pay(number):
                return self._served(number)
        rounds = min(
            -(-(backlogs[n].head().uncached_tokens - backlogs[n].deficit_tokens) // backlogs[n].rules.quantum)
            for n in turn
        )
        for number in turn:
            backlogs[number].deficit_tokens += rounds * backlogs[number].rules.quantum
        return self._served(next(number for number in turn if self._pay(number)))

    def _pay(self, number: int) -> bool:
        backlog = self._backlogs[number]
        cost = backlog.head().uncached_tokens
        if backlog.deficit_tokens < cost:
            return False
        backlog.deficit_tokens -= cost
        return True

    def _served(self, number: int) -> int:
        self._carried = number
        self._cursor = (number + 1) % len(self._backlogs)
        return number

    def _remove(self, entry: QueuedRequest) -> None:
        entry.gone = True
        del self._waiting[entry.request.number]
        self._backlogs[entry.policy_class].count(entry, -1)
