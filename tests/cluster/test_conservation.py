"""Nothing is lost and nothing is made up: requests, blocks, tokens and time all add up when a simulation has ended."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from pass_ledger import PassLedger, TimeSpent, admission_ms, spent_by_definition, token_times_ms
from strategies import Outcome, Scenario, Send, fuzz, run, scenarios
from windtunnel.cluster import simulation
from windtunnel.engine.kv.block_pool import BlockPool
from windtunnel.engine.kv.prefix_tree import Node, Span
from windtunnel.record.columns import Status
from windtunnel.report.token_times import TokenTimes

TIME_PARTS = ("queued_ms", "prefill_ms", "stalled_ms", "preempted_ms", "decode_ms")
ENDED = (Status.COMPLETED, Status.CANCELLED)


def rounding_ms(*times_ms: float) -> float:
    """What the contract allows a sum of times to be off."""
    return 1e-9 * max(1.0, *map(abs, times_ms))


def output_allowed(scenario: Scenario, send: Send) -> int:
    """Output tokens of a request that completes: the model's length may end it early."""
    longest = scenario.engine["max_model_len"]
    if longest is None:
        return send.output_tokens
    assert isinstance(longest, int)
    return min(send.output_tokens, longest - send.prompt_tokens)


# --- requests


@given(scenarios())
@fuzz(120)
def test_every_request_reaches_one_state_that_its_columns_agree_with(scenario: Scenario) -> None:
    outcome = run(scenario)
    columns = outcome.record.requests
    for number, send in enumerate(scenario.sends):
        status = Status(columns.status[number])
        arrived = columns.arrival_ms[number] == columns.arrival_ms[number]
        terminal = columns.terminal_ms[number] == columns.terminal_ms[number]
        assert arrived == (status is not Status.NOT_ARRIVED) == (columns.worker[number] >= 0)
        assert terminal == (status in (Status.COMPLETED, Status.CANCELLED, Status.REJECTED))
        assert (number in columns.reasons) == (status in (Status.REJECTED, Status.CANCELLED))
        if status is Status.COMPLETED:
            assert columns.output_tokens[number] == output_allowed(scenario, send)
        else:
            assert columns.output_tokens[number] <= send.output_tokens
        assert status is not Status.FAILED
        assert 0 <= columns.hit_tokens[number] <= columns.reused_tokens[number] <= send.prompt_tokens


@given(scenarios())
@fuzz(120)
def test_only_what_a_client_gave_up_keeps_a_complete_run_from_sending_everything(scenario: Scenario) -> None:
    outcome = run(scenario)
    if not outcome.complete:
        return
    columns = outcome.record.requests
    ended_sessions = set()
    for number in range(len(scenario.sends)):
        session = outcome.workload.session[number]
        assert columns.status[number] != Status.UNFINISHED
        assert (columns.status[number] == Status.NOT_ARRIVED) == (session in ended_sessions)
        if columns.status[number] == Status.CANCELLED:
            ended_sessions.add(session)


# --- tokens


@given(scenarios())
@fuzz(120)
def test_times_are_in_order(scenario: Scenario) -> None:
    outcome = run(scenario)
    columns = outcome.record.requests
    for number in range(len(scenario.sends)):
        steps = [columns.arrival_ms[number], columns.first_admit_ms[number]]
        steps += [columns.first_token_ms[number], columns.last_token_ms[number], columns.terminal_ms[number]]
        happened = [time_ms for time_ms in steps if time_ms == time_ms]
        assert happened == sorted(happened)
        if columns.output_tokens[number]:
            assert columns.first_token_ms[number] >= columns.first_admit_ms[number]
            if columns.status[number] == Status.COMPLETED:
                assert columns.last_token_ms[number] == columns.terminal_ms[number]
        else:
            assert columns.first_pass[number] == columns.last_pass[number] == -1
    last_ms = outcome.record.end_ms
    for passes in outcome.record.passes:
        ends = list(passes.end_ms)
        assert ends == sorted(ends)
        assert not ends or ends[-1] <= last_ms
        for number, start_ms in zip(passes.idle_pass, passes.idle_until_ms, strict=True):
            assert (ends[number - 1] if number else -1.0) < start_ms <= ends[number]
    assert outcome.record.worker_ms == last_ms * scenario.workers


@given(scenarios())
@fuzz(120)
def test_tokens_are_where_the_passes_emitted_them(scenario: Scenario) -> None:
    outcome = run(scenario, fast_forward=False, observer=PassLedger)
    found = TokenTimes(outcome.record)
    for number in range(len(scenario.sends)):
        expected = token_times_ms(outcome, number)
        assert found.of_request(number).tolist() == expected
        assert outcome.record.requests.output_tokens[number] == len(expected)
    breaks = outcome.record.requests
    for before, after in zip(breaks.break_before, breaks.break_after, strict=True):
        assert after > before + 1


# --- blocks


def queue_of(pool: BlockPool) -> list[Span]:
    """The free queue, the next to be evicted first."""
    spans = []
    span = pool.queue.after
    while span is not pool.queue:
        assert span.after.before is span
        spans.append(span)
        span = span.after
    return spans


