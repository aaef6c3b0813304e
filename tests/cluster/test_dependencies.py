"""What waits for a request that did not complete is never sent, and is told so."""

from windtunnel import Config, Workload, simulate
from windtunnel.record.columns import Status


def graph() -> Workload:
    """A, then B (too long to be served) and C after it, then D after both, E after D."""
    workload = Workload()
    workload.add([(1, 0, 64)], 2, time_ms=0.0)
    workload.add([(2, 0, 6400)], 2, time_ms=5.0, after=[0])
    workload.add([(3, 0, 64)], 2, time_ms=5.0, after=[0])
    workload.add([(4, 0, 64)], 2, time_ms=5.0, after=[1, 2])
    workload.add([(5, 0, 64)], 2, time_ms=5.0, after=[3])
    return workload


def config(**workload: object) -> Config:
    return Config.model_validate({"engine": {"num_gpu_blocks": 10}, "workload": workload})


def test_a_rejection_cancels_what_waits_for_it_and_what_waits_for_that() -> None:
    record = simulate(config(), workload=graph()).record.requests
    statuses = [Status(status) for status in record.status]
    assert statuses == [Status.COMPLETED, Status.REJECTED, Status.COMPLETED, Status.CANCELLED, Status.CANCELLED]
    assert record.reasons[3] == "request 1, which it waits for, was rejected"
    assert record.reasons[4] == "request 3, which it waits for, was cancelled"
    assert record.worker[3] == -1
    assert record.arrival_ms[2] == record.terminal_ms[0] + 5.0


def test_it_runs_anyway_where_that_is_asked_for() -> None:
    record = simulate(config(on_failed_dependency="release"), workload=graph()).record.requests
    assert [Status(status) for status in record.status].count(Status.COMPLETED) == 4
    assert record.arrival_ms[3] == max(record.terminal_ms[1], record.terminal_ms[2]) + 5.0
