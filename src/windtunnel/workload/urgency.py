"""How urgent a request is to a router that queues, as its trace says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Urgency:
    """What a router's queue looks at.

    Attributes:
        priority: larger is more urgent; in a first-come queue worth so many seconds of waiting. Below 0 counts as 0.
        strict_priority: the largest goes first, whatever else.
        policy_class: name of a policy class or family of the router, "" for its default.
    """

    priority: int = 0
    strict_priority: int = 0
    policy_class: str = ""


NO_URGENCY = Urgency()


def urgency_of(priority: int | None, strict_priority: int | None, policy_class: str | None) -> Urgency:
    """What a row of a trace says; `NO_URGENCY` itself if that is nothing."""
    if not priority and not strict_priority and not policy_class:
        return NO_URGENCY
    return Urgency(priority or 0, strict_priority or 0, policy_class or "")
