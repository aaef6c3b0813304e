"""As many workers as the load to come needs if every token is to be on time: arrivals extrapolated, work priced.

The load is that of the last window, carried on along the line through the last two if it grows. A worker serves as many
requests at once as its timing model prices within the ITL limit (times the accept length); one request then takes it
    prompt_ms + output_tokens / accept length * step_ms / requests at once,
and workers = rate * that / (1000 * utilisation). The timing model is asked, never the queue: it scales before requests
wait. Prompts and outputs are as long as those that completed in the last window with any.
Source: the planner of Dynamo, which does the same with measured profiles (throughput-based scaling).
"""

from __future__ import annotations

from math import ceil

from windtunnel.cluster.autoscaler.base import ClusterSnapshot, ScalingDecision
from windtunnel.timing.base import PassShape, TimingModel

UTILISATION = 0.8  # of a worker's time that is planned with
MOST_REQUESTS = 1024  # at once on one worker, as far as it looks


class SloAutoscaler:
    """Scales by predicted arrivals and priced work.

    Args:
        timing: by pool, what prices its passes.
        kv_capacity_tokens: by pool, what the KV cache of a worker holds.
        itl_ms: the limit for the gap between two tokens.
        interval_ms: between two ticks.
        min_workers, max_workers: bounds for each pool.
    """

    def __init__(
        self,
        timing: dict[str, TimingModel],
        kv_capacity_tokens: dict[str, int],
        itl_ms: float,
        interval_ms: float = 15_000.0,
        min_workers: int = 1,
        max_workers: int | None = None,
    ) -> None:
        self.timing = timing
        self.kv_capacity_tokens = kv_capacity_tokens
        self.itl_ms = itl_ms
        self.interval_ms = interval_ms
        self.min_workers = min_workers
        self.max_workers = max_workers
        self._rate = 0.0  # arrivals per second in the last window
        self._input_tokens = 0
        self._output_tokens = 0
        self._accept_length = 1.0

    def first_tick_ms(self) -> float:
        return self.interval_ms

    def on_tick(self, snapshot: ClusterSnapshot) -> ScalingDecision:
        traffic = snapshot.traffic
        if traffic.mean_input_tokens is not None and traffic.mean_output_tokens is not None:
            self._input_tokens = round(traffic.mean_input_tokens)
            self._output_tokens = round(traffic.mean_output_tokens)
            self._accept_length = traffic.accept_length or 1.0
        rate = traffic.arrivals_per_s
        predicted = max(rate, rate + (rate - self._rate)) if snapshot.tick else rate
        self._rate = rate
        targets: dict[str, int] = {}
        if self._input_tokens:  # nobody has completed before: nothing to plan with
            for name in snapshot.pools:
                busy = predicted * self._request_ms(name) / 1000.0 / UTILISATION
                workers = max(ceil(busy), self.min_workers)
                targets[name] = workers if self.max_workers is None else min(workers, self.max_workers)
        return ScalingDecision(targets, snapshot.now_ms + self.interval_ms)

    def _request_ms(self, pool: str) -> float:
        """Time of a worker of a pool that one request takes."""
        request_ms = 0.0
        timing = self.timing[pool]
        if pool != "decode":
            request_ms += timing.price_pass_ms(_prompt(self._input_tokens))
        if pool != "prefill" and self._output_tokens:
            context = self._input_tokens + self._output_tokens // 2
            at_once = self._requests_at_once(timing, self.kv_capacity_tokens[pool] // context, context)
            steps = self._output_tokens / self._accept_length
            request_ms += steps * _step_ms(timing, at_once, context) / at_once
        return request_ms

    def _requests_at_once(self, timing: TimingModel, most: int, context: int) -> int:
        """The most requests whose decode step keeps the limit, at least one; steps get longer with more of them."""
        low, high = 1, max(min(most, MOST_REQUESTS), 1)
        while low < high:
            middle = (low + high + 1) // 2
            if _step_ms(timing, middle, context) <= self.itl_ms * self._accept_length:
                low = middle
            else:
                high = middle - 1
        return low


def _prompt(tokens: int) -> PassShape:
    shape = PassShape()
    shape.add_chunk(0, tokens, tokens, True)
    shape.physical_context_tokens = tokens
    return shape


def _step_ms(timing: TimingModel, requests: int, context: int) -> float:
    shape = PassShape(requests, requests * context)
    shape.physical_context_tokens = requests * context
    return timing.price_pass_ms(shape)
