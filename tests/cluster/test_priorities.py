"""Priorities reach every engine that a request comes to: where prompts are handed over, too, and after a crash."""

from __future__ import annotations

from strategies import FlatTiming, Scenario, Send
from topologies import run
from windtunnel.config.faults import PlannedFault

ENGINE: dict[str, object] = {"block_size": 4, "num_gpu_blocks": 100, "scheduling_policy": "priority"}
SENDS = (Send(((0, 0, 8),), 8), *(Send(((1 + k, 0, 8),), 2, None, 0.5, priority) for k, priority in enumerate((0, 1))))


def test_the_more_urgent_prompt_is_computed_first_where_it_is_handed_over() -> None:
    topology = {"cluster": {"prefill_workers": 1, "decode_workers": 1}, "prefill_engine": {"max_num_seqs": 1}}
    requests = run(Scenario(SENDS, ENGINE, timing=FlatTiming(1.0), topology=topology)).record.requests
    assert requests.first_admit_ms[2] < requests.first_admit_ms[1]


def test_the_more_urgent_starts_anew_first_after_a_crash() -> None:
    scenario = Scenario(
        SENDS,
        {**ENGINE, "max_num_seqs": 1},
        timing=FlatTiming(1.0),
        topology={"cluster": {"failures": {"faults": "unused", "on_crash": "retry"}}},
    )
    requests = run(scenario, faults=[PlannedFault(3.0, "crash", "", 0, 10.0, 1.0)]).record.requests
    assert requests.first_token_ms[2] < requests.first_token_ms[1]
