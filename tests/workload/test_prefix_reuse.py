"""How much of a workload's prompts an endless prefix cache would serve: arithmetic of content, without an engine."""

from __future__ import annotations

import pytest

from windtunnel.config.schema import SyntheticConfig
from windtunnel.workload.session import Workload
from windtunnel.workload.synthetic import synthetic_workload
from windtunnel.workload.traces import load_trace


def reused(workload: Workload, block_size: int, held_back: int = 1) -> list[int]:
    """Per request, prompt tokens in leading whole blocks that an earlier prompt had too.

    `held_back` tokens at the end are computed in any case (vLLM: one).
    """
    seen: set[object] = set()
    result = []
    for request in range(workload.num_requests):
        content = workload.content(request, 0)
        path: tuple[object, ...] = ()
        hit = 0
        hitting = True
        for at in range(0, content.length - block_size + 1, block_size):
            path = (path, content.key(at, block_size))
            hitting = hitting and path in seen and at + block_size <= content.length - held_back
            hit += block_size * hitting
            seen.add(path)
        result.append(hit)
    return result


def row(timestamp: float, input_length: int, hash_ids: list[int]) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": input_length, "output_length": 1, "hash_ids": hash_ids}


def test_equal_and_partly_equal_prompts(write_trace):
    path = write_trace(row(1000, 1000, [1, 2]), row(1500, 1000, [1, 2]), row(3000, 600, [1, 5]))
    workload = load_trace([path])
    assert reused(workload, 64) == [0, 960, 512]
    assert sum(reused(workload, 64)) / sum(workload.input_tokens) == pytest.approx(0.566153846154)


def test_a_partial_block_is_shared_as_far_as_it_goes(write_trace):
    workload = load_trace([write_trace(row(0, 100, [7]), row(100, 512, [7]), row(200, 640, [7, 8]))])
    assert reused(workload, 64) == [0, 64, 512]
    assert reused(workload, 1, held_back=0) == [0, 100, 512]


@pytest.mark.parametrize(
    ("ratio", "groups", "turns", "expected"),
    [
        (0.0, 0, 1, 0.0),
        (0.5, 1, 1, 5 * 512 / 6000),
        (1.0, 1, 1, 5 * 960 / 6000),
        (0.0, 0, 3, 0.0),
        (0.5, 1, 3, 17 * 512 / 18000),
    ],
)
def test_generated_prompts_share_the_prefix_of_their_group_only(ratio: float, groups: int, turns: int, expected: float):
    config = SyntheticConfig(isl=1000, osl=3, requests=6, turns=turns, prefix_ratio=ratio, prefix_groups=groups)
    workload = synthetic_workload(config, block_size=64, concurrency=1)
    assert sum(reused(workload, 64)) / sum(workload.input_tokens) == pytest.approx(expected, abs=1e-12)


def test_each_group_pays_for_its_prefix_once():
    config = SyntheticConfig(isl=1000, osl=3, requests=60, prefix_ratio=0.5, prefix_groups=4)
    workload = synthetic_workload(config, block_size=64, concurrency=1)
    assert len({workload.prompt_runs(r)[0] for r in range(60)}) == 4
    assert sum(reused(workload, 64)) == (60 - 4) * 512
