"""A link that carries KV bytes: when each transfer over it ends.

A transfer waits `latency_ms` for its first byte and uses no bandwidth meanwhile; those whose bytes flow share the
bandwidth equally (processor sharing). Completions come in the order of their end, those of one instant in the order of
their start. The link decides nothing else: what is carried, and what follows, is its owner's business. All times follow
from the starts and cancellations alone, however often somebody looks, so runs of passes and single passes agree.

The bytes that a transfer has got since the link was last idle are the same for all that flow, up to when each began.
So one running sum serves all of them, each ends at a fixed value of it, and an event costs O(log n).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

INFINITE = float("inf")
BYTES_PER_MS = 1e6  # of one GB/s; a GB is 10**9 bytes


class Transfer:
    """Bytes on their way. Owners subclass it for what they need to know at its end.

    Attributes:
        size_bytes: how much is carried.
        start_ms: when it was handed to the link, first-byte latency included in what follows; NaN before.
        end_ms: when it completed; NaN until then.
        cancelled: it left the link before its end.
    """

    __slots__ = ("cancelled", "end_ms", "number", "size_bytes", "start_ms")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.number = -1  # place among the starts of its link
        self.start_ms = float("nan")
        self.end_ms = float("nan")
        self.cancelled = False


class Link:
    """One direction of a connection.

    Args:
        gb_per_s: bandwidth, in 10**9 bytes per second; infinite is allowed.
        latency_ms: from the start of a transfer to its first byte.
        shared: whether transfers share the bandwidth; otherwise each has all of it (unlimited parallelism).

    Attributes:
        next_ms: when to call `advance` next, infinite if nothing is under way: no transfer ends before.
        num_transfers: those under way, the ones that wait for their first byte included.
        busy_ms: time during which bytes flowed, up to the last event.
        carried_bytes: of the transfers that completed.
        rank: its place among those that one owner plays together.
    """

    __slots__ = (
        "_begin_ms",
        "_done",
        "_end_ms",
        "_flowing",
        "_last_ms",
        "_lone",
        "_num_flowing",
        "_share_bytes",
        "_starts",
        "_waiting",
        "busy_ms",
        "bytes_per_ms",
        "carried_bytes",
        "latency_ms",
        "next_ms",
        "num_transfers",
        "rank",
        "shared",
    )

    def __init__(self, gb_per_s: float, latency_ms: float = 0.0, shared: bool = True) -> None:
        if not gb_per_s > 0:
            raise ValueError(f"expected a bandwidth above 0 GB/s, found {gb_per_s}")
        if not 0 <= latency_ms < INFINITE:
            raise ValueError(f"expected a finite latency of at least 0 ms, found {latency_ms}")
        self.bytes_per_ms = gb_per_s * BYTES_PER_MS
        self.latency_ms = latency_ms
        self.shared = shared and gb_per_s != INFINITE
        self.next_ms = INFINITE
        self.num_transfers = 0
        self.busy_ms = 0.0
        self.carried_bytes = 0
        self.rank = 0
        self._starts = 0
        self._waiting: deque[Transfer] = deque()  # for their first byte; of one latency, so in the order of their start
        self._flowing: list[tuple[float, int, Transfer]] = []  # a heap by when each ends, in bytes (shared) or in ms
        self._num_flowing = 0  # without those that were cancelled
        self._share_bytes = 0.0  # what a transfer that flows since the link was idle has got up to `_last_ms`
        self._last_ms = 0.0  # of the last event
        self._begin_ms = INFINITE  # of the next first byte
        self._end_ms = INFINITE  # of the next transfer that ends
        self._lone: Transfer | None = None  # the only one under way: when it ends is known without all that
        self._done: list[Transfer] = []

    def start(self, transfer: Transfer, now_ms: float) -> None:
        """Hand over a new transfer at now_ms, which is no earlier than any time the link was told before."""
        assert now_ms >= self._last_ms, "time never goes back"
        if self.next_ms <= now_ms:
            self._run(now_ms)
        self._starts += 1
        transfer.number = self._starts
        transfer.start_ms = now_ms
        self.num_transfers += 1
        if self.num_transfers == 1 and not self._done:
            self._lone = transfer
            self.next_ms = now_ms + self.latency_ms + transfer.size_bytes / self.bytes_per_ms
            return
        if self._lone is not None:
            self._join_lone(now_ms)
        self._queue(transfer, now_ms)
        self._plan()

    def cancel(self, transfer: Transfer, now_ms: float) -> None:
        """Take a transfer that has not ended off the link; the others get its share from now on."""
        if self._lone is not None:
            self._join_lone(now_ms)
        self._run(now_ms)
        if transfer.cancelled or transfer.end_ms == transfer.end_ms:
            return
        transfer.cancelled = True
        self.num_transfers -= 1
        if transfer.start_ms + self.latency_ms <= now_ms:
            self._move_to(now_ms)
            self._num_flowing -= 1
            self._find_end()
        else:
            self._find_begin()
        self._plan()

    def advance(self, now_ms: float) -> list[Transfer]:
        """The transfers that ended by now_ms and were not returned before, in the order of their end, then start."""
        if self.next_ms > now_ms:
            return []
        lone = self._lone
        if lone is not None:
            self._end_lone(lone)
            self.next_ms = INFINITE
            return [lone]
        self._run(now_ms)
        done = self._done
        self._done = []
        self._plan()
        return done

    def _run(self, now_ms: float) -> None:
        """Let everything up to now_ms happen; those that end go to `_done`."""
        lone = self._lone
        if lone is not None and self.next_ms <= now_ms:
            self._end_lone(lone)
            self._done.append(lone)
            return
        while True:
            end_ms = self._end_ms
            begin_ms = self._begin_ms
            if begin_ms < end_ms:
                if begin_ms > now_ms:
                    return
                self._flow(self._waiting.popleft(), begin_ms)
                self._find_begin()
                continue
            if end_ms > now_ms or end_ms == INFINITE:
                return
            due, _, transfer = heappop(self._flowing)
            self.busy_ms += end_ms - self._last_ms
            self._last_ms = end_ms
            self._share_bytes = due  # of no meaning, and no harm, where nothing is shared
            self._num_flowing -= 1
            self.num_transfers -= 1
            self.carried_bytes += transfer.size_bytes
            transfer.end_ms = end_ms
            self._done.append(transfer)
            self._find_end()

    def _end_lone(self, lone: Transfer) -> None:
        begin_ms = lone.start_ms + self.latency_ms
        end_ms = self.next_ms
        self._lone = None
        self.busy_ms += end_ms - begin_ms
        self._last_ms = end_ms
        self.num_transfers = 0
        self.carried_bytes += lone.size_bytes
        lone.end_ms = end_ms

    def _join_lone(self, now_ms: float) -> None:
        """The only transfer has company from now on."""
        lone = self._lone
        assert lone is not None
        self._lone = None
        self._queue(lone, lone.start_ms)
        self._run(now_ms)

    def _queue(self, transfer: Transfer, now_ms: float) -> None:
        """A transfer starts: it waits for its first byte, or flows at once."""
        if not self.latency_ms:
            self._flow(transfer, now_ms)
            return
        self._waiting.append(transfer)
        if self._begin_ms == INFINITE:
            self._begin_ms = now_ms + self.latency_ms

    def _flow(self, transfer: Transfer, now_ms: float) -> None:
        """The first byte of a transfer leaves."""
        if self._num_flowing:
            self._move_to(now_ms)
        else:
            self._last_ms = now_ms
            self._share_bytes = 0.0
            if self._flowing:  # they were cancelled
                self._flowing.clear()
        if self.shared:
            due = self._share_bytes + transfer.size_bytes
        else:
            due = now_ms + transfer.size_bytes / self.bytes_per_ms
        heappush(self._flowing, (due, transfer.number, transfer))
        self._num_flowing += 1
        self._find_end()

    def _move_to(self, now_ms: float) -> None:
        """Those that flow get their bytes up to an event at now_ms."""
        passed_ms = now_ms - self._last_ms
        flowing = self._num_flowing
        if flowing and passed_ms > 0:
            self.busy_ms += passed_ms
            if self.shared:
                self._share_bytes += passed_ms * self.bytes_per_ms / flowing
        self._last_ms = now_ms

    def _find_begin(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].cancelled:
            waiting.popleft()
        self._begin_ms = waiting[0].start_ms + self.latency_ms if waiting else INFINITE

    def _find_end(self) -> None:
        flowing = self._flowing
        while flowing and flowing[0][2].cancelled:
            heappop(flowing)
        if not flowing:
            self._end_ms = INFINITE
            return
        due = flowing[0][0]
        if self.shared:
            left_ms = (due - self._share_bytes) * self._num_flowing / self.bytes_per_ms
            due = self._last_ms + left_ms if left_ms > 0 else self._last_ms
        self._end_ms = due

    def _plan(self) -> None:
        done = self._done
        if done:
            self.next_ms = done[0].end_ms
        else:
            self.next_ms = self._begin_ms if self._begin_ms < self._end_ms else self._end_ms
