"""What is written to KV tiers and restored from them: scenarios with exact times, and no engine.

Blocks of one token and 1 MB; links of 1 GB/s unless said, so that a block takes 1 ms. A test names the scenario of the
tiers' specification that it plays; docs/fidelity.md lists all of them and what is not modelled.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_strategies import NobodysErrand
from strategies import fuzz
from windtunnel.engine.kv.events import CacheEvent
from windtunnel.engine.kv.haulage import Haulage
from windtunnel.engine.kv.level import Level
from windtunnel.engine.kv.link import Link
from windtunnel.engine.kv.offload import Offload
from windtunnel.engine.kv.restore_plan import plan_restore
from windtunnel.engine.kv.tier import BlockState, Tier
from windtunnel.engine.request import EngineRequest
from windtunnel.workload.content import Content

MB = 1_000_000
A = Content.of([(0, 0, 40)])
B = Content.of([(1, 0, 40)])
X = Content.of([(9, 0, 40)])


class Road:
    """A clock, and the haulage of all levels."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.haulage = Haulage(self)

    def run(self, until_ms: float = inf) -> None:
        """Let everything happen up to a time."""
        while (at_ms := self.haulage.next_ms) <= until_ms and at_ms != inf:
            self.now_ms = max(at_ms, self.now_ms)
            self.haulage.catch_up()
        if until_ms != inf:
            self.now_ms = until_ms


class Setup:
    """A host, a disk behind it, and an engine's view of both."""

    def __init__(
        self,
        host_blocks: int,
        disk_blocks: int = 100,
        disk_gb_per_s: float = 1.0,
        write_back: bool = False,
        host_gb_per_s: float = 1.0,
    ) -> None:
        self.road = Road()
        self.host = Level("host", Tier(host_blocks, 1), Link(1.0), Link(host_gb_per_s))
        self.disk = Level("disk", Tier(disk_blocks, 1), Link(1.0), Link(disk_gb_per_s))
        for link in (self.host.writes, self.disk.writes, self.disk.reads, self.host.reads):
            self.road.haulage.add(link)
        self.offload = self.engine(write_back)
        self._requests = 0

    def engine(self, write_back: bool = False) -> Offload:
        return Offload([self.host, self.disk], MB, write_back, self.road.haulage)

    def put(self, level: Level, content: Content, first: int, end: int) -> None:
        """Have blocks in a tier from the start."""
        for part in level.tier.reserve(content, first, end, NobodysErrand(0)):
            level.tier.fill(part)

    def request(self, tokens: int = 5) -> EngineRequest:
        self._requests += 1
        return EngineRequest(self._requests, A, tokens, 1, self.road.now_ms)

    def landed(self, offload: Offload | None = None) -> list[tuple[int, int]]:
        return [(restore.first, restore.end) for restore in (offload or self.offload).take_landed()]


def evict(offload: Offload, events: list[CacheEvent]) -> None:
    """GPU memory evicts blocks, and a pass ends."""
    offload.evicted += events
    offload.note_computed(EngineRequest(0, A, 5, 1, 0.0), A, 0)


def blocks_of(level: Level, content: Content, state: BlockState = BlockState.RESIDENT) -> list[int]:
    return [
        at
        for stretch in level.tier.stretches(content, 0, 40)
        if stretch.state == state
        for at in range(stretch.first, stretch.end)
    ]


# --- restoring, bounded


def test_a_prefix_longer_than_the_host_restores_what_fits_and_reads_it_once() -> None:
    """S133, finding 10: a host of one block and [A, B] on disk: one read of 1 ms, then progress."""
    setup = Setup(host_blocks=1)
    setup.put(setup.disk, A, 0, 2)
    request = setup.request()
    restore = setup.offload.consider(request, A, 0, 2, 100)
    assert restore is not None
    setup.road.run()
    assert setup.road.now_ms == 2.0  # 1 ms into the host, 1 ms to the GPU
    assert setup.landed() == [(0, 1)]
    assert setup.disk.reads.carried_bytes == MB
    assert setup.offload.fallbacks == 1
    assert setup.offload.consider(request, A, 1, 2, 100) is None  # the rest is computed
    assert request.transfer_ms == 2.0


