"""The `aiperf` trace format: JSON lines of AIPerf's single_turn and multi_turn input files.

A row is a turn (text or texts, timestamp or delay in ms), or a session of such turns. Lengths of texts are those of
the rule in `conversations`; prompts of a session accumulate its turns and answers, as AIPerf sends them. Such files
state no output lengths, AIPerf takes them from its command line: unless a turn has output_length or max_tokens,
they have to be given (`missing_output_tokens`). Images, audio and video are not read. AIPerf's mooncake_trace files are
`mooncake`. Source: ai-dynamo/aiperf, src/aiperf/dataset/loader/models.py and multi_turn.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import msgspec

from windtunnel.workload.session import Workload
from windtunnel.workload.traces.conversations import Dialogue, TextContent, tokens_in
from windtunnel.workload.traces.json_rows import (
    DelayMs,
    OutputTokens,
    TimeMs,
    either,
    read_json_rows,
    required_output,
)
from windtunnel.workload.traces.reading import CONTRADICTION, ZERO_TOKENS, BadRowError, ReadOptions
from windtunnel.workload.traces.rows import Head
from windtunnel.workload.traces.sessions import SessionBuilder


class NamedTexts(msgspec.Struct, gc=False):
    """Texts of one field."""

    contents: list[str] = []
    name: str = ""


class Turn(msgspec.Struct, gc=False):
    """One turn."""

    text: str | None = None
    texts: list[str | NamedTexts] | None = None
    timestamp: TimeMs | None = None
    delay: DelayMs | None = None
    output_length: OutputTokens | None = None
    max_tokens: OutputTokens | None = None


class AiperfRow(Turn):
    """A turn of its own, or a session."""

    session_id: str | None = None
    turns: list[Turn] | None = None


class Aiperf:
    """Reader of the format."""

    name = "aiperf"
    aliases: tuple[str, ...] = ()
    row = "a JSON object with text or texts, or with turns of them"
    block_size: int | None = None
    options = frozenset(("missing_output_tokens",))
    fields = frozenset((*AiperfRow.__struct_fields__, "contents", "name"))

    def recognises(self, head: Head) -> bool:
        names = head.names
        is_own = {"text", "texts", "turns"} & names and not {"hash_ids", "conversations", "usage", "input_toks"} & names
        return head.first.startswith(b"{") and bool(is_own)

    def read(self, paths: Sequence[str], options: ReadOptions) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        builder = _Builder(", ".join(paths), options)
        read_json_rows(paths, options, AiperfRow, self.row, builder.add)
        return builder.sessions.workload


class _Builder:
    def __init__(self, source: str, options: ReadOptions) -> None:
        self.sessions = SessionBuilder(source)
        self.sessions.workload.accumulates = True
        self._options = options
        self._content = TextContent()
        self._dialogues: dict[str, Dialogue] = {}

    def add(self, row: AiperfRow) -> None:
        turns: Sequence[Turn] = [row] if row.turns is None else row.turns
        if not turns:
            raise BadRowError("found none, expected at least one", field="turns")
        prefixes = [""] if row.turns is None else [f"turns[{place}]." for place in range(len(turns))]
        messages = [_message(turn, prefix) for turn, prefix in zip(turns, prefixes, strict=True)]
        outputs = [self._output(turn, prefix) for turn, prefix in zip(turns, prefixes, strict=True)]
        name = None if row.turns is None else row.session_id or f"row {self._options.loading.rows + 1}"
        dialogue = Dialogue(self._content)
        if name is not None:
            dialogue = self._dialogues.setdefault(name, dialogue)
        times = self._times(name, turns, prefixes)
        for turn, (text, tokens), (output, _), time_ms in zip(turns, messages, outputs, times, strict=True):
            dialogue.say(text, tokens)
            request = self.sessions.add(
                dialogue.prompt(), output, session_name=name, time_ms=time_ms, timestamp_ms=turn.timestamp
            )
            dialogue.answered(request, output)
        self._options.loading.without_output += sum(not stated for _, stated in outputs)

    def _times(self, name: str | None, turns: Sequence[Turn], prefixes: Sequence[str]) -> list[float]:
        """Arrival of the first turn and delays of the others; a delay of the first turn of all has no effect there."""
        times: list[float] = []
        last_ms: float | None = None
        for turn, prefix in zip(turns, prefixes, strict=True):
            is_first = not times and self.sessions.session_of(name) is None
            if turn.timestamp is not None and turn.delay:
                message = "given together with timestamp: expected one of them"
                raise BadRowError(message, kind=CONTRADICTION, field=f"{prefix}delay")
            if is_first:
                times.append(nan if turn.timestamp is None else turn.timestamp)
            elif not times:
                fields = {"timestamp_field": f"{prefix}timestamp", "delay_field": f"{prefix}delay"}
                times.append(self.sessions.time_ms(name, turn.timestamp, turn.delay, **fields))
            elif turn.timestamp is not None and last_ms is not None:
                if turn.timestamp < last_ms:
                    message = f"found {turn.timestamp:g}, expected at least {last_ms:g}, that of the turn before"
                    raise BadRowError(message, kind=CONTRADICTION, field=f"{prefix}timestamp")
                times.append(turn.timestamp - last_ms)
            else:
                times.append(turn.delay or 0.0)
            if turn.timestamp is not None:
                last_ms = turn.timestamp
        return times

    def _output(self, turn: Turn, prefix: str) -> tuple[int, bool]:
        stated = either(turn.output_length, turn.max_tokens, "output_length", "max_tokens")
        return required_output(stated, self._options, f"{prefix}output_length"), stated is not None


def _message(turn: Turn, prefix: str) -> tuple[str, int]:
    if turn.text is not None and turn.texts is not None:
        message = "given together with text: expected one of them"
        raise BadRowError(message, kind=CONTRADICTION, field=f"{prefix}texts")
    parts = [turn.text] if turn.text is not None else []
    for texts in turn.texts or ():
        parts += [texts] if isinstance(texts, str) else texts.contents
    text = "\n".join(parts)
    tokens = tokens_in(text)
    if not tokens:
        raise BadRowError("found no words, expected a text", kind=ZERO_TOKENS, field=f"{prefix}text")
    return text, tokens
