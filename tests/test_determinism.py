"""The same input gives the same record, to the last bit, in any process and whatever the hash seed of Python."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from strategies import Scenario, Send, columns_of, run
from windtunnel.record.columns import Status
from windtunnel.workload.content import output_origin


def crowded(router: str, tie_break: str = "lowest", seed: int = 0) -> Scenario:
    """Conversations over shared documents on three workers too small for them, some given up."""
    sends: list[Send] = []
    for number in range(60):
        document = (number % 4, 0, 40 + number % 3)
        if number % 3 == 2:
            before = sends[number - 1]
            runs = (*before.runs, (output_origin(number - 1), 0, before.output_tokens), (100 + number, 0, 7))
            sends.append(Send(runs, 20 + number % 7, after=number - 1, time_ms=15.0))
        else:
            sends.append(Send((document, (100 + number, 0, 1 + number % 5)), 30 + number % 11, time_ms=9.0 * number))
    engine: dict[str, object] = {"block_size": 4, "num_gpu_blocks": 50, "max_num_batched_tokens": 64}
    return Scenario(
        tuple(sends), engine, workers=3, router=router, tie_break=tie_break, cancel_after_ms=2500.0, seed=seed
    )


SCENARIOS = [crowded("round-robin"), crowded("random", seed=3), crowded("least-loaded", "random", seed=3)]


def digest() -> str:
    """A digest of the records of all scenarios, events of the caches included."""
    total = hashlib.sha256()
    for scenario in SCENARIOS:
        outcome = run(scenario, publish_events=True)
        total.update(repr(columns_of(outcome.record)).encode())
        for scheduler in outcome.schedulers:
            for event in scheduler.pool.events:
                total.update(repr((event.stored, event.content.runs(), event.first, event.end)).encode())
    return total.hexdigest()


def digest_of_another_process(hash_seed: str) -> str:
    script = "import test_determinism; print(test_determinism.digest())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=here, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_scenarios_are_worth_comparing() -> None:
    for scenario in SCENARIOS:
        requests = run(scenario).record.requests
        assert sum(requests.preemptions) > 0
        assert sum(requests.hit_tokens) > 0
        assert {Status.COMPLETED, Status.CANCELLED} <= set(requests.status)


def test_hash_seeds_and_processes_change_nothing() -> None:
    here = digest()
    assert len(here) == 64
    assert digest() == here
    assert digest_of_another_process("1") == here
    assert digest_of_another_process("271828") == here


def test_seeds_change_what_is_random_and_nothing_else() -> None:
    def placed(router: str, tie_break: str, seed: int) -> list[int]:
        return run(crowded(router, tie_break, seed)).record.requests.worker.tolist()

    assert placed("random", "lowest", 1) != placed("random", "lowest", 2)
    assert placed("least-loaded", "random", 1) != placed("least-loaded", "random", 2)
    assert placed("least-loaded", "lowest", 1) == placed("least-loaded", "lowest", 2)
    assert placed("round-robin", "lowest", 1) == placed("round-robin", "lowest", 2)
