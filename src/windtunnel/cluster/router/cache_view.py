"""What a router believes about the caches of its workers.

From events: blocks are known once the pass that stored them has ended, and a delay has passed. Approximate: a router
without events takes the prompts that it sent to a worker to be there for a while. Predicted: events, and for a short
while what was sent, which closes the gap before the first event. Rules of Dynamo's indexers (approximate ones round
the end of an entry up to 100 ms). Times are virtual ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import ceil

from windtunnel.cluster.router.block_index import BlockIndex
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.workload.content import Content

BUCKET_MS = 100.0


class SentPrompts:
    """Blocks of prompts that were sent to workers, each for `ttl_ms` after it was sent there last."""

    def __init__(self, block_size: int, ttl_ms: float) -> None:
        self.index = BlockIndex(block_size)
        self.ttl_ms = ttl_ms
        self._entries: deque[tuple[float, int, Content, int]] = deque()  # by the end of their time

    def add(self, worker: int, content: Content, blocks: int, now_ms: float) -> None:
        """The first `blocks` blocks of a prompt are on their way to a worker."""
        if blocks and self.ttl_ms:
            self.index.store(worker, content, 0, blocks)
            end_ms = ceil((now_ms + self.ttl_ms) / BUCKET_MS) * BUCKET_MS
            self._entries.append((end_ms, worker, content, blocks))

    def overlaps(self, content: Content, blocks: int, now_ms: float) -> dict[int, int]:
        """Leading blocks of `content` by worker, as sent."""
        entries = self._entries
        while entries and entries[0][0] <= now_ms:
            _, worker, sent, count = entries.popleft()
            self.index.remove(worker, sent, 0, count)
        return self.index.overlaps(content, blocks)

    def forget(self, worker: int) -> None:
        """A worker is gone."""
        self.index.drop(worker)
        self._entries = deque(entry for entry in self._entries if entry[1] != worker)


class CacheView:
    """The belief of one router.

    Args:
        reads_events: whether there are events; else `sent_ttl_ms` is how long prompts are believed.
        delay_ms: from the end of a pass until its events are known.
        sent_ttl_ms: how long what was sent is believed, 0 for not at all.
    """

    def __init__(self, block_size: int, reads_events: bool, delay_ms: float, sent_ttl_ms: float) -> None:
        self.block_size = block_size
        self.reads_events = reads_events
        self.index = BlockIndex(block_size)
        self.sent = SentPrompts(block_size, sent_ttl_ms)
        self._delay_ms = delay_ms
        self.dates_events = delay_ms > 0.0
        self._late: deque[tuple[float, int, CacheEvent]] = deque()  # events that are not known yet

    def learn(self, worker: int, events: list[CacheEvent], now_ms: float) -> None:
        """Passes that have ended by now have published events."""
        if self._delay_ms:
            self._late += [(now_ms + self._delay_ms, worker, event) for event in events]
            return
        self._apply(worker, events)

    def overlaps(
        self,
        content: Content,
        blocks: int,
        now_ms: float,
        refresh: Callable[[Iterable[int]], bool],
        publish: Callable[[Content], None],
    ) -> dict[int, int]:
        """By worker, the number of leading blocks of `content` that are believed to be cached there; only positive.

        Args:
            blocks: the most to look at. refresh, publish: see `TrackingRouter`.
        """
        if not blocks:
            return {}
        if not self.reads_events:
            return self.sent.overlaps(content, blocks, now_ms)
        if content.sources:
            publish(content)
        self._learn_late(now_ms)
        found = self.index.overlaps(content, blocks)
        if found and refresh(found):
            self._learn_late(now_ms)
            found = self.index.overlaps(content, blocks)
        if self.sent.ttl_ms:
            for worker, count in self.sent.overlaps(content, blocks, now_ms).items():
                if count > found.get(worker, 0):
                    found[worker] = count
        return found

    def placed(self, worker: int, content: Content, blocks: int, now_ms: float) -> None:
        """A request whose prompt has so many full blocks was sent to a worker."""
        self.sent.add(worker, content, blocks, now_ms)

    def forget(self, worker: int) -> None:
        """A worker is gone, and its cache with it."""
        self.index.drop(worker)
        self.sent.forget(worker)
        self._late = deque(entry for entry in self._late if entry[1] != worker)

    def _learn_late(self, now_ms: float) -> None:
        late = self._late
        while late and late[0][0] <= now_ms:
            _, worker, event = late.popleft()
            self._apply(worker, [event])

    def _apply(self, worker: int, events: list[CacheEvent]) -> None:
        index = self.index
        for event in events:
            if event.stored:
                index.store(worker, event.content, event.first, event.end)
            else:
                index.remove(worker, event.content, event.first, event.end)
