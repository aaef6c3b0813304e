"""For tests: whether the parts of an SGLang engine agree with each other, between two turns.

Recounts from scratch what the engine keeps as running totals. It costs as much as the engine holds, so no simulation
calls it; property tests do, after every turn.
"""

from __future__ import annotations

from windtunnel.engine.kv.radix import RadixCache, RadixNode
from windtunnel.engine.sglang import SglangScheduler
from windtunnel.engine.sglang_verification import VerifyingGroup


def check_invariants(scheduler: SglangScheduler) -> None:
    """Check pool, tree, locks, decode group, rows and latch.

    Raises:
        AssertionError: two of them disagree.
    """
    _check_tree(scheduler.pool)
    _check_locks(scheduler)
    _check_pool(scheduler)
    _check_group(scheduler)
    _check_requests(scheduler)


def _nodes(pool: RadixCache) -> list[RadixNode]:
    found = [pool.root]
    for node in found:
        found += node.children.values()
    return found[1:]


def _check_tree(pool: RadixCache) -> None:
    page = pool.page_size
    evictable = protected = 0
    nodes = _nodes(pool)
    for node in nodes:
        parent = node.parent
        assert parent is not None
        assert parent.children[node.key] is node
        assert node.key == node.content.key(node.start, page)
        assert node.start == parent.end < node.end <= node.content.length
        assert node.start % page == node.end % page == 0
        if node.holders:
            protected += node.end - node.start
        else:
            evictable += node.end - node.start
            assert node.children or node.queued, "a node that may be evicted is no candidate"
    assert (evictable, protected, len(nodes)) == (pool.evictable_tokens, pool.protected_tokens, pool.num_nodes)


def _check_locks(scheduler: SglangScheduler) -> None:
    """Every hold is a request's or a held child's, and ends where the request's part of the tree does."""
    holders: dict[int, int] = {}
    for request in scheduler.ledger.live.values():
        lease = request.lease
        if lease.node is not None:
            holders[id(lease.node)] = holders.get(id(lease.node), 0) + 1
            assert lease.node.end == lease.held
    for node in _nodes(scheduler.pool):
        held_children = sum(1 for child in node.children.values() if child.holders)
        assert node.holders == holders.get(id(node), 0) + held_children


def _check_pool(scheduler: SglangScheduler) -> None:
    """Free, evictable, protected and private tokens are all there are."""
    pool = scheduler.pool
    private = 0
    for request in scheduler.ledger.live.values():
        if request.has_row:
            private += pool.pages(scheduler.running.computed(request)) - request.lease.held
            assert private >= 0
        else:
            assert not request.lease.held
    assert pool.free_tokens >= 0
    total = pool.free_tokens + pool.evictable_tokens + pool.protected_tokens + private
    assert total == pool.num_blocks * pool.page_size


def _check_group(scheduler: SglangScheduler) -> None:
    group = scheduler.group
    page = scheduler.page_size
    members = [request for request in scheduler.ledger.live.values() if request.decoding]
    ring = [0] * page
    for request in members:
        assert scheduler.running.members[request.admission] is request
        assert request.finish > group.step
        ring[-request.base % page] += 1
    assert group.size == len(members)
    computed = [scheduler.running.computed(request) for request in members]
    if isinstance(group, VerifyingGroup):
        assert group.computed_tokens() == sum(computed)
        assert group.unfilled_tokens() == sum(-tokens % page for tokens in computed)
        lengths = [request.prompt_tokens + request.max_output_tokens for request in members]
        assert group.remaining_tokens() == sum(lengths) - sum(computed) - len(members)
    else:
        assert group.ring == ring
        assert group.context_tokens == sum(computed) + len(members)
        assert group.finish_sum == sum(request.finish for request in members)
    if members:
        assert group.finish_step == min(request.finish for request in members)


def _check_requests(scheduler: SglangScheduler) -> None:
    live = scheduler.ledger.live.values()
    assert scheduler.ledger.free_rows == scheduler.max_running_requests - sum(r.has_row for r in live)
    assert scheduler.ledger.free_rows >= 0
    waiting = {request.number for request in scheduler.waiting}
    for request in live:
        assert request.has_row != (request.number in waiting)
        total = request.prompt_tokens + request.max_output_tokens
        assert request.computed <= total
        assert not request.gone
    busy = scheduler.num_running or scheduler.ran_last_turn
    assert busy or not scheduler.running.full, "nobody runs, but no prefill is tried"
    if not live and scheduler.running.in_flight is None:
        assert not scheduler.pool.protected_tokens
        assert scheduler.pool.free_blocks == scheduler.pool.num_blocks
