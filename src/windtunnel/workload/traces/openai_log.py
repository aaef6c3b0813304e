"""The `openai-log` trace format: JSON lines of requests with the token counts that a server reported.

A row is what an OpenAI-compatible server answered (usage, created), a log entry with such an answer in `response` or in
`response.body` (batch results), or one request of a GuideLLM report (prompt_tokens, output_tokens, request_start_time).
Times are in seconds since 1970 or an ISO 8601 date and time (UTC unless it says otherwise); the first of
request_start_time, timestamp and created that a row has is its arrival. Lengths only. Sources: the OpenAI API reference
(chat completions, responses, batch output); vllm-project/guidellm, src/guidellm/schemas/request_stats.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import nan

import msgspec

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.json_rows import (
    InputTokens,
    OutputTokens,
    TimeS,
    either,
    read_json_rows,
    required_output,
)
from windtunnel.workload.traces.lengths_only import unique_prompt
from windtunnel.workload.traces.reading import BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder


class Usage(msgspec.Struct, gc=False):
    """Token counts under the names of either API."""

    prompt_tokens: InputTokens | None = None
    input_tokens: InputTokens | None = None
    completion_tokens: OutputTokens | None = None
    output_tokens: OutputTokens | None = None


class Body(msgspec.Struct, gc=False):
    """An answer."""

    usage: Usage | None = None
    created: TimeS | None = None
    created_at: TimeS | None = None
    id: str | None = None


class Response(Body):
    """An answer, or the envelope of one."""

    body: Body | None = None


class LogRow(Usage):
    """A log entry."""

    usage: Usage | None = None
    response: Response | None = None
    request_start_time: TimeS | None = None
    timestamp: TimeS | str | None = None
    created: TimeS | None = None
    created_at: TimeS | None = None
    id: str | None = None
    request_id: str | None = None
    custom_id: str | None = None


class OpenAiLog:
    """Reader of the format."""

    name = "openai-log"
    aliases = ("openai", "guidellm")
    row = "a JSON object with usage, or with prompt_tokens, output_tokens and request_start_time"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset((*LogRow.__struct_fields__, *Response.__struct_fields__))

    def recognises(self, head: Head) -> bool:
        counts = "prompt_tokens" in head.names and "request_start_time" in head.names
        return head.first.startswith(b"{") and ("usage" in head.names or counts) and "event_type" not in head.names

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`. Times count from the first row that has one."""
        builder = _Builder(", ".join(paths), options)
        read_json_rows(paths, options, LogRow, self.row, builder.add)
        return builder.sessions.workload


class _Builder:
    def __init__(self, source: str, options: ReadOptions) -> None:
        self.sessions = SessionBuilder(source)
        self._options = options
        self._first_s: float | None = None

    def add(self, row: LogRow) -> None:
        response = row.response
        answers: list[Body] = []
        if response is not None:
            answers = [response] if response.body is None else [response.body, response]
        usage = next((a.usage for a in answers if a.usage is not None), row.usage) or row
        prompt = either(usage.prompt_tokens, usage.input_tokens, "prompt_tokens", "input_tokens")
        output = either(usage.completion_tokens, usage.output_tokens, "completion_tokens", "output_tokens")
        if prompt is None:
            raise BadRowError("missing, expected the token counts of the request", field="usage.prompt_tokens")
        output = required_output(output, self._options, "usage.completion_tokens")
        arrival_s = _arrival_s(row, answers)
        if arrival_s is not None and self._first_s is None:
            self._first_s = arrival_s
        time_ms = nan if arrival_s is None or self._first_s is None else (arrival_s - self._first_s) * 1000.0
        name = row.request_id or row.custom_id or row.id or next((a.id for a in answers if a.id), None)
        number = self.sessions.workload.num_requests
        self.sessions.add(unique_prompt(number, prompt), output, request_id=name, time_ms=time_ms)


def _arrival_s(row: LogRow, answers: Sequence[Body]) -> float | None:
    if row.request_start_time is not None:
        return row.request_start_time
    if isinstance(row.timestamp, str):
        try:
            moment = datetime.fromisoformat(row.timestamp)
        except ValueError:
            message = f"found {row.timestamp[:40]!r}, expected a number of seconds or an ISO 8601 date and time"
            raise BadRowError(message, field="timestamp") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    stated = [row.timestamp, row.created, row.created_at]
    stated += [time for answer in answers for time in (answer.created, answer.created_at)]
    return next((time for time in stated if time is not None), None)
