"""What is written is read back as it was, wherever a format can say it; what it cannot say is counted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversion.meaning import BLOCK, block_workloads, converted, meaning, tokens_of, written
from windtunnel.conversion import WRITERS, Losses
from windtunnel.conversion.structure import as_sessions
from windtunnel.errors import InputError
from windtunnel.inspection.prefix_sharing import prefix_sharing
from windtunnel.workload.content import agree_until, output_origin
from windtunnel.workload.session import Workload
from windtunnel.workload.traces import FORMATS, load_trace
from workload.test_format_fixtures import EXPECTED, FIXTURES, OPTIONS

TIMES_MS = st.floats(0, 1e9) | st.integers(0, 10**12).map(float)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conversion") / "trace"


def test_every_format_that_is_written_is_one_that_is_read():
    assert set(WRITERS) <= set(FORMATS)


@settings(max_examples=120, deadline=None)
@given(workload=block_workloads(delays=TIMES_MS))
def test_mooncake_loses_nothing_of_sessions_and_blocks(workload: Workload, path: Path):
    assert written(workload, "mooncake", path, block_size=BLOCK) == []
    back = load_trace([path], block_size=BLOCK)
    assert meaning(back) == meaning(workload)
    assert [back.prompt_runs(r) for r in range(back.num_requests)] == [
        workload.prompt_runs(r) for r in range(back.num_requests)
    ]


@settings(max_examples=120, deadline=None)
@given(workload=block_workloads(graph=True, delays=TIMES_MS))
def test_agentic_mooncake_loses_nothing_of_a_graph(workload: Workload, path: Path):
    assert written(workload, "agentic-mooncake", path, block_size=BLOCK) == []
    assert meaning(load_trace([path], format="agentic-mooncake", block_size=BLOCK)) == meaning(workload)


@settings(max_examples=60, deadline=None)
@given(workload=block_workloads())
def test_seconds_and_smaller_blocks_and_back_are_the_same(workload: Workload, path: Path):
    there = converted(workload, "vllm-timed-trace", path, block_size=2)
    back = converted(there, "mooncake", path, block_size=BLOCK)
    assert meaning(back) == meaning(workload)


@settings(max_examples=60, deadline=None)
@given(workload=block_workloads(named=False))
def test_sessions_by_other_means_and_back_are_the_same(workload: Workload, path: Path):
    expected = meaning(workload)
    for to in ("agentic-mooncake", "mooncake-delta" if not workload.has_turns else "mooncake"):
        there = converted(workload, to, path, block_size=BLOCK)
        assert meaning(converted(there, "mooncake", path, block_size=BLOCK)) == expected


@settings(max_examples=60, deadline=None)
@given(workload=block_workloads(graph=True, named=False))
def test_what_bailian_reads_back_waits_for_the_same_parent(workload: Workload, path: Path):
    losses = written(workload, "bailian", path, block_size=BLOCK)
    back = meaning(load_trace([path], format="bailian", block_size=BLOCK))
    given_ = meaning(workload)
    assert back.tokens == given_.tokens
    assert all(waits <= before for waits, before in zip(back.waits, given_.waits, strict=True))
    left_out = sum(map(len, given_.waits)) - sum(map(len, back.waits))
    assert sum(loss.count for loss in losses if loss.things == "waits") == left_out
    became_turns = sum(bool(waits) and not named for waits, named in zip(back.waits, back.by_name, strict=True))
    assert sum(loss.count for loss in losses if "become its next turn" in loss.message) == became_turns
    again = converted(load_trace([path], format="bailian", block_size=BLOCK), "bailian", path, block_size=BLOCK)
    assert meaning(again) == back


@settings(max_examples=60, deadline=None)
@given(workload=block_workloads(), plans=st.randoms())
def test_token_ids_share_what_prompts_and_outputs_share(workload: Workload, plans: Random, path: Path):
    for request in range(1, workload.num_requests):
        output = workload.output_tokens[request]
        if plans.random() < 0.5 and output and workload.output_tokens[request - 1] >= output:
            workload.plan(request, [(output_origin(request - 1), 0, output)])
    losses = written(workload, "llmservingsim", path)
    assert [loss.things for loss in losses if loss.things != "request names"] == []
    back = load_trace([path])
    order = [request for session in range(workload.num_sessions) for request in turns_of(workload, session)]
    for column in ("input_tokens", "output_tokens", "turn", "time_ms"):
        assert list(getattr(back, column)) == [getattr(workload, column)[request] for request in order]
    for a in range(len(order)):
        for b in range(a):
            assert alike(back, a, b) == alike(workload, order[a], order[b])


def turns_of(workload: Workload, session: int) -> list[int]:
    turns = [workload.first_turn[session]]
    while workload.next_turn[turns[-1]] >= 0:
        turns.append(workload.next_turn[turns[-1]])
    return turns


def alike(workload: Workload, a: int, b: int) -> int:
    one, other = (workload.content(request, workload.output_tokens[request]) for request in (a, b))
    return agree_until(one, other, 0, min(one.length, other.length))


@settings(max_examples=60, deadline=None)
@given(workload=block_workloads())
def test_tables_keep_lengths_and_times_and_say_the_rest(workload: Workload, path: Path):
    for to in ("plain", "burstgpt"):
        losses = written(workload, to, path)
        back = load_trace([path], format=to)
        assert list(back.input_tokens) == list(workload.input_tokens)
        assert list(back.output_tokens) == list(workload.output_tokens)
        assert list(back.session) == list(workload.session)
        assert list(back.time_ms) == list(workload.time_ms)
        shared = sum(loss.count for loss in losses if loss.things == "prompt tokens")
        assert shared == prefix_sharing(workload, 1).shared_blocks
        if to == "plain":
            assert meaning(back).request_ids == meaning(workload).request_ids
    for to in ("azure", "vidur"):
        losses = written(workload, to, path)
        back = load_trace([path], format=to)
        assert list(back.input_tokens) == list(workload.input_tokens)
        assert back.num_sessions == back.num_requests
        follow = sum(loss.count for loss in losses if loss.things == "requests")
        assert follow == workload.num_requests - workload.num_sessions
        roots = [turn == 0 for turn in workload.turn]
        assert [ms for ms, is_root in zip(back.time_ms, roots, strict=True) if is_root] == [
            ms for ms, is_root in zip(workload.time_ms, roots, strict=True) if is_root
        ]


@pytest.mark.parametrize("to", ["vidur", "vllm-timed-trace", "azure", "burstgpt"])
@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.floats(0, 1e8), min_size=1, max_size=5))
def test_a_time_is_read_back_or_the_largest_difference_is_told(to: str, times: list[float], path: Path):
    workload = Workload("drawn")
    for number, time_ms in enumerate([0.0, *times]):
        workload.add([(number, 0, 3)], 1, time_ms=time_ms)
    losses = written(workload, to, path)
    back = load_trace([path], format=to)
    differences = [abs(a - b) for a, b in zip(back.time_ms, workload.time_ms, strict=True)]
    assert sum(loss.count for loss in losses if loss.things == "times") == sum(map(bool, differences))
    assert max(differences) <= (5e-5 if to == "azure" else 1e-7)


GENERAL = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(prompts=GENERAL, size=st.sampled_from([1, 2, 4, 5]), quotes=st.booleans())
def test_blocks_of_any_content_are_equal_where_their_tokens_are(
    prompts: list[list[tuple[int, int, int]]], size: int, quotes: bool, path: Path
):
    workload = Workload("drawn")
    for number, runs in enumerate(prompts):
        quoted = [(output_origin(number - 1), 0, 2)] if quotes and number else []
        workload.add([*runs, *quoted], 2, time_ms=float(number))
    losses = written(workload, "mooncake", path, block_size=size)
    back = load_trace([path], block_size=size)
    before, after = (tokens_of(w, with_outputs=False) for w in (workload, back))
    whole: dict[tuple[int, ...], tuple[int, ...]] = {}
    for given_tokens, read_tokens in zip(before, after, strict=True):
        assert len(given_tokens) == len(read_tokens)
        for at in range(0, len(given_tokens) - size + 1, size):
            there, here = tuple(given_tokens[at : at + size]), tuple(read_tokens[at : at + size])
            assert whole.setdefault(there, here) == here
    assert len(set(whole.values())) == len(whole)
    meant: dict[int, int] = {}  # what is equal now was equal before, in partial blocks as well
    for given_tokens, read_tokens in zip(before, after, strict=True):
        for there_token, here_token in zip(given_tokens, read_tokens, strict=True):
            assert meant.setdefault(here_token, there_token) == there_token
    lost = sum(loss.count for loss in losses if loss.things.startswith("prompt tokens"))
    assert lost == prefix_sharing(workload, 1).shared_blocks - prefix_sharing(back, 1).shared_blocks
    if size == 1 and not quotes:
        assert lost == 0


def grown(quoted: int = 3) -> Workload:
    workload = Workload("grown")
    workload.accumulates = True
    workload.add([(0, 0, 8)], 3, time_ms=0.0)
    workload.add([(0, 40, 4)], 2, time_ms=5.0)
    workload.add([(0, 0, 8), (output_origin(0), 0, quoted), (0, 80, 6)], 1, session=0, time_ms=7.0)
    workload.session_ids = ["s", "t"]
    return workload


def test_a_growing_session_is_a_delta_and_back(path: Path):
    assert written(grown(), "mooncake-delta", path, block_size=BLOCK) == []
    back = load_trace([path], format="mooncake-delta", block_size=BLOCK)
    assert meaning(back) == meaning(grown())
    assert back.accumulates
    losses = written(grown(), "mooncake", path, block_size=BLOCK)
    assert "1 of 3 prompts hold outputs as they were asked for" in str(losses[0])


def test_a_session_that_does_not_grow_is_no_delta(path: Path):
    with pytest.raises(InputError, match="1 of 1 later turns do not begin with the turn before and its output"):
        written(grown(quoted=2), "mooncake-delta", path)


def test_partial_blocks_have_the_id_of_the_block_that_they_begin(path: Path):
    workload = Workload("drawn")
    workload.add([(1, 0, 3)], 1, time_ms=0.0)
    workload.add([(1, 0, 3), (2, 0, 5)], 1, time_ms=0.0)
    workload.add([(1, 0, 2)], 1, time_ms=0.0)
    assert written(workload, "mooncake", path, block_size=8) == []
    assert [line.split("hash_ids")[1] for line in path.read_text().splitlines()] == ['": [0]}'] * 3


# Fixtures without sessions, or whose later turns begin with the turn before and its output.
GROWING = {
    *("agentic_mooncake.jsonl", "aiperf_multi.jsonl", "aiperf_single.jsonl", "azure_2023.csv", "azure_2024.csv"),
    *("burstgpt_v1.csv", "dynamo.jsonl", "llmservingsim.jsonl", "mooncake_delta.jsonl", "openai_log.jsonl"),
    *("plain.jsonl", "servegen_hash.jsonl", "servegen_stat.jsonl", "sharegpt.json", "vidur.csv", "vllm_bench.json"),
    "vllm_timed_trace.jsonl",
}


@pytest.mark.parametrize("to", WRITERS)
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fixture_converts_and_back_or_is_refused_in_a_line(name: str, to: str, path: Path):
    workload = load_trace([FIXTURES / name], **OPTIONS.get(name, {}))
    if to == "mooncake-delta" and name not in GROWING:
        with pytest.raises(InputError, match="later turns do not begin with the turn before"):
            written(workload, to, path)
        return
    written(workload, to, path)
    back = load_trace([path], format=to)
    order, num_rows = list(range(workload.num_requests)), workload.num_requests
    if to == "llmservingsim":  # whose rows are sessions
        sessions = as_sessions(workload, Losses())
        order, num_rows = sorted(order, key=lambda request: sessions.session[request]), sessions.num_sessions
    assert list(back.input_tokens) == [workload.input_tokens[request] for request in order]
    assert list(back.output_tokens) == [workload.output_tokens[request] for request in order]
    assert back.loading is not None
    assert back.loading.rows == num_rows
    if to == EXPECTED[name][0]:
        assert meaning(back) == meaning(workload)
    # what was written once is said in full by the format, so that writing it again loses nothing
    losses = written(back, to, path)
    assert losses == []
    assert meaning(load_trace([path], format=to)) == meaning(back)
