"""The fields that rows of `mooncake` and `agentic-mooncake` have in common, and what they say of a request.

Decides which of two names of a field a row has given, and what becomes of priorities and output token ids. Where a
request goes, and when it is sent, the formats decide.
"""

from __future__ import annotations

import msgspec

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.json_rows import (
    DelayMs,
    HashIds,
    InputTokens,
    OutputTokens,
    Signed32,
    TimeMs,
    TokenIds,
    Unsigned32,
    either,
    required_output,
)
from windtunnel.workload.traces.reading import CONTRADICTION, BadRowError, ReadOptions
from windtunnel.workload.traces.token_ids import TokenTree
from windtunnel.workload.urgency import NO_URGENCY, urgency_of


class MooncakeFields(msgspec.Struct, gc=False):
    """The known fields of a row; null is the same as absent, and keys that are not here are ignored."""

    hash_ids: HashIds | None = None
    input_length: InputTokens | None = None
    input_tokens: InputTokens | None = None
    output_length: OutputTokens | None = None
    output_tokens: OutputTokens | None = None
    timestamp: TimeMs | None = None
    created_time: TimeMs | None = None
    delay: DelayMs | None = None
    delay_ms: DelayMs | None = None
    session_id: str | None = None
    output_token_ids: TokenIds | None = None
    priority: Signed32 | None = None
    strict_priority: Unsigned32 | None = None
    policy_class: str | None = None


class Stated:
    """What a row states, whichever of its names it uses.

    Attributes:
        input_tokens, timestamp, delay: None if it does not; output_tokens: with what is given for those that do not.
        states_output: whether it states an output length.
    """

    __slots__ = ("delay", "input_tokens", "output_tokens", "states_output", "timestamp")

    def __init__(self, row: MooncakeFields, options: ReadOptions) -> None:
        """
        Raises:
            BadRowError: two names of one field, no output length, or not as many token ids as it says.
        """
        self.input_tokens = either(row.input_length, row.input_tokens, "input_length", "input_tokens")
        output = either(row.output_length, row.output_tokens, "output_length", "output_tokens")
        self.timestamp = either(row.timestamp, row.created_time, "timestamp", "created_time")
        self.delay = either(row.delay, row.delay_ms, "delay", "delay_ms")
        self.states_output = output is not None
        self.output_tokens = required_output(output, options)
        if row.output_token_ids is not None and len(row.output_token_ids) != self.output_tokens:
            raise BadRowError(
                f"found {len(row.output_token_ids)} ids for an output_length of {self.output_tokens}, expected as many",
                kind=CONTRADICTION,
                field="output_token_ids",
            )


def note_facts(workload: Workload, request: int, row: MooncakeFields, outputs: TokenTree) -> None:
    """Say of a request how urgent its row calls it, and what it generates; `outputs` has those of the rows before."""
    if row.output_token_ids:
        workload.plan(request, outputs.output((), row.output_token_ids, request))
    if row.priority:
        workload.priorities[request] = row.priority
    urgency = urgency_of(row.priority, row.strict_priority, row.policy_class)
    if urgency is not NO_URGENCY:
        workload.urgency[request] = urgency
