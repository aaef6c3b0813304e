"""As many workers as keep the requests of each near a target: the rule of Kubernetes' horizontal pod autoscaler.

wanted = ceil(workers * (requests per worker / target)), nothing below a tolerance of 10 %; it never goes below what was
wanted at any tick of the last `stabilization_ms`. Source: the Kubernetes documentation, "Algorithm details" of the
Horizontal Pod Autoscaler, whose tolerance and stabilization window these are.
"""

from __future__ import annotations

from math import ceil

from windtunnel.cluster.autoscaler.base import ClusterSnapshot, PoolSnapshot, ScalingDecision

TOLERANCE = 0.1


class ThresholdAutoscaler:
    """Scales every pool by the requests that its workers have, waiting and running.

    Args:
        requests_per_worker: the target.
        interval_ms: between two ticks.
        stabilization_ms: how long a larger number of workers is remembered.
        min_workers, max_workers: bounds for each pool.
    """

    def __init__(
        self,
        requests_per_worker: float,
        interval_ms: float = 15_000.0,
        stabilization_ms: float = 300_000.0,
        min_workers: int = 1,
        max_workers: int | None = None,
    ) -> None:
        self.requests_per_worker = requests_per_worker
        self.interval_ms = interval_ms
        self.stabilization_ms = stabilization_ms
        self.min_workers = min_workers
        self.max_workers = max_workers
        self._wanted: dict[str, list[tuple[float, int]]] = {}  # by pool, (time, workers) of the last ticks

    def first_tick_ms(self) -> float:
        return self.interval_ms

    def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
        now_ms = snapshot.now_ms
        targets: dict[str, int] = {}
        for name, pool in snapshot.pools.items():
            remembered = [e for e in self._wanted.get(name, []) if e[0] > now_ms - self.stabilization_ms]
            remembered.append((now_ms, self._bounded(self._workers_for(pool))))
            self._wanted[name] = remembered
            targets[name] = max(workers for _, workers in remembered)
        return ScalingDecision(targets, now_ms + self.interval_ms)

    def _workers_for(self, pool: PoolSnapshot) -> int:
        have = pool.active + pool.starting
        if not have:
            return ceil(pool.num_requests / self.requests_per_worker)
        ratio = pool.num_requests / have / self.requests_per_worker
        return have if abs(ratio - 1.0) <= TOLERANCE else ceil(have * ratio)

    def _bounded(self, workers: int) -> int:
        workers = max(workers, self.min_workers)
        return workers if self.max_workers is None else min(workers, self.max_workers)
