"""Rows that are JSON objects: their types, and what is wrong with one that does not fit.

A format declares a row as a msgspec struct of these types; it is decoded in one call and explained only when that
fails. The words of an explanation stand with the types. null is the same as absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from windtunnel.workload.traces.reading import (
    NOT_A_ROW,
    WRONG_VALUE,
    ZERO_TOKENS,
    BadRowError,
    OpenRows,
    ReadOptions,
    read_rows,
)
from windtunnel.workload.traces.rows import rows

_Row = TypeVar("_Row")
_Number = TypeVar("_Number", int, float)

MAX_TOKENS = 2**31  # per prompt or output: far above any model, far below where sums lose exactness
MAX_TIME_MS = 2.0**53  # 285,000 years; above it a float no longer tells one millisecond from the next


_meta: Any = msgspec.Meta  # mypy has no overload for limits together with words

InputTokens = Annotated[int, _meta(description=f"an integer from 1 to {MAX_TOKENS}", ge=1, le=MAX_TOKENS)]
OutputTokens = Annotated[int, _meta(description=f"an integer from 0 to {MAX_TOKENS}", ge=0, le=MAX_TOKENS)]
TimeMs = Annotated[
    float, _meta(description=f"a number of ms within ±{MAX_TIME_MS:.0f}", ge=-MAX_TIME_MS, le=MAX_TIME_MS)
]
DelayMs = Annotated[float, _meta(description=f"a number of ms from 0 to {MAX_TIME_MS:.0f}", ge=0, le=MAX_TIME_MS)]
TimeS = Annotated[float, _meta(description="a number of seconds within ±9e12", ge=-9e12, le=9e12)]
DelayS = Annotated[float, _meta(description="a number of seconds from 0 to 9e12", ge=0, le=9e12)]
TimeNs = Annotated[int, _meta(description="an integer of ns from 0 up", ge=0, le=2**63 - 1)]
HashIds = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0)]],
    _meta(description="a list of integers from 0 up"),
]
TokenIds = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]],
    _meta(description=f"a list of integers from 0 to {2**32 - 1}"),
]
Signed32 = Annotated[int, _meta(description="an integer of 32 bits", ge=-(2**31), lt=2**31)]
Unsigned32 = Annotated[int, _meta(description=f"an integer from 0 to {2**32 - 1}", ge=0, lt=2**32)]

OUTPUT_EXPECTED = f"an integer from 0 to {MAX_TOKENS}"


def read_json_rows(
    paths: Sequence[str],
    options: ReadOptions,
    row: type[_Row],
    words: str,
    add: Callable[[_Row], None],
    *,
    place: Callable[[str, int], None] | None = None,
    open_rows: OpenRows = rows,
) -> None:
    """Give each row of all files, decoded as a `row`, to `add`; `words` say what a row is. See `read_rows`."""
    decode = msgspec.json.Decoder(row).decode

    def add_text(text: bytes) -> None:
        try:
            decoded = decode(text)
        except (msgspec.DecodeError, RecursionError):
            raise explain(text, row, words) from None
        add(decoded)

    read_rows(paths, options, add_text, place=place, open_rows=open_rows)


def either(value: _Number | None, alias_value: _Number | None, name: str, alias: str) -> _Number | None:
    """The value of a field that may be written under either of two names, but not both."""
    if alias_value is None:
        return value
    if value is not None:
        raise BadRowError(f"given together with {name}, which means the same: expected one of them", field=alias)
    return alias_value


def required_output(value: int | None, options: ReadOptions, field: str = "output_length") -> int:
    """An output length, or what stands for one that is not stated; whoever adds the request counts those."""
    if value is not None:
        return value
    if options.missing_output_tokens is None:
        raise BadRowError(f"missing, expected {OUTPUT_EXPECTED}", field=field)
    return options.missing_output_tokens


def shown(value: object) -> str:
    """A value as it stands in the file, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def explain(text: bytes, row: type, words: str) -> BadRowError:
    """What is wrong with a row that was refused: the first field that is not what the format expects."""
    try:
        value = json.loads(text.decode().rstrip())  # accepts NaN and Infinity, so that they can be shown
    except json.JSONDecodeError as fault:
        return BadRowError(f"is not JSON from column {fault.colno} on, expected one object a line", kind=NOT_A_ROW)
    except RecursionError:
        return BadRowError("is nested too deeply, expected a flat object", kind=NOT_A_ROW)
    except ValueError:  # Python's limit on the digits of an integer
        return BadRowError("holds a number of thousands of digits", kind=NOT_A_ROW)
    if not isinstance(value, dict):
        return BadRowError(f"found {shown(value)}, expected {words}", kind=NOT_A_ROW)
    found = _first_fault(value, row, "")
    if found is not None:
        return found
    message = "is not plain JSON, expected no NaN, Infinity, unpaired surrogate or repeated key in any field"
    return BadRowError(message, kind=NOT_A_ROW)


def _first_fault(value: dict[str, Any], row: type, prefix: str) -> BadRowError | None:
    for field in msgspec.structs.fields(row):
        name = prefix + field.encode_name
        found = value.get(field.encode_name)
        if found is None:
            if field.required and field.encode_name not in value:
                return BadRowError(f"missing, expected {_expected(field.type)}", field=name)
            if field.required:
                return BadRowError(f"found null, expected {_expected(field.type)}", field=name)
            continue
        if _fits(found, field.type):
            continue
        inner = _struct_of(field.type)
        if inner is not None:
            items = found if isinstance(found, list) else [found]
            for place, item in enumerate(items):
                where = f"{name}[{place}]" if isinstance(found, list) else name
                if not isinstance(item, dict):
                    return BadRowError(f"found {shown(item)}, expected an object", field=where)
                fault = _first_fault(item, inner, f"{where}.")
                if fault is not None:
                    return fault
        expected = _expected(field.type)
        if isinstance(found, list) and _fits([], field.type):
            wrong = next(place for place, item in enumerate(found) if not _fits([item], field.type))
            return BadRowError(f"found {shown(found[wrong])} at place {wrong + 1}, expected {expected}", field=name)
        kind = ZERO_TOKENS if found == 0 and expected.startswith("an integer from 1 ") else WRONG_VALUE
        return BadRowError(f"found {shown(found)}, expected {expected}", kind=kind, field=name)
    return None


def _fits(value: object, kind: Any) -> bool:
    if isinstance(value, float) and not isfinite(value):
        return False
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError):  # UnicodeError: an unpaired surrogate
        return False
    return True


def _expected(kind: Any) -> str:
    """A type in words: those that stand with it, else its name."""
    for part in _parts(kind):
        if get_origin(part) is Annotated:
            for extra in get_args(part)[1:]:
                if isinstance(extra, msgspec.Meta) and extra.description:
                    return extra.description
        elif get_origin(part) is Literal:
            return " or ".join(shown(value) for value in get_args(part))
        elif part is str:
            return "a string"
        elif part is bool:
            return "true or false"
        elif get_origin(part) is list or part is list:
            return "a list"
        elif isinstance(part, type) and issubclass(part, msgspec.Struct):
            return "an object"
    return "another value"


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    for part in _parts(kind):
        if get_origin(part) is list:
            return _struct_of(get_args(part)[0])
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def _parts(kind: Any) -> tuple[Any, ...]:
    """The members of a union, but null; the type itself if it is none."""
    members = get_args(kind) if get_origin(kind) not in (Annotated, Literal, list, dict) else ()
    return tuple(member for member in members if member is not type(None)) or (kind,)