def test_reads_that_take_no_time_do_not_alternate() -> None:
    """S130: with X pinned in a host of two and [A, B] on disk one block is read, once."""
    setup = Setup(host_blocks=2, disk_gb_per_s=inf)
    setup.put(setup.host, X, 0, 1)
    setup.host.tier.pin(X, 0, 1)
    setup.put(setup.disk, A, 0, 2)
    request = setup.request()
    assert setup.offload.consider(request, A, 0, 2, 100) is not None
    setup.road.run()
    assert setup.landed() == [(0, 1)]
    assert setup.offload.consider(request, A, 0, 2, 100) is None
    assert setup.disk.hit_blocks == 1


def test_pins_without_an_end_are_not_waited_for() -> None:
    """S134: X pinned for good in a host of two, [A, B, C] on disk: one block, at once."""
    setup = Setup(host_blocks=2)
    setup.put(setup.host, X, 0, 1)
    setup.host.tier.pin(X, 0, 1)
    setup.put(setup.disk, A, 0, 3)
    restore = setup.offload.consider(setup.request(), A, 0, 3, 100)
    assert restore is not None
    assert (restore.first, restore.end, setup.offload.waits) == (0, 1, 0)


def test_pressure_with_an_end_is_waited_for_once() -> None:
    """S134: X is pinned by a copy that ends at 0.5 ms; then two blocks fit, and two are read."""
    setup = Setup(host_blocks=2)
    setup.put(setup.host, X, 0, 1)
    half = Offload([setup.host], MB // 2, False, setup.road.haulage)
    assert half.consider(setup.request(), X, 0, 1, 100) is not None
    setup.put(setup.disk, A, 0, 3)
    request = setup.request()
    assert setup.offload.consider(request, A, 0, 3, 100) is not None
    assert setup.offload.waits == 1
    setup.road.run(0.5)
    assert setup.landed() == [(0, 0)]
    restore = setup.offload.consider(request, A, 0, 3, 100)
    assert restore is not None
    assert restore.end == 2
    setup.road.run()
    assert setup.road.now_ms == 4.5
    assert setup.landed() == [(0, 2)]
    assert setup.disk.reads.carried_bytes == 2 * MB


def test_a_host_that_is_pinned_altogether_means_a_cold_start() -> None:
    """S135."""
    setup = Setup(host_blocks=1)
    setup.put(setup.host, X, 0, 1)
    setup.host.tier.pin(X, 0, 1)
    setup.put(setup.disk, A, 0, 3)
    assert setup.offload.consider(setup.request(), A, 0, 3, 100) is None
    assert setup.offload.fallbacks == 1
    assert setup.disk.hit_blocks == 0


def test_plans_that_do_not_fit_together_never_evict_each_other() -> None:
    """S136: two prefixes of two blocks on disk and a host of two: both end, with four reads at most."""
    setup = Setup(host_blocks=2)
    setup.put(setup.disk, A, 0, 2)
    setup.put(setup.disk, B, 0, 2)
    other = setup.engine()
    first, second = setup.request(), setup.request()
    assert setup.offload.consider(first, A, 0, 2, 100) is not None
    assert other.consider(second, B, 0, 2, 100) is not None  # waits for the first to be copied
    setup.road.run(4.0)
    assert setup.landed() == [(0, 2)]
    assert setup.landed(other) == [(0, 0)]
    assert other.consider(second, B, 0, 2, 100) is not None
    setup.road.run()
    assert setup.landed(other) == [(0, 2)]
    assert setup.disk.reads.carried_bytes == 4 * MB


def test_what_the_host_has_already_is_kept_for_the_plan() -> None:
    """S137: host {A} of one block, disk {B}: A is copied at once, B cannot join."""
    setup = Setup(host_blocks=1)
    setup.put(setup.host, A, 0, 1)
    setup.put(setup.disk, A, 1, 2)
    restore = setup.offload.consider(setup.request(), A, 0, 2, 100)
    assert restore is not None
    assert restore.end == 1
    setup.road.run()
    assert (setup.road.now_ms, setup.disk.reads.carried_bytes) == (1.0, 0)


def test_the_own_prefix_in_the_host_does_not_count_as_room() -> None:
    """S111: a host of two with {0}, disk {1, 2}: {0, 1} is restored."""
    setup = Setup(host_blocks=2)
    setup.put(setup.host, A, 0, 1)
    setup.put(setup.disk, A, 1, 3)
    plan = plan_restore([setup.host, setup.disk], A, 0, 3)
    assert (plan.end, plan.is_short, plan.pieces) == (2, True, [(0, 1, 0), (1, 2, 1)])


def test_a_mixed_prefix_is_read_and_then_copied_as_a_whole() -> None:
    """S138: host {A}, disk {B}: 1 MB is read in 1 ms, then 2 MB are copied in 2 ms."""
    setup = Setup(host_blocks=2)
    setup.put(setup.host, A, 0, 1)
    setup.put(setup.disk, A, 1, 2)
    assert setup.offload.consider(setup.request(), A, 0, 2, 100) is not None
    setup.road.run(2.5)
    assert setup.landed() == []
    setup.road.run()
    assert setup.road.now_ms == 3.0
    assert setup.landed() == [(0, 2)]


def test_a_client_that_gives_up_stops_nothing_that_is_under_way() -> None:
    """S119, S139: the read ends and its block stays in the host; no copy to the GPU begins."""
    setup = Setup(host_blocks=2)
    setup.put(setup.disk, A, 0, 2)
    request = setup.request()
    assert setup.offload.consider(request, A, 0, 2, 100) is not None
    setup.road.run(0.5)
    assert setup.offload.give_up(request, 0.5)
    assert setup.landed() == []
    setup.road.run()
    assert setup.road.now_ms == 2.0
    assert blocks_of(setup.host, A) == [0, 1]
    assert setup.host.tier.idle_blocks == 2
    assert setup.landed() == [(0, 2)]  # so that the GPU blocks that were held for it are freed
    assert not setup.host.holders


def test_a_hole_ends_a_prefix() -> None:
    """S109: host {0}, disk {1, 2}, nothing of 3, disk {4}: three blocks."""
    setup = Setup(host_blocks=10)
    setup.put(setup.host, A, 0, 1)
    setup.put(setup.disk, A, 1, 3)
    setup.put(setup.disk, A, 4, 5)
    assert plan_restore([setup.host, setup.disk], A, 0, 5).end == 3


def test_a_miss_behind_a_hit_is_computed() -> None:
    """S131: [A, nothing]: one read of 1 ms, then a copy; reads in all 1."""
    setup = Setup(host_blocks=1)
    setup.put(setup.disk, A, 0, 1)
    assert setup.offload.consider(setup.request(), A, 0, 2, 100) is not None
    setup.road.run()
    assert (setup.landed(), setup.disk.reads.carried_bytes, setup.offload.fallbacks) == ([(0, 1)], MB, 0)


def test_a_prefix_on_disk_takes_one_link_after_the_other() -> None:
    """S115: two blocks, 1 ms each into the host and 1 ms each to the GPU: still away at 2 ms, back at 4 ms."""
    setup = Setup(host_blocks=4)
    setup.put(setup.disk, A, 0, 2)
    assert setup.offload.consider(setup.request(), A, 0, 2, 100) is not None
    setup.road.run(2.0)
    assert setup.landed() == []
    setup.road.run(4.0)
    assert setup.landed() == [(0, 2)]


def test_hits_of_one_instant_come_back_together_in_their_order() -> None:
    """S118: 1 MB each over 2 GB/s: both at 1 ms, the first one first."""
    setup = Setup(host_blocks=4, host_gb_per_s=2.0)
    setup.put(setup.host, A, 0, 1)
    setup.put(setup.host, B, 0, 1)
    first, second = setup.request(), setup.request()
    assert setup.offload.consider(first, A, 0, 1, 100) is not None
    assert setup.offload.consider(second, B, 0, 1, 100) is not None
    setup.road.run(1.0)
    assert [restore.request for restore in setup.offload.take_landed()] == [first, second]


def test_requests_that_share_a_prompt_share_the_link() -> None:
    """S120: four times four blocks of 250 kB over 4 GB/s: all at 1 ms."""
    setup = Setup(host_blocks=4, host_gb_per_s=4.0)
    setup.put(setup.host, A, 0, 4)
    small = Offload([setup.host], MB // 4, False, setup.road.haulage)
    asking = [setup.request() for _ in range(4)]
    for request in asking:
        assert small.consider(request, A, 0, 4, 100) is not None
    setup.road.run(1.0)
    assert [restore.request for restore in small.take_landed()] == asking
    assert {request.transfer_ms for request in asking} == {1.0}


def test_only_what_is_there_is_read_and_charged() -> None:
    """S121: two of three blocks are there: two are read."""
    setup = Setup(host_blocks=4)
    setup.put(setup.disk, A, 0, 2)
    assert setup.offload.consider(setup.request(), A, 0, 3, 100) is not None
    setup.road.run()
    assert (setup.disk.reads.carried_bytes, setup.landed()) == (2 * MB, [(0, 2)])


@pytest.mark.parametrize("host_blocks", [0, 1, 2, 3])
def test_no_block_is_read_twice_for_one_request(host_blocks: int) -> None:
    """S132, S140: however small the host, it reads each block of a prefix of three once at most, and then goes on."""
    setup = Setup(host_blocks)
    setup.put(setup.disk, A, 0, 3)
    request = setup.request()
    parked = 0
    for _ in range(100):
        if setup.offload.consider(request, A, 0, 3, 100) is None:
            break
        parked += 1
        setup.road.run()
        setup.landed()
    assert parked == (1 if host_blocks else 0)
    assert setup.disk.reads.carried_bytes == host_blocks * MB


# --- writing


def test_a_write_starts_when_the_pass_ends() -> None:
    """S96: two blocks of 1 MB, offered at 8 ms, are there at 10 ms."""
    setup = Setup(host_blocks=4)
    setup.road.run(8.0)
    setup.offload.note_computed(setup.request(), A, 2)
    setup.road.run(9.5)
    assert blocks_of(setup.host, A) == []
    setup.road.run(10.0)
    assert blocks_of(setup.host, A) == [0, 1]


def test_a_write_that_does_not_fit_keeps_its_front_and_is_not_repeated() -> None:
    """S128: three blocks to a disk of two: two are kept; the same once more moves nothing."""
    setup = Setup(host_blocks=4, disk_blocks=2)
    setup.offload.note_computed(setup.request(), A, 3)
    setup.road.run()
    setup.offload.note_computed(setup.request(), A, 3)
    setup.road.run()
    assert blocks_of(setup.disk, A) == [0, 1]
    assert (setup.host.writes.carried_bytes, setup.disk.writes.carried_bytes) == (3 * MB, 2 * MB)


def test_a_prompt_goes_to_the_host_and_from_there_to_the_disk() -> None:
    setup = Setup(host_blocks=4)
    request = setup.request()
    setup.offload.note_computed(request, A, 3)
    assert blocks_of(setup.host, A, BlockState.FILLING) == [0, 1, 2]
    setup.road.run(3.0)
    assert blocks_of(setup.host, A) == [0, 1, 2]
    assert blocks_of(setup.disk, A, BlockState.FILLING) == [0, 1, 2]
    assert setup.host.tier.idle_blocks == 0  # pinned while they are read for the disk
    setup.road.run()
    assert setup.road.now_ms == 6.0
    assert blocks_of(setup.disk, A) == [0, 1, 2]
    assert setup.host.tier.idle_blocks == 3


def test_what_a_tier_has_is_not_written_again() -> None:
    setup = Setup(host_blocks=4)
    setup.offload.note_computed(setup.request(), A, 2)
    setup.offload.note_computed(setup.request(), A, 3)
    setup.road.run()
    assert setup.host.writes.carried_bytes == setup.disk.writes.carried_bytes == 3 * MB


def test_what_is_being_written_is_waited_for() -> None:
    """S126: a lookup during the write waits for its end, and then finds it."""
    setup = Setup(host_blocks=4)
    setup.offload.note_computed(setup.request(), A, 2)
    request = setup.request()
    assert setup.offload.consider(request, A, 0, 2, 100) is not None
    setup.road.run(2.0)
    assert setup.landed() == [(0, 0)]
    assert request.transfer_ms == 2.0
    assert setup.offload.consider(request, A, 0, 2, 100) is not None
    setup.road.run()
    assert setup.landed() == [(0, 2)]
    assert request.transfer_ms == 4.0


def test_after_one_wait_nothing_more_is_waited_for() -> None:
    setup = Setup(host_blocks=9)
    setup.offload.note_computed(setup.request(), A, 1)
    request = setup.request()
    assert setup.offload.consider(request, A, 0, 3, 100) is not None
    setup.road.run(1.0)
    setup.landed()
    setup.offload.note_computed(setup.request(), A, 3)  # the rest is filling now
    restore = setup.offload.consider(request, A, 0, 3, 100)
    assert restore is not None
    assert (restore.end, setup.offload.waits) == (1, 1)


def test_evicted_blocks_are_one_write_in_however_many_events() -> None:
    whole, single = Setup(9, write_back=True), Setup(9, write_back=True)
    evict(whole.offload, [CacheEvent(False, A, 2, 5), CacheEvent(False, B, 0, 2)])
    evict(
        single.offload,
        [CacheEvent(False, A, at, at + 1) for at in (4, 3, 2)] + [CacheEvent(False, B, at, at + 1) for at in (1, 0)],
    )
    for setup in (whole, single):
        setup.road.run()
        assert (blocks_of(setup.host, A), blocks_of(setup.host, B)) == ([2, 3, 4], [0, 1])
        assert setup.host.writes.busy_ms == 5.0


def test_a_host_of_one_block_keeps_the_newest() -> None:
    """S106."""
    setup = Setup(host_blocks=1, disk_blocks=0, write_back=True)
    setup.put(setup.host, A, 0, 1)
    evict(setup.offload, [CacheEvent(False, B, 0, 1)])
    setup.road.run()
    assert (blocks_of(setup.host, A), blocks_of(setup.host, B)) == ([], [0])
    assert setup.host.tier.evicted_blocks == 1


def test_two_engines_share_the_disk_and_its_bandwidth() -> None:
    """S113: 1 MB each to a shared disk at t=0 arrives at 2 ms for both."""
    setup = Setup(host_blocks=4)
    hosts = [Level("host", Tier(4, 1), Link(inf), Link(inf)) for _ in range(2)]
    for link in [link for host in hosts for link in (host.writes, host.reads)]:
        setup.road.haulage.add(link)
    for host, content in zip(hosts, (A, B), strict=True):
        Offload([host, setup.disk], MB, False, setup.road.haulage).note_computed(setup.request(), content, 1)
    setup.road.run(1.0)
    assert blocks_of(setup.disk, A) == blocks_of(setup.disk, B) == []
    setup.road.run(2.0)
    assert blocks_of(setup.disk, A) == blocks_of(setup.disk, B) == [0]


def test_of_two_engines_that_offer_the_last_room_the_first_gets_it() -> None:
    """S112."""
    setup = Setup(host_blocks=4, disk_blocks=1)
    setup.offload.note_computed(setup.request(), A, 1)
    setup.engine().note_computed(setup.request(), B, 1)
    setup.road.run()
    assert (blocks_of(setup.disk, A), blocks_of(setup.disk, B)) == ([0], [])


# --- any geometry


@fuzz(150)
@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 6)), max_size=6),
    st.sampled_from([0.25, 1.0, inf]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8), st.sampled_from([0.0, 0.5, 3.0])), min_size=1, max_size=6),
)
def test_every_request_goes_on_after_a_wait_and_a_restore(
    host_blocks: int,
    disk_blocks: int,
    stored: list[tuple[int, int, int]],
    disk_gb_per_s: float,
    asking: list[tuple[int, int, float]],
) -> None:
    """R1-R7: each waits at most once and restores at most once; each block of its prefix is read at most once."""
    setup = Setup(host_blocks, disk_blocks, disk_gb_per_s)
    contents = (A, B, Content.of([(0, 0, 3), (5, 0, 37)]))
    for which, first, count in stored:
        setup.put(setup.disk if count % 2 else setup.host, contents[which], first, first + count)
    offloads = [setup.offload, setup.engine()]
    going: dict[int, tuple[EngineRequest, Content, int, int]] = {}
    tries: dict[int, int] = {}
    for place, (which, limit, pause_ms) in enumerate(asking):
        request = setup.request(9)
        going[request.number] = (request, contents[which], limit, place % 2)
        setup.road.run(setup.road.now_ms + pause_ms)
        if place == 2:
            setup.offload.note_computed(setup.request(), contents[0], 4)
    pending = dict(going)
    for _ in range(10):
        for number, (request, content, limit, place) in list(pending.items()):
            if number in offloads[place].parked:
                continue
            tries[number] = tries.get(number, 0) + 1
            if offloads[place].consider(request, content, 0, limit, 100) is None:
                del pending[number]
        setup.road.run()
        for offload in offloads:
            offload.take_landed()
    assert not pending
    assert max(tries.values()) <= 3
    assert setup.disk.reads.carried_bytes <= MB * sum(limit for _, limit, _ in asking)
    assert not setup.host.holders
    for level in (setup.host, setup.disk):
        assert level.tier.idle_blocks + level.tier.free_blocks == level.tier.num_blocks
