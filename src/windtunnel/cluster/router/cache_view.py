"""What a router believes about its workers' KV: what they have cached, and which prompts are active there.

From events: blocks are known once the pass that stored them has ended, and a delay has passed. Approximate: a router
without events takes the prompts that it sent to a worker to be there for a while. Predicted: events, and for a short
while what was sent, which closes the gap before the first event. Active are the prompts of requests that were sent to a
worker and have not ended. All that is in one index, so that one lookup answers everything. Rules of Dynamo's indexers
(approximate ones round the end of an entry up to 100 ms). Times are virtual ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil

import numpy as np

from windtunnel.cluster.router.block_index import BlockIndex, IndexSpan, Numbers
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.workload.content import Content

BUCKET_MS = 100.0

# what a worker's blocks in the index are; owner LANES * worker + lane
CACHED = 0  # as events say
SENT = 1
ACTIVE = 2
LANES = 3


class CacheView:
    """The belief of one router.

    Attributes:
        block_size: tokens of a block.
        reads_events: whether there are events; else `sent_ttl_ms` is how long prompts are believed.
        dates_events: they are known some time after the end of their pass, which therefore matters.

    Args:
        delay_ms: from the end of a pass until its events are known.
        sent_ttl_ms: how long what was sent is believed, 0 for not at all.
    """

    def __init__(self, block_size: int, reads_events: bool, delay_ms: float, sent_ttl_ms: float) -> None:
        self.block_size = block_size
        self.reads_events = reads_events
        self.dates_events = delay_ms > 0.0
        self.index = BlockIndex(block_size)
        self._delay_ms = delay_ms
        self._sent_ttl_ms = sent_ttl_ms
        self._late: deque[tuple[float, int, CacheEvent]] = deque()  # events that are not known yet
        self._sent: deque[tuple[float, int, Content, int]] = deque()  # what was sent, by the end of its time
        self._tails: dict[Content, IndexSpan] = {}  # where active prompts end
        self._depths: Numbers = np.zeros(0, dtype=np.int64)
        self._workers = 0

    def make_room(self, workers: int) -> None:
        """Let there be at least so many workers."""
        if workers > self._workers:
            self._workers = workers
            self.index.make_room(LANES * workers)

    # --- questions

    def look(
        self,
        content: Content,
        blocks: int,
        now_ms: float,
        unread: Callable[[], Sequence[int]],
        refresh: Callable[[Iterable[int]], bool],
        publish: Callable[[Content], None],
    ) -> Numbers:
        """By worker, the leading blocks of `content`, at most `blocks`, that are believed to be cached there.

        Args:
            unread, refresh, publish: see `TrackingRouter`.
        """
        if self._sent:
            self._forget_sent(now_ms)
        if not self.reads_events:
            self._depths = self.index.depths(content, blocks)
            return self._depths[SENT::LANES]
        if content.sources:
            publish(content)
        if self._late:
            self._learn_late(now_ms)
        depths = self.index.depths(content, blocks)
        waiting = unread()
        if waiting:
            stale = [worker for worker in waiting if depths[LANES * worker + CACHED]]
            if stale and refresh(stale):
                self._learn_late(now_ms)
                depths = self.index.depths(content, blocks)
        self._depths = depths
        if self._sent_ttl_ms:
            return np.maximum(depths[CACHED::LANES], depths[SENT::LANES])
        return depths[CACHED::LANES]

    def active(self, content: Content, blocks: int) -> Numbers:
        """By worker, the leading blocks of `content` that are active there."""
        return self.index.depths(content, blocks)[ACTIVE::LANES]

    def active_of_last(self) -> Numbers:
        """The same of the content that was asked about last."""
        return self._depths[ACTIVE::LANES]

    @property
    def active_blocks(self) -> Numbers:
        """Distinct blocks of the active prompts of each worker."""
        return self.index.blocks[ACTIVE::LANES]

    # --- news

    def learn(self, worker: int, events: list[CacheEvent], now_ms: float) -> None:
        """Passes that have ended by now have published events."""
        if self._delay_ms:
            self._late += [(now_ms + self._delay_ms, worker, event) for event in events]
            return
        self._apply(worker, events)

    def sent(self, worker: int, content: Content, blocks: int, now_ms: float) -> None:
        """A request whose prompt has so many full blocks is on its way to a worker."""
        if blocks and self._sent_ttl_ms:
            self.index.store(LANES * worker + SENT, content, 0, blocks)
            end_ms = ceil((now_ms + self._sent_ttl_ms) / BUCKET_MS) * BUCKET_MS
            self._sent.append((end_ms, worker, content, blocks))

    def begin(self, worker: int, content: Content, blocks: int) -> None:
        """The first `blocks` blocks of a prompt are active on a worker."""
        if blocks:
            self._tails[content] = self.index.hold_prefix(LANES * worker + ACTIVE, content, blocks)

    def end(self, worker: int, content: Content) -> None:
        """They are so no more."""
        tail = self._tails.pop(content, None)
        if tail is not None:
            self.index.drop_prefix(LANES * worker + ACTIVE, tail)

    def forget(self, worker: int) -> None:
        """A worker is gone, and its cache with it."""
        self.index.drop(LANES * worker + CACHED)
        self.index.drop(LANES * worker + SENT)
        self._sent = deque(entry for entry in self._sent if entry[1] != worker)
        self._late = deque(entry for entry in self._late if entry[1] != worker)

    def _forget_sent(self, now_ms: float) -> None:
        entries = self._sent
        while entries and entries[0][0] <= now_ms:
            _, worker, content, blocks = entries.popleft()
            self.index.remove(LANES * worker + SENT, content, 0, blocks)

    def _learn_late(self, now_ms: float) -> None:
        late = self._late
        while late and late[0][0] <= now_ms:
            _, worker, event = late.popleft()
            self._apply(worker, (event,))

    def _apply(self, worker: int, events: Sequence[CacheEvent]) -> None:
        if worker >= self._workers:
            self.make_room(worker + 1)
        owner = LANES * worker + CACHED
        index = self.index
        for event in events:
            if event.stored:
                index.store(owner, event.content, event.first, event.end)
            else:
                index.remove(owner, event.content, event.first, event.end)
