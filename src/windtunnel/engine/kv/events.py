"""What a KV cache publishes when blocks become findable or are evicted.

An event names blocks by content, not by hash or id; whoever needs those makes them at the edge. vLLM
publishes one event per physical copy, so an index of events must count copies. A pool logs events in spans; where a run
of decodes is not cut for them, `Engine.commit_ended` brings them up to date for who asks inside it.
"""

from __future__ import annotations

from windtunnel.workload.content import Content


class CacheEvent:
    """Blocks [first, end) of `content` were stored, in ascending order, or removed, in descending order."""

    __slots__ = ("content", "end", "first", "stored")

    def __init__(self, stored: bool, content: Content, first: int, end: int) -> None:
        self.stored = stored
        self.content = content
        self.first = first
        self.end = end
