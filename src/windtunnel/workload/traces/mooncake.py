"""The `mooncake` trace format: JSON lines with lengths, block hash ids, and optional sessions.

Decides what a row means: its prompt as runs of content, its place in a session, its arrival or delay. It never moves
or scales times. Rules: the format's public releases (kvcache-ai/Mooncake) and the public replayer that added sessions
and delays to it, except that a row longer than its hash ids cover is an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite, nan
from typing import Annotated, Any, TypeVar

import msgspec

from windtunnel.errors import InputError
from windtunnel.workload.content import Run
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.rows import rows

_Number = TypeVar("_Number", int, float)

MAX_TOKENS = 2**31  # per prompt or output: far above any model, far below where sums lose exactness
MAX_TIME_MS = 2.0**53  # 285,000 years; above it a float no longer tells one millisecond from the next
FIRST_INTERNED_ID = 2**40  # hash ids from here on (often real 64-bit hashes) are replaced by dense numbers

_Input = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
_Output = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
_Time = Annotated[float, msgspec.Meta(ge=-MAX_TIME_MS, le=MAX_TIME_MS)]
_Delay = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_MS)]
_HashId = Annotated[int, msgspec.Meta(ge=0)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Signed32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Unsigned32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _Row(msgspec.Struct, gc=False):
    """The known fields of a row; null is the same as absent, and keys that are not here are ignored."""

    hash_ids: list[_HashId] | None = None
    input_length: _Input | None = None
    input_tokens: _Input | None = None
    output_length: _Output | None = None
    output_tokens: _Output | None = None
    timestamp: _Time | None = None
    created_time: _Time | None = None
    delay: _Delay | None = None
    delay_ms: _Delay | None = None
    session_id: str | None = None
    request_id: str | None = None
    output_token_ids: list[_TokenId] | None = None
    priority: _Signed32 | None = None
    strict_priority: _Unsigned32 | None = None
    policy_class: str | None = None


_INPUT_EXPECTED = f"an integer from 1 to {MAX_TOKENS}"
_OUTPUT_EXPECTED = f"an integer from 0 to {MAX_TOKENS}"
_TIME_EXPECTED = f"a number of ms within ±{MAX_TIME_MS:.0f}"
_DELAY_EXPECTED = f"a number of ms from 0 to {MAX_TIME_MS:.0f}"
_EXPECTED = {
    "hash_ids": "a list of integers from 0 up",
    "input_length": _INPUT_EXPECTED,
    "input_tokens": _INPUT_EXPECTED,
    "output_length": _OUTPUT_EXPECTED,
    "output_tokens": _OUTPUT_EXPECTED,
    "timestamp": _TIME_EXPECTED,
    "created_time": _TIME_EXPECTED,
    "delay": _DELAY_EXPECTED,
    "delay_ms": _DELAY_EXPECTED,
    "session_id": "a string",
    "request_id": "a string",
    "output_token_ids": "a list of integers from 0 to 4294967295",
    "priority": "an integer of 32 bits",
    "strict_priority": "an integer from 0 to 4294967295",
    "policy_class": "a string",
}

# Keys of rows that other formats write with the same names of lengths and ids, but with other units or meanings.
_FOREIGN_KEYS = (b'"parent_chat_id"', b'"wait_for"')
_OWN_KEYS = (b'"hash_ids"', b'"input_length"', b'"output_length"')


class Mooncake:
    """Reader of the format."""

    name = "mooncake"
    row = "a JSON object with hash_ids, input_length and output_length"

    def recognises(self, first_row: bytes) -> bool:
        """Whether it looks like an object with one of the format's own keys, even if it is cut off or wrong."""
        return (
            first_row.lstrip().startswith(b"{")
            and any(key in first_row for key in _OWN_KEYS)
            and not any(key in first_row for key in _FOREIGN_KEYS)
        )

    def read(self, paths: Sequence[str], *, block_size: int, limit: int | None) -> Workload:
        """Read all files as one workload; see `TraceFormat.read`."""
        decode = msgspec.json.Decoder(_Row).decode
        builder = _Builder(", ".join(paths), block_size)
        for path in paths:
            for line, text in rows(path):
                try:
                    builder.add(decode(text))
                except (msgspec.DecodeError, RecursionError):
                    raise _explain(text, path, line) from None
                except InputError as error:
                    error.source, error.line = path, line
                    raise
                if builder.workload.num_requests == limit:
                    return builder.workload
        return builder.workload


