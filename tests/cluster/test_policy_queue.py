"""Who goes next from the queue of a router, and which class a request waits in."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel import RoutedRequest
from windtunnel.cluster.router.base import RefusalError
from windtunnel.cluster.router.policy_queue import PolicyQueue, QueuedRequest
from windtunnel.config.policy_classes import PolicyClasses, PolicyFile, read_policy_file, single_class
from windtunnel.errors import InputError
from windtunnel.workload.content import Content
from windtunnel.workload.urgency import Urgency

CLASSES = """
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 1024, bucket: long}]
policy_classes:
  - {name: chat_s, policy_family: chat, cache_bucket: short, quantum: 3, prefill_busy_threshold: 1}
  - {name: chat_l, policy_family: chat, cache_bucket: long, prefill_busy_threshold: 1}
  - {name: batch_s, policy_family: batch, cache_bucket: short}
  - {name: batch_l, policy_family: batch, cache_bucket: long}
  - {name: vip, queue_policy: wspt, prefill_busy_threshold_frac: 0.5}
"""


def entry(number: int, policy_class: int = 0, tokens: int = 1, uncached: int = 1, **urgency: object) -> QueuedRequest:
    request = RoutedRequest(number, number, 0, tokens, 1, Content.of(()), Urgency(**urgency))  # type: ignore[arg-type]
    return QueuedRequest(request, policy_class, {}, uncached)


def classes_of(*rules: dict[str, object]) -> PolicyClasses:
    """Explicit classes, besides a family that nobody is in."""
    family = {"name": "f", "policy_family": "f", "cache_bucket": "all"}
    data = {
        "default_policy_family": "f",
        "uncached_isl_buckets": [{"min_tokens": 0, "bucket": "all"}],
        "policy_classes": [*({"name": f"c{n}", "prefill_busy_threshold": 0, **r} for n, r in enumerate(rules)), family],
    }
    return PolicyClasses(PolicyFile.model_validate(data))


def drain(queue: PolicyQueue) -> list[int]:
    found = []
    while (popped := queue.pop(lambda rules: False)) is not None:
        found.append(popped.request.number)
    return found


@pytest.mark.parametrize(
    ("policy", "order"), [("fcfs", [3, 2, 0, 1, 4]), ("lcfs", [3, 2, 4, 1, 0]), ("wspt", [3, 2, 4, 1, 0])]
)
def test_the_order_within_a_class(policy: str, order: list[int]) -> None:
    """A unit of priority is worth a second; whoever is strictly more urgent goes first."""
    queue = PolicyQueue(single_class(1.0, policy))  # type: ignore[arg-type]
    for number, (uncached, urgency) in enumerate(
        [(300, {}), (200, {}), (200, {"priority": 1}), (999, {"strict_priority": 1}), (100, {"priority": -9})]
    ):
        queue.push(entry(number, uncached=uncached, **urgency), 100.0 * number, 2)
    assert drain(queue) == order


def test_classes_share_by_their_quanta() -> None:
    queue = PolicyQueue(classes_of({"quantum": 1}, {"quantum": 3}))
    for number in range(80):
        queue.push(entry(number, policy_class=int(number >= 20)), 0.0, 1)
    assert [int(number >= 20) for number in drain(queue)] == [0, 1, 1, 1] * 20


def test_a_head_that_costs_many_quanta_is_served_at_once() -> None:
    queue = PolicyQueue(classes_of({"quantum": 4}))
    queue.push(entry(7, uncached=101), 0.0, 1)
    assert drain(queue) == [7]


def test_a_blocked_class_gains_nothing_while_another_is_served() -> None:
    queue = PolicyQueue(classes_of({"quantum": 1}, {"quantum": 1}))
    for number in range(4):
        queue.push(entry(number, policy_class=number % 2, uncached=2), 0.0, 1)
    assert queue.pop(lambda rules: True) is None
    blocked = queue.classes.classes[0]
    first = queue.pop(lambda rules: rules is blocked)
    assert first is not None
    assert first.request.number == 1
    assert drain(queue) == [0, 3, 2]
    assert len(queue) == 0


def test_who_withdraws_is_not_served_and_leaves_room() -> None:
    queue = PolicyQueue(classes_of({"request_queue_limit_per_worker": 1}))
    queue.push(entry(0), 0.0, 1)
    with pytest.raises(RefusalError, match="class c0 is full: 1 requests wait, its limit is 1 for each of 1 workers"):
        queue.push(entry(1), 1.0, 1)
    queue.withdraw(0)
    queue.push(entry(2), 2.0, 1)
    assert drain(queue) == [2]


def test_limits_look_at_what_waits_before_the_request() -> None:
    limits = {
        "request_queue_limit_per_worker": 1,
        "raw_isl_token_queue_limit_per_worker": 5,
        "cached_token_queue_limit_per_worker": 3,
    }
    queue = PolicyQueue(classes_of(limits))
    queue.push(entry(0, tokens=8, uncached=4), 0.0, 2)
    queue.push(entry(1, tokens=100, uncached=1), 0.0, 2)  # over both, but it was under them before
    with pytest.raises(RefusalError, match="2 requests wait"):
        queue.push(entry(2), 0.0, 2)


def test_a_request_is_in_the_class_it_names_or_that_of_its_family_and_bucket(tmp_path: Path) -> None:
    (tmp_path / "classes.yaml").write_text(CLASSES)
    classes = read_policy_file(str(tmp_path / "classes.yaml"))

    def name_of(policy_class: str, uncached: int) -> str:
        return classes.classes[classes.number_of(policy_class, uncached)].name

    assert [name_of("", 1023), name_of("", 1024), name_of("nobody", 1)] == ["chat_s", "chat_l", "chat_s"]
    assert [name_of("batch", 5000), name_of("vip", 5000), name_of("chat_s", 5000)] == ["batch_l", "vip", "chat_l"]
    assert [entry.queues for entry in classes.classes] == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("default_policy_family: chat", "default_policy_family: cat"), "did you mean 'chat'?"),
        (("min_tokens: 1024", "min_tokens: 0"), "must begin at 0 and ascend"),
        (("name: batch_l", "name: batch_s"), "two entries have the same class name"),
        ((", cache_bucket: long}", ", cache_bucket: short}"), "every pair of a family and a bucket exactly once"),
        (("name: vip", "name: chat"), "a class without a family has the name of one"),
        (("queue_policy: wspt", "queue_policy: lcfs"), "queue_policy is fcfs or wspt here"),
        (("quantum: 3", "quanta: 3"), "did you mean 'quantum'?"),
        (("quantum: 3", "quantum: 0"), "greater than or equal to 1"),
        (("default_policy_family: chat", ": ["), "is no YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text(CLASSES.replace(*change))
    with pytest.raises(InputError) as caught:
        read_policy_file(str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"/nowhere\.yaml: .*cannot be read"):
        read_policy_file("/nowhere.yaml")
