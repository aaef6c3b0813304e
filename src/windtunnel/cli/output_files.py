"""Files that a command writes: checked before any work is done, written whole or not at all.

A file appears under its name only when it is complete; until then an older one of that name stays as it was.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from windtunnel.errors import InputError

STDOUT = "-"


def problem_with_output(path: str, inputs: Iterable[str]) -> str | None:
    """Why `path` cannot be written, or None.

    Args:
        path: where to write.
        inputs: files that are read, and must not be overwritten.
    """
    if path == STDOUT:
        return None
    target = Path(os.path.realpath(path))
    if target.is_dir():
        return f"'{path}' is a directory, expected a file"
    if not target.parent.is_dir():
        return f"cannot write '{path}': no directory '{Path(path).parent}'"
    if any(target == Path(os.path.realpath(name)) for name in inputs):
        return f"'{path}' is read by this command and would be overwritten"
    if target.exists() and not os.access(target, os.W_OK):
        return f"cannot write '{path}': it is write-protected"
    if _replaceable(target):
        try:
            _part_file(target).touch(exist_ok=False)
            _part_file(target).unlink()
        except OSError as error:
            return f"cannot write '{path}': {error.strerror}"
    return None


def write_output(path: str, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file `path`, or standard output for '-'.

    Raises:
        InputError: the file cannot be written; an older one is unharmed.
    """
    if path == STDOUT:
        with _reader_may_leave(sys.stdout):
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return
    target = Path(os.path.realpath(path))
    try:
        if not _replaceable(target):
            with target.open("wb") as file:
                write(file)
            return
        part = _part_file(target)
        try:
            with part.open("xb") as file:
                write(file)
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=path) from None


def print_result(text: str, stream: TextIO | None = None) -> None:
    """Print on `stream`, by default standard output; whoever reads it may stop reading."""
    stream = stream or sys.stdout
    with _reader_may_leave(stream):
        stream.write(text)
        stream.flush()


@contextmanager
def _reader_may_leave(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        # Python would complain once more when it flushes the stream at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _replaceable(target: Path) -> bool:
    """Whether it is a file or nothing yet; a device or pipe must be written to as it is."""
    return target.is_file() or not target.exists()


def _part_file(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")