class _Builder:
    """Turns rows into requests, in order. Errors name the field only."""

    def __init__(self, source: str, block_size: int) -> None:
        self.workload = Workload(source)
        self.block_size = block_size
        self.session_numbers: dict[str, int] = {}
        self.last_timestamp_ms: dict[int, float] = {}  # of named sessions that had one
        self.interned: dict[int, int] = {}

    def add(self, row: _Row) -> None:
        """Append a row as a request.

        Raises:
            InputError: the row contradicts itself or the rows before it.
        """
        input_tokens = _either(row.input_length, row.input_tokens, "input_length", "input_tokens")
        output_tokens = _either(row.output_length, row.output_tokens, "output_length", "output_tokens")
        timestamp_ms = _either(row.timestamp, row.created_time, "timestamp", "created_time")
        delay_ms = _either(row.delay, row.delay_ms, "delay", "delay_ms")
        if output_tokens is None:
            raise InputError(f"missing, expected {_OUTPUT_EXPECTED}", field="output_length")
        if row.output_token_ids is not None and len(row.output_token_ids) != output_tokens:
            raise InputError(
                f"found {len(row.output_token_ids)} ids for an output_length of {output_tokens}, expected as many",
                field="output_token_ids",
            )
        runs = self._prompt(row.hash_ids, input_tokens)
        name = row.session_id
        session = None if name is None else self.session_numbers.get(name)
        if session is None:
            if delay_ms:
                raise InputError(
                    f"found {_ms(delay_ms)} on the first row of {_session(name)}, expected none: it is sent at its "
                    "timestamp",
                    field="delay" if row.delay_ms is None else "delay_ms",
                )
            time_ms = nan if timestamp_ms is None else timestamp_ms
        else:
            timestamp_field = "timestamp" if row.created_time is None else "created_time"
            time_ms = self._delay(session, timestamp_ms, delay_ms, timestamp_field)
        request = self.workload.add(runs, output_tokens, session=session, time_ms=time_ms)
        self._name(request, row.request_id, name, new_session=session is None)
        if name is not None and timestamp_ms is not None:
            self.last_timestamp_ms[self.workload.session[request]] = timestamp_ms

    def _prompt(self, hash_ids: list[int] | None, input_tokens: int | None) -> list[Run]:
        """The prompt's runs: id h stands for the tokens [h * block size, (h + 1) * block size) of origin 0."""
        size = self.block_size
        if hash_ids is None:
            raise InputError(f"missing, expected one id for each {size} tokens of the prompt", field="hash_ids")
        if input_tokens is None:
            input_tokens = len(hash_ids) * size
            if not hash_ids:
                raise InputError("found no ids and no input_length, expected at least one token", field="hash_ids")
        num_blocks = -(-input_tokens // size)
        if num_blocks > len(hash_ids):
            raise InputError(
                f"found {len(hash_ids)} for an input_length of {input_tokens}, expected {num_blocks} at {size} tokens "
                f"each; {len(hash_ids)} allow an input_length up to {len(hash_ids) * size}",
                field="hash_ids",
            )
        if num_blocks < len(hash_ids):
            hash_ids = hash_ids[:num_blocks]
        spans = _consecutive(hash_ids)
        if any(stop > FIRST_INTERNED_ID for _, stop in spans):
            spans = _consecutive([h if h < FIRST_INTERNED_ID else self._intern(h) for h in hash_ids])
        runs = [(0, first * size, (stop - first) * size) for first, stop in spans]
        origin, start, length = runs[-1]
        runs[-1] = (origin, start, length - (num_blocks * size - input_tokens))
        return runs

    def _intern(self, hash_id: int) -> int:
        return self.interned.setdefault(hash_id, FIRST_INTERNED_ID + len(self.interned))

    def _delay(self, session: int, timestamp_ms: float | None, delay_ms: float | None, timestamp_field: str) -> float:
        """Think time before a later turn: as stated, else between the timestamps, else none."""
        last_ms = self.last_timestamp_ms.get(session)
        if timestamp_ms is not None and last_ms is not None and timestamp_ms < last_ms:
            name = _session(self.workload.session_ids[session])
            raise InputError(
                f"found {_ms(timestamp_ms)}, expected at least {_ms(last_ms)}, the timestamp before it in {name}",
                field=timestamp_field,
            )
        if delay_ms is not None:
            return delay_ms
        if timestamp_ms is None:
            return 0.0
        if last_ms is None:
            name = _session(self.workload.session_ids[session])
            raise InputError(
                f"found {_ms(timestamp_ms)}, but no row before it in {name} has a timestamp: expected a delay, or "
                "timestamps from the first row on",
                field=timestamp_field,
            )
        return timestamp_ms - last_ms

    def _name(self, request: int, request_id: str | None, session_id: str | None, *, new_session: bool) -> None:
        """Keep the names of a row; those of rows without one are their numbers, if any row has one."""
        workload = self.workload
        if request_id and not workload.request_ids:
            workload.request_ids = [str(number) for number in range(request)]
        if request_id or workload.request_ids:
            workload.request_ids.append(request_id or str(request))
        if not new_session:
            return
        session = workload.session[request]
        if session_id is not None:
            self.session_numbers[session_id] = session
            if not workload.session_ids:
                workload.session_ids = [str(workload.first_turn[number]) for number in range(session)]
        if session_id is not None or workload.session_ids:
            workload.session_ids.append(str(request) if session_id is None else session_id)


def _consecutive(ids: list[int]) -> list[tuple[int, int]]:
    """The ids as ranges [first, stop)."""
    spans: list[tuple[int, int]] = []
    first = following = ids[0]
    for h in ids:
        if h != following:
            spans.append((first, following))
            first = h
        following = h + 1
    spans.append((first, following))
    return spans


def _either(value: _Number | None, alias_value: _Number | None, name: str, alias: str) -> _Number | None:
    """The value of a field that may be written under either of two names, but not both."""
    if alias_value is None:
        return value
    if value is not None:
        raise InputError(f"given together with {name}, which means the same: expected one of them", field=alias)
    return alias_value


def _session(name: str | None) -> str:
    return "a session" if name is None else f"session {json.dumps(name)}"


def _ms(time_ms: float) -> str:
    """A time as people write it: without a fraction if it has none."""
    return str(int(time_ms)) if time_ms.is_integer() else repr(time_ms)


def _shown(value: object) -> str:
    """A value as it stands in the file, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _explain(text: bytes, path: str, line: int) -> InputError:
    """What is wrong with a row that was refused: the first field that is not what the format expects."""

    def error(message: str, field: str | None = None) -> InputError:
        return InputError(message, source=path, line=line, field=field)

    try:
        row = json.loads(text.decode().rstrip())  # accepts NaN and Infinity, so that they can be shown
    except json.JSONDecodeError as fault:
        return error(f"is not JSON from column {fault.colno} on, expected one object a line")
    except RecursionError:
        return error("is nested too deeply, expected a flat object")
    except ValueError:  # Python's limit on the digits of an integer
        return error("holds a number of thousands of digits")
    if not isinstance(row, dict):
        return error(f"found {_shown(row)}, expected {Mooncake.row}")
    for field in msgspec.structs.fields(_Row):
        value = row.get(field.encode_name)
        if _fits(value, field.type):
            continue
        expected = _EXPECTED[field.name]
        if isinstance(value, list) and _fits([], field.type):
            wrong = next(place for place, item in enumerate(value) if not _fits([item], field.type))
            return error(f"found {_shown(value[wrong])} at place {wrong + 1}, expected {expected}", field.name)
        return error(f"found {_shown(value)}, expected {expected}", field.name)
    return error("is not plain JSON, expected no NaN, Infinity, unpaired surrogate or repeated key in any field")


def _fits(value: object, kind: Any) -> bool:
    if isinstance(value, float) and not isfinite(value):
        return False
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
