"""How errors about reading a trace name what was given to `inspect` and `convert`: by its flag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel.errors import InputError

_FIELDS = (
    *("format", "limit", "missing_output_tokens", "on_bad_row", "on_hash_mismatch", "rate", "speedup", "time_unit"),
    "trace_block_size",
)
_FLAGS = {field: "--" + field.replace("_", "-") for field in _FIELDS}


@contextmanager
def named_by_flags() -> Iterator[None]:
    """An error in this block that names an option of a reader, and no file, names its flag instead."""
    try:
        yield
    except InputError as error:
        if error.source is None and error.field in _FLAGS:
            raise InputError(error.message, source=_FLAGS[error.field]) from error.__cause__
        raise
