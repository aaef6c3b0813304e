"""The `sharegpt` trace format: conversations as JSON, a list of them in one value or one a line.

A conversation has messages under `conversations` (with from and value) or `messages` (with role and content). Each
answer is a turn whose prompt is everything before it; conversations have no arrivals. A message's length is its
`tokens`, where the file counts them, else that of its text by the rule in `conversations`. What stands before the first
question is part of its prompt; a question without an answer is no turn. Source: the ShareGPT files that vLLM and SGLang
benchmark with (vllm/benchmarks/datasets, ShareGPTDataset), of which those take the first turn only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.conversations import Dialogue, TextContent, tokens_in
from windtunnel.workload.traces.json_document import read_list
from windtunnel.workload.traces.json_rows import OutputTokens
from windtunnel.workload.traces.reading import NOT_A_ROW, ZERO_TOKENS, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head

_ASSISTANTS = frozenset(("gpt", "chatgpt", "assistant", "bing", "bard", "model"))


class Message(msgspec.Struct, gc=False):
    """One message, under either pair of names."""

    from_: str | None = msgspec.field(default=None, name="from")
    value: str | None = None
    role: str | None = None
    content: str | None = None
    tokens: OutputTokens | None = None


class Conversation(msgspec.Struct, gc=False):
    """One conversation."""

    conversations: list[Message] | None = None
    messages: list[Message] | None = None
    id: str | int | None = None


class ShareGpt:
    """Reader of the format."""

    name = "sharegpt"
    aliases: tuple[str, ...] = ("share-gpt",)
    row = "a JSON object with conversations of messages with from and value"
    block_size: int | None = None
    options: frozenset[str] = frozenset()
    fields = frozenset(("conversations", "messages", "id", "from", "value", "role", "content", "tokens"))

    def recognises(self, head: Head) -> bool:
        has_pair = {"from", "value"} <= head.names or {"role", "content"} <= head.names
        return head.is_json and "conversations" in head.names and has_pair

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        workload = Workload(", ".join(paths))
        workload.accumulates = True
        read_list(paths, options, Conversation, self.row, _adder(workload))
        return workload


def _adder(workload: Workload) -> Callable[[Conversation], None]:
    content = TextContent()

    def add(row: Conversation) -> None:
        messages = row.conversations if row.conversations is not None else row.messages
        if messages is None:
            raise BadRowError("missing, expected a list of messages", kind=NOT_A_ROW, field="conversations")
        turns = [(*_length(message), _is_answer(message)) for message in messages]
        asked = next((place for place, turn in enumerate(turns) if turn[1] and not turn[2]), len(turns))
        if not any(turn[2] and turn[1] for turn in turns[asked:]):
            raise BadRowError(
                "found no question with an answer behind it, expected at least one",
                kind=ZERO_TOKENS,
                field="conversations",
            )
        dialogue = Dialogue(content)
        session: int | None = None
        for place, (text, tokens, is_answer) in enumerate(turns):
            if not is_answer or not tokens or place < asked:
                dialogue.say(text, tokens)
                continue
            time_ms = float("nan") if session is None else 0.0
            request = workload.add(dialogue.prompt(), tokens, session=session, time_ms=time_ms)
            if session is None:
                session = workload.session[request]
                workload.session_ids.append(str(session if row.id is None else row.id))
            dialogue.answered(request, tokens)

    return add


def _is_answer(message: Message) -> bool:
    who = message.from_ if message.from_ is not None else message.role
    if who is None:
        raise BadRowError("missing, expected who speaks", field="conversations.from")
    return who.lower() in _ASSISTANTS


def _length(message: Message) -> tuple[str, int]:
    text = message.value if message.value is not None else message.content
    if text is None:
        text = ""
    return text, tokens_in(text) if message.tokens is None else message.tokens