def nodes_of(pool: BlockPool) -> list[Node]:
    """All nodes, every parent before its children."""
    nodes = list(pool.tree.root.children.values())
    for node in nodes:
        nodes += node.children.values()
    return nodes


@given(scenarios())
@fuzz(120)
def test_all_blocks_are_free_when_everything_has_ended(scenario: Scenario) -> None:
    outcome = run(scenario)
    if not outcome.complete:
        return
    for scheduler in outcome.schedulers:
        pool = scheduler.pool
        assert scheduler.num_running == scheduler.num_waiting == 0
        assert scheduler.finished == []
        assert pool.free_blocks == pool.num_blocks
        queue = queue_of(pool)
        nodes = nodes_of(pool)
        place = {id(span): number for number, span in enumerate(queue)}
        assert pool.blank + sum(span.node.size for span in queue) == pool.num_blocks
        assert len(nodes) == pool.tree.num_nodes
        assert len(queue) == sum(len(node.copies) for node in nodes)
        if not pool.caching:
            assert nodes == []
        for node in nodes:
            assert node.size > 0
            assert node.copies
            assert node.parent is not None
            assert node.parent.children[node.key] is node
            assert node.depth == node.parent.depth + node.parent.size
            assert node.key == node.content.key(node.depth * pool.block_size, pool.block_size)
            assert node.content.length >= (node.depth + node.size) * pool.block_size
            assert all(span.node is node and span.ref == 0 and id(span) in place for span in node.copies)
            if node.parent is not pool.tree.root:  # a child is evicted before the last copy of its parent
                last_of_parent = max(place[id(span)] for span in node.parent.copies)
                assert all(place[id(span)] < last_of_parent for span in node.copies)


# --- time


@given(scenarios())
@fuzz(200)
def test_the_time_of_a_request_adds_up(scenario: Scenario) -> None:
    outcome = run(scenario)
    columns = outcome.record.requests
    for number in range(len(scenario.sends)):
        parts = [getattr(columns, name)[number] for name in TIME_PARTS]
        assert min(parts) >= 0.0
        if columns.status[number] in ENDED:
            e2e_ms = columns.terminal_ms[number] - columns.arrival_ms[number]
            assert abs(sum(parts) - e2e_ms) <= rounding_ms(e2e_ms)
        elif columns.status[number] in (Status.REJECTED, Status.NOT_ARRIVED):
            assert sum(parts) == 0.0


@given(scenarios(), st.integers(1, 40))
@fuzz(150)
def test_whenever_it_is_interrupted_no_time_is_lost_or_negative(scenario: Scenario, instants: int) -> None:
    with mock.patch.object(simulation, "INSTANTS_PER_POLL", 1):
        outcome = run(scenario, stop_after=instants)
    record = outcome.record
    columns = record.requests
    for passes in record.passes:
        assert list(passes.end_ms) == sorted(passes.end_ms)
        assert not passes.end_ms or passes.end_ms[-1] <= record.end_ms
    for number in range(len(scenario.sends)):
        parts = [getattr(columns, name)[number] for name in TIME_PARTS]
        assert min(parts) >= 0.0
        if columns.status[number] in ENDED:
            e2e_ms = columns.terminal_ms[number] - columns.arrival_ms[number]
            assert abs(sum(parts) - e2e_ms) <= rounding_ms(e2e_ms)
        if columns.status[number] == Status.UNFINISHED and record.interrupted == "interrupt":
            assert sum(parts) <= record.end_ms - columns.arrival_ms[number] + rounding_ms(record.end_ms)
            assert columns.worker[number] >= 0


@given(scenarios())
@fuzz(200)
def test_the_parts_of_a_time_are_what_they_are_defined_to_be(scenario: Scenario) -> None:
    outcome = run(scenario, fast_forward=False, observer=PassLedger)
    columns = outcome.record.requests
    for number in range(len(scenario.sends)):
        if columns.status[number] not in ENDED or ended_in_a_pass_that_did_not(outcome, number):
            continue
        found = TimeSpent(*(getattr(columns, name)[number] for name in TIME_PARTS))
        expected = spent_by_definition(outcome, number)
        for name, ms in vars(expected).items():
            assert abs(getattr(found, name) - ms) <= rounding_ms(columns.terminal_ms[number]), (number, name)


def ended_in_a_pass_that_did_not(outcome: Outcome, number: int) -> bool:
    """Whether its client gave up during a pass that the end of the simulation cut off: no page tells what it did."""
    columns = outcome.record.requests
    ends_ms = outcome.record.passes[columns.worker[number]].end_ms
    return bool(outcome.record.interrupted) and (not ends_ms or columns.terminal_ms[number] > ends_ms[-1])


@given(scenarios())
@fuzz(120)
def test_a_request_is_admitted_when_the_first_pass_that_computes_it_starts(scenario: Scenario) -> None:
    outcome = run(scenario, fast_forward=False, observer=PassLedger)
    columns = outcome.record.requests
    for number in range(len(scenario.sends)):
        if columns.status[number] in ENDED and not ended_in_a_pass_that_did_not(outcome, number):
            expected = admission_ms(outcome, number)
            assert columns.first_admit_ms[number] == expected or expected is None
            assert (expected is None) == (columns.first_admit_ms[number] != columns.first_admit_ms[number])
