"""Conditional disaggregation: who runs on one worker although prefill has workers of its own, and that it adds up."""

from __future__ import annotations

import pytest
from hypothesis import given

from strategies import FlatTiming, Scenario, Send, fuzz
from topologies import Run, bypassing_scenarios, check, differences, run
from windtunnel import Config, InputError
from windtunnel.cluster.bypass import Bypass
from windtunnel.config.faults import PlannedFault

Bypassing = tuple[Scenario, list[PlannedFault]]


def played(scenario: Bypassing, fast_forward: bool = True) -> Run:
    return run(scenario[0], fast_forward=fast_forward, faults=scenario[1])


@given(bypassing_scenarios())
@fuzz(120)
def test_everything_adds_up(scenario: Bypassing) -> None:
    check(scenario[0], played(scenario))


@given(bypassing_scenarios(sglang=True))
@fuzz(80)
def test_everything_adds_up_with_sglang(scenario: Bypassing) -> None:
    check(scenario[0], played(scenario))


@given(bypassing_scenarios())
@fuzz(100)
def test_runs_give_the_record_of_single_passes(scenario: Bypassing) -> None:
    assert differences(played(scenario), played(scenario, fast_forward=False)) == []


@given(bypassing_scenarios(sglang=True))
@fuzz(80)
def test_runs_give_the_record_of_single_passes_with_sglang(scenario: Bypassing) -> None:
    assert differences(played(scenario), played(scenario, fast_forward=False)) == []


def test_little_is_few_tokens_that_are_a_small_share() -> None:
    """Scenario 80: of 4,000 tokens 1,500 are left to compute; of 1,000 tokens 800."""
    one = run(split({"policy": "isl-bounding"})).simulation.handoffs
    assert one is not None
    bypass = one.bypass
    assert isinstance(bypass, Bypass)
    assert bypass.is_short(4000 - 2500, 4000)
    assert not bypass.is_short(1000 - 200, 1000)
    assert not bypass.is_short(2048, 4000)
    assert not bypass.is_short(700, 1000)
    assert bypass.is_short(699, 1000)


def split(bypass: dict[str, object], *sends: Send, decode_workers: int = 2) -> Scenario:
    cluster = {"prefill_workers": 1, "decode_workers": decode_workers, "bypass": bypass}
    return Scenario(
        sends or (Send(((1, 0, 8),), 1),),
        {"block_size": 4, "num_gpu_blocks": 64, "max_num_batched_tokens": 64},
        timing=FlatTiming(1.0),
        router="kv",
        topology={"cluster": cluster},
    )


def on_one_worker(scenario: Scenario) -> list[bool]:
    record = run(scenario).record
    assert record.handoffs is not None
    return [a == b for a, b in zip(record.handoffs.prefill_worker, record.requests.worker, strict=True)]


def test_a_turn_whose_history_is_cached_where_it_decodes_stays_there() -> None:
    history, turn = (1, 0, 40), (2, 0, 8)
    sends = (Send((history,), 4, time_ms=0.0), Send((history, turn), 4, time_ms=50.0))
    scenario = split({"policy": "isl-bounding", "uncached_tokens": 40}, *sends)
    record = run(scenario).record
    assert on_one_worker(scenario) == [False, True]
    assert record.requests.worker[0] == record.requests.worker[1]
    assert record.requests.hit_tokens[1] == 40
    assert record.requests.first_token_ms[1] == 51.0  # one pass, and no hand-off
    assert record.handoffs is not None
    assert record.handoffs.source_held_ms[1] != record.handoffs.source_held_ms[1]
    never = split({"policy": "isl-bounding", "uncached_tokens": 8}, *sends)
    assert on_one_worker(never) == [False, False]


def test_prompts_go_to_decode_workers_while_prefill_is_busy() -> None:
    sends = tuple(Send(((number, 0, 40),), 4, time_ms=0.0) for number in range(3))
    busy = {"policy": "prefill-load", "prefill_busy_threshold": 1.0}  # of 64 tokens
    assert on_one_worker(split(busy, *sends)) == [False, False, True]
    assert on_one_worker(split({**busy, "prefill_busy_threshold": 2.0}, *sends)) == [False, False, False]


def test_a_decode_worker_without_room_is_spared() -> None:
    sends = tuple(Send(((9, 0, 4), (number, 0, 76)), 40, time_ms=5.0 * number) for number in range(3))
    bypass: dict[str, object] = {"policy": "isl-bounding", "uncached_share": 1.0}
    # 22 of 64 blocks are in use at 5 ms, and 43 at 10 ms
    for limit, expected in ((None, [False, True, True]), (0.5, [False, True, False]), (0.1, [False] * 3)):
        scenario = split({**bypass, "decode_busy_threshold": limit}, *sends, decode_workers=1)
        assert on_one_worker(scenario) == expected


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"bypass": {"policy": "isl-bounding"}}, "has no effect without"),
        (
            {"prefill_workers": 1, "decode_workers": 1, "bypass": {"policy": "isl-bounding"}},
            "needs cluster.router.kind kv",
        ),
        (
            {
                "prefill_workers": 1,
                "decode_workers": 1,
                "router": {"kind": "kv"},
                "bypass": {"policy": "prefill-load"},
            },
            "prefill_busy_threshold is missing",
        ),
        (
            {"prefill_workers": 1, "decode_workers": 1, "router": {"kind": "kv"}, "bypass": {"uncached_tokens": 3}},
            "has no effect unless",
        ),
    ],
)
def test_options_without_an_effect_are_errors(cluster: dict[str, object], said: str) -> None:
    with pytest.raises((InputError, ValueError)) as caught:
        Config.model_validate({"cluster": cluster})
    assert said.split()[-1] in str(caught.value)
