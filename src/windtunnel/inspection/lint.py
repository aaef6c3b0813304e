"""What is suspicious about a trace: findings with counts that add up to its rows or requests.

Decides what is worth saying and how bad it is: an `error` is something that a run would refuse, a `warning` something
that is probably not meant, a `note` something to know. It never changes anything, and never guesses a unit: it doubts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from windtunnel.inspection.facts import TraceFacts
from windtunnel.workload.session import Workload

Level = Literal["error", "warning", "note"]

USUAL_BLOCK_SIZES = (1, 16, 32, 64, 128, 256, 512, 1024)
FASTEST_USUAL_RATE_PER_S = 1000.0
SLOWEST_USUAL_RATE_PER_S = 0.01
FEWEST_FOR_A_RATE = 10
UNREAD = "unread column"


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        name: what kind of finding, for programs.
        count, of: how many rows or requests it is about, and of how many.
        message: in a sentence.
    """

    level: Level
    name: str
    count: int
    of: int
    message: str

    def as_dict(self) -> dict[str, str | int]:
        """The finding as plain JSON values."""
        return dict(vars(self))


def lint(workload: Workload, facts: TraceFacts, unread: Mapping[str, int], rows_looked_at: int) -> list[Finding]:
    """All findings, errors first.

    Args:
        workload: as `load_trace` returns it with bad rows skipped.
        facts: its facts.
        unread: names of columns or members that nothing reads, with the number of rows that have them.
        rows_looked_at: rows in which these were looked for.
    """
    found = [
        *_bad_rows(facts),
        *_arrivals(facts),
        *_hash_ids(facts),
        *_tokens(facts),
        *_ids(workload),
        *(Finding("note", UNREAD, count, rows_looked_at, name) for name, count in sorted(unread.items())),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _bad_rows(facts: TraceFacts) -> Iterable[Finding]:
    loading = facts.loading
    for kind, count in sorted(loading.skipped.items()):
        yield Finding("error", kind, count, loading.rows, f"first: {loading.first_skipped[kind]}")


def _arrivals(facts: TraceFacts) -> Iterable[Finding]:
    arrivals = facts.arrivals
    missing = arrivals.count - arrivals.stated
    if missing == arrivals.count:
        how = f": {facts.needs_concurrency}" if facts.needs_concurrency else ""
        message = f"no request has an arrival time{how}; they come all at once, or in a closed loop (--concurrency)"
        yield Finding("warning", "missing arrivals", missing, arrivals.count, message)
        return
    if missing:
        message = "have no arrival time and arrive at zero"
        yield Finding("warning", "missing arrivals", missing, arrivals.count, message)
    if arrivals.out_of_order:
        message = "arrive before a request that stands above them in the file"
        yield Finding("note", "decreasing arrivals", arrivals.out_of_order, arrivals.count, message)
    if arrivals.count >= FEWEST_FOR_A_RATE and arrivals.span_ms > 0.0:
        usual = SLOWEST_USUAL_RATE_PER_S <= arrivals.rate_per_s <= FASTEST_USUAL_RATE_PER_S
        if not usual:
            span_s = arrivals.span_ms / 1000.0
            message = (
                f"{arrivals.count:,} requests in {span_s:,.6g} s are {arrivals.rate_per_s:,.4g} a second: "
                "are the times really in the unit that the format states?"
            )
            yield Finding("warning", "unit of times", arrivals.count, arrivals.count, message)
    elif arrivals.count >= FEWEST_FOR_A_RATE:
        message = f"all {arrivals.count:,} requests arrive at the same instant"
        yield Finding("warning", "unit of times", arrivals.count, arrivals.count, message)
    if arrivals.span_ms > 0.0 and arrivals.instants * 2 <= arrivals.count:
        message = (
            f"{arrivals.count:,} requests arrive at {arrivals.instants:,} distinct instants, up to "
            f"{arrivals.most_at_once:,} at once, {arrivals.median_step_ms:,.6g} ms apart: times are quantised"
        )
        yield Finding("note", "quantised arrivals", arrivals.count - arrivals.instants, arrivals.count, message)


def _hash_ids(facts: TraceFacts) -> Iterable[Finding]:
    loading = facts.loading
    size = loading.block_size
    mismatched = loading.surplus_hashes + loading.clipped_to_hashes
    if loading.clipped_to_hashes:
        message = (
            f"have fewer hash ids than their prompt has blocks of {size} tokens; prompts are shown cut to what the ids "
            "cover (--on-hash-mismatch clip)"
        )
        yield Finding("error", "too few hash ids", loading.clipped_to_hashes, loading.hash_rows, message)
    if loading.surplus_hashes:
        message = f"have more hash ids than their prompt has blocks of {size} tokens; the last ones are not read"
        level: Level = "error" if loading.needs_exact_hashes else "warning"
        yield Finding(level, "surplus hash ids", loading.surplus_hashes, loading.hash_rows, message)
    if mismatched and loading.hash_ids and size:
        per_id = loading.hash_tokens / loading.hash_ids
        likely = min(USUAL_BLOCK_SIZES, key=lambda usual: abs(math.log2(usual / max(per_id, 0.5))))
        if likely != size and mismatched * 2 > loading.hash_rows:
            message = (
                f"prompts have {per_id:,.4g} tokens a hash id on average: is the block size {likely} rather than "
                f"{size} (--trace-block-size {likely})?"
            )
            yield Finding("warning", "block size", mismatched, loading.hash_rows, message)


def _tokens(facts: TraceFacts) -> Iterable[Finding]:
    loading = facts.loading
    if loading.without_output:
        message = "state no output length: give one with --set workload.missing_output_tokens=N"
        yield Finding("error", "missing output length", loading.without_output, facts.requests, message)
    zeros = facts.output_tokens.zeros - loading.without_output
    if zeros > 0:
        message = "ask for no output tokens: they end with their prompt, as recorded failures look"
        yield Finding("warning", "no output tokens", zeros, facts.requests, message)
    if facts.overlong_requests:
        message = f"have a prompt that reaches the max_model_len of {facts.max_model_len:,}: see --on-overlong"
        yield Finding("warning", "overlong prompt", facts.overlong_requests, facts.requests, message)
    if facts.cut_short_requests:
        message = f"have an output that does not fit below the max_model_len of {facts.max_model_len:,}: it ends early"
        yield Finding("note", "output cut short", facts.cut_short_requests, facts.requests, message)


def _ids(workload: Workload) -> Iterable[Finding]:
    repeated = sum(count - 1 for count in Counter(workload.request_ids).values())
    if repeated:
        message = "have the request id of another request"
        yield Finding("warning", "repeated request id", repeated, workload.num_requests, message)
