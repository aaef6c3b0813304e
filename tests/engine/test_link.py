"""When transfers over a link end: scenario numbers, and any traffic against a slow fluid model."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.fluid_link import FluidTransfer, ends_of
from strategies import fuzz
from windtunnel.engine.kv.link import Link, Transfer

MB = 1_000_000


def run(link: Link, starts: list[tuple[float, int]], cancels: dict[int, float] | None = None) -> dict[int, float]:
    """Ends by place in `starts` (ms, bytes), in the order in which they are reported."""
    transfers = [Transfer(size) for _, size in starts]
    events = [(at_ms, 1, i) for i, (at_ms, _) in enumerate(starts)]
    events += [(at_ms, 0, i) for i, at_ms in (cancels or {}).items()]
    ends: dict[int, float] = {}

    def collect(until_ms: float) -> None:
        while link.next_ms <= until_ms and link.next_ms != inf:
            for transfer in link.advance(link.next_ms):
                ends[transfers.index(transfer)] = transfer.end_ms

    for at_ms, is_start, i in sorted(events):
        collect(at_ms)
        if is_start:
            link.start(transfers[i], at_ms)
        else:
            link.cancel(transfers[i], at_ms)
    collect(inf)
    return ends


@pytest.mark.parametrize(("count", "end_ms"), [(1, 1.0), (2, 2.0), (10, 10.0)])
def test_transfers_share_the_bandwidth(count: int, end_ms: float) -> None:
    assert run(Link(1.0), [(0.0, MB)] * count) == dict.fromkeys(range(count), end_ms)


def test_a_later_start_shares_what_is_left() -> None:
    assert run(Link(1.0), [(0.0, MB), (0.5, MB)]) == {0: 1.5, 1: 2.0}


def test_the_short_one_ends_first() -> None:
    ends = run(Link(1.0), [(0.0, 2 * MB), (0.0, MB)])
    assert list(ends.items()) == [(1, 2.0), (0, 3.0)]


def test_three_remainders_end_where_the_formula_says() -> None:
    assert run(Link(1.0), [(0.0, 3 * MB), (0.0, MB), (0.0, 2 * MB)]) == {0: 6.0, 1: 3.0, 2: 5.0}


def test_equal_remainders_end_in_the_order_of_their_start() -> None:
    assert list(run(Link(1.0), [(0.0, MB)] * 5)) == [0, 1, 2, 3, 4]


def test_the_first_byte_is_late_and_uses_no_bandwidth() -> None:
    assert run(Link(1.0, latency_ms=2.0), [(0.0, MB)]) == {0: 3.0}
    # the second waits until 3.0, when the first has all its bytes
    assert run(Link(1.0, latency_ms=2.0), [(0.0, MB), (1.0, MB)]) == {0: 3.0, 1: 4.0}


def test_without_sharing_each_has_all_of_it() -> None:
    assert run(Link(1.0, shared=False), [(0.0, MB), (0.0, MB)]) == {0: 1.0, 1: 1.0}


def test_who_is_cancelled_leaves_its_share() -> None:
    assert run(Link(1.0), [(0.0, MB), (0.0, MB)], {0: 1.0}) == {1: 1.5}


def test_an_infinite_link_takes_its_latency() -> None:
    assert run(Link(inf), [(10.0, MB)]) == {0: 10.0}
    assert run(Link(inf, latency_ms=0.5), [(10.0, MB)]) == {0: 10.5}


def test_no_bytes_take_no_time() -> None:
    assert run(Link(1.0), [(4.0, 0)]) == {0: 4.0}


def test_a_link_counts_busy_time_and_bytes() -> None:
    link = Link(1.0, latency_ms=2.0)
    run(link, [(0.0, MB), (10.0, 3 * MB)])
    assert (link.busy_ms, link.carried_bytes, link.num_transfers) == (4.0, 4 * MB, 0)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_a_link_without_bandwidth_is_refused(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth above 0"):
        Link(bandwidth)


quarters = st.integers(0, 40).map(lambda n: n / 4)
traffic = st.lists(
    st.tuples(quarters, st.integers(0, 6).map(lambda n: n * MB // 2), st.one_of(st.none(), quarters)), max_size=12
)


@fuzz(150)
@given(traffic, st.sampled_from([0.5, 1.0, 2.0, 3.0, inf]), st.sampled_from([0.0, 0.25, 1.5]), st.booleans())
def test_any_traffic_ends_as_in_the_fluid_model(
    jobs: list[tuple[float, int, float | None]], gb_per_s: float, latency_ms: float, shared: bool
) -> None:
    jobs.sort(key=lambda job: job[0])
    # nobody cancels at the very start, where the order of the two would decide
    jobs = [(at, size, None if stop is None or stop <= at else stop) for at, size, stop in jobs]
    rate = None if gb_per_s == inf else Fraction(gb_per_s) * MB
    fluid = [FluidTransfer(size, Fraction(at), None if stop is None else Fraction(stop)) for at, size, stop in jobs]
    expected = ends_of(fluid, rate, Fraction(latency_ms), shared)
    cancels = {i: stop for i, (_, _, stop) in enumerate(jobs) if stop is not None}
    link = Link(gb_per_s, latency_ms, shared)
    got = run(link, [(at, size) for at, size, _ in jobs], cancels)
    for i, end in expected.items():
        stop = cancels.get(i)
        if i not in got:  # its end is that of the cancellation, up to rounding
            assert stop is not None
            assert stop == pytest.approx(float(end))
            continue
        assert got[i] == pytest.approx(float(end), rel=1e-12, abs=1e-12)
    for i in got:
        assert i in expected or cancels[i] == pytest.approx(got[i])
    assert list(got.values()) == sorted(got.values())
    assert link.num_transfers == 0


@fuzz(80)
@given(traffic, st.lists(quarters, max_size=10), st.sampled_from([0.0, 0.25]))
def test_looking_changes_nothing(
    jobs: list[tuple[float, int, float | None]], looks: list[float], latency_ms: float
) -> None:
    starts = sorted((at, size) for at, size, _ in jobs)
    undisturbed = run(Link(0.7, latency_ms), starts)
    link = Link(0.7, latency_ms)
    transfers = [Transfer(size) for _, size in starts]
    events = sorted([(at, 1, i) for i, (at, _) in enumerate(starts)] + [(at, 0, -1) for at in looks])
    for at_ms, is_start, i in events:
        if is_start:
            link.start(transfers[i], at_ms)
        else:
            link.advance(at_ms)
    link.advance(1e9)
    assert [transfer.end_ms for transfer in transfers] == [undisturbed[i] for i in range(len(starts))]
