"""The classes that a queueing router sorts requests into, read from a YAML file or made from a threshold.

Decides the class of a request and checks the file; the order within and between classes is `policy_queue.py`'s. The
schema is that of Dynamo's router policy files (policy families, buckets of uncached prompt tokens, classes).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from windtunnel.config.section import NonNegativeFloat, NonNegativeInt, PositiveInt, RuleError, Section
from windtunnel.config.vllm import fcfs
from windtunnel.errors import InputError, closest

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]


class PolicyClass(Section):
    """One queue.

    It is for a family and a bucket, or, without them, for requests that name it. Without a threshold nothing waits
    in it.
    """

    name: Name
    policy_family: Name | None = None
    cache_bucket: Name | None = None
    queue_policy: Annotated[Literal["fcfs", "lcfs", "wspt"], BeforeValidator(fcfs)] = "fcfs"
    quantum: PositiveInt = Field(default=1, description="uncached prompt tokens that it may send each round")
    prefill_busy_threshold: NonNegativeInt | None = Field(
        default=None, description="prompt tokens to compute above which a worker is busy"
    )
    prefill_busy_threshold_frac: NonNegativeFloat | None = Field(
        default=None, description="the same as a share of max_num_batched_tokens"
    )
    request_queue_limit_per_worker: PositiveInt | None = None
    raw_isl_token_queue_limit_per_worker: PositiveInt | None = None
    cached_token_queue_limit_per_worker: PositiveInt | None = None

    @model_validator(mode="after")
    def _consistent(self) -> PolicyClass:
        if (self.policy_family is None) != (self.cache_bucket is None):
            raise RuleError("{policy_family} and {cache_bucket} go together: give both, or neither")
        return self

    @property
    def queues(self) -> bool:
        """Whether requests may wait in it."""
        return self.prefill_busy_threshold is not None or self.prefill_busy_threshold_frac is not None


class UncachedBucket(Section):
    """Requests with at least so many uncached prompt tokens."""

    min_tokens: NonNegativeInt
    bucket: Name


class PolicyFile(Section):
    """All classes, and which of them a request is in."""

    default_policy_family: Name
    uncached_isl_buckets: Annotated[list[UncachedBucket], Field(min_length=1)]
    policy_classes: Annotated[list[PolicyClass], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> PolicyFile:
        buckets = self.uncached_isl_buckets
        if buckets[0].min_tokens or any(a.min_tokens >= b.min_tokens for a, b in pairwise(buckets)):
            raise RuleError("{uncached_isl_buckets} must begin at 0 and ascend")
        names = [bucket.bucket for bucket in buckets]
        classes = self.policy_classes
        families = list(dict.fromkeys(c.policy_family for c in classes if c.policy_family is not None))
        found = [(c.policy_family, c.cache_bucket) for c in classes if c.policy_family is not None]
        wanted = [(family, name) for family in families for name in names]
        for what, values in (("bucket", names), ("class", [c.name for c in classes])):
            if len(set(values)) < len(values):
                raise RuleError(f"two entries have the same {what} name")
        if self.default_policy_family not in families:
            raise RuleError(f"{{default_policy_family}}: {closest(self.default_policy_family, families)}")
        if sorted(map(str, found)) != sorted(map(str, wanted)):
            raise RuleError("{policy_classes} must define every pair of a family and a bucket exactly once")
        if any(c.policy_family is None and c.name in families for c in classes):
            raise RuleError("{policy_classes}: a class without a family has the name of one")
        if any(c.queue_policy == "lcfs" for c in classes):
            raise RuleError("{policy_classes}: queue_policy is fcfs or wspt here")
        return self


class PolicyClasses:
    """The classes of one router, by number, and the rule that sorts requests into them."""

    def __init__(self, file: PolicyFile) -> None:
        self.classes = file.policy_classes
        self._buckets = [bucket.min_tokens for bucket in file.uncached_isl_buckets]
        names = [bucket.bucket for bucket in file.uncached_isl_buckets]
        self._explicit: dict[str, int] = {}
        self._families: dict[str, list[int]] = {}
        for number, entry in enumerate(self.classes):
            if entry.policy_family is None:
                self._explicit[entry.name] = number
            else:
                family = self._families.setdefault(entry.policy_family, [0] * len(names))
                family[names.index(str(entry.cache_bucket))] = number
        self._default = self._families[file.default_policy_family]

    def number_of(self, policy_class: str, uncached_tokens: int) -> int:
        """The class of a request: the one that it names, else that of its family and bucket."""
        explicit = self._explicit.get(policy_class)
        if explicit is not None:
            return explicit
        family = self._families.get(policy_class, self._default)
        place = len(self._buckets) - 1
        while uncached_tokens < self._buckets[place]:
            place -= 1
        return family[place]


def single_class(threshold: float | None, queue_policy: Literal["fcfs", "lcfs", "wspt"]) -> PolicyClasses:
    """One class for all; nothing waits without a threshold, a share of max_num_batched_tokens."""
    classes = PolicyClasses.__new__(PolicyClasses)
    classes.classes = [PolicyClass(name="default", queue_policy=queue_policy, prefill_busy_threshold_frac=threshold)]
    classes._explicit = {}
    classes._families = {}
    classes._default = [0]
    classes._buckets = [0]
    return classes


def read_policy_file(path: str) -> PolicyClasses:
    """The classes in a YAML file.

    Raises:
        InputError: it cannot be read, or anything in it is wrong.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text in UTF-8"
        raise InputError(f"cannot be read: {reason}", source=path, field="cluster.router.policy_file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise InputError(f"is no YAML: {getattr(error, 'problem', error)}", source=path, line=line) from None
    if not isinstance(data, dict):
        raise InputError("expected default_policy_family, uncached_isl_buckets and policy_classes", source=path)
    try:
        return PolicyClasses(PolicyFile.model_validate(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            names = PolicyClass.model_fields if len(first["loc"]) > 1 else PolicyFile.model_fields
            message = f"unknown field: {closest(str(first['loc'][-1]), names)}"
        raise InputError(message, source=path, field=place or None) from None
