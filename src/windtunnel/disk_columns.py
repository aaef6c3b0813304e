"""Columns that are too long to stay in memory: in temporary files, mapped when they are complete.

Decides where the numbers of a long column live, never what they are. A column grows as a `DiskColumn`; `mapped` makes a
view of it that is indexed like an array at about its speed, and that numpy takes as it is. Its pages come and go:
`give_back` drops those in memory, and the next use finds them again, in the file system's cache or on disk. Files are
in the folder for temporary files (TMPDIR), have no name, and are gone when the process is, however it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import Any, cast

from windtunnel.errors import InputError

ROWS_IN_MEMORY = 1 << 18  # longer columns go to disk: some 100 MB of a workload and its record stay
NUMBER_BYTES = 8
_VALUES_AT_ONCE = 1 << 15
_CAN_MAP = hasattr(os, "pread") and hasattr(mmap, "MADV_DONTNEED")  # else all columns stay in memory

NEVER = 2**62


def first_row_on_disk() -> int:
    """From which row on columns go to disk on this system."""
    return ROWS_IN_MEMORY if _CAN_MAP else NEVER


class DiskColumn:
    """A growing column of 64-bit numbers in a file; what is not yet written is an array."""

    __slots__ = ("_file", "_stored", "_tail", "typecode")

    def __init__(self, values: array[Any]) -> None:
        """
        Raises:
            InputError: there is no room for it.
        """
        self.typecode: Any = values.typecode
        self._file = _temporary_file()
        self._stored = 0
        self._tail: array[Any] = array(self.typecode)
        self.frombytes(values.tobytes())

    def append(self, value: float) -> None:
        self._tail.append(value)
        if len(self._tail) >= _VALUES_AT_ONCE:
            self._store()

    def extend(self, values: list[Any]) -> None:
        self._tail.extend(values)
        if len(self._tail) >= _VALUES_AT_ONCE:
            self._store()

    def frombytes(self, data: bytes) -> None:
        self._tail.frombytes(data)
        if len(self._tail) >= _VALUES_AT_ONCE:
            self._store()

    def __len__(self) -> int:
        return self._stored + len(self._tail)

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._values(start, max(start, stop))[::step]
        at = place if place >= 0 else place + len(self)
        if at >= self._stored:
            return self._tail[at - self._stored]
        if at < 0:
            raise IndexError(place)
        return self._values(at, at + 1)[0]

    def __setitem__(self, place: int, value: float) -> None:
        if place >= self._stored:
            self._tail[place - self._stored] = value
        else:
            os.pwrite(self._file.fileno(), array(self.typecode, (value,)).tobytes(), place * NUMBER_BYTES)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _VALUES_AT_ONCE):
            yield from self._values(start, min(start + _VALUES_AT_ONCE, len(self)))

    def mapped(self) -> array[Any]:
        """A view of all its values, which can be changed in place; the column may grow behind it."""
        self._store()
        view = memoryview(mmap.mmap(self._file.fileno(), self._stored * NUMBER_BYTES)).cast(self.typecode)
        return cast("array[Any]", view)  # it has what is used of an array once it is complete

    def _values(self, start: int, stop: int) -> array[Any]:
        found = array(self.typecode)
        stored = min(stop, self._stored)
        if start < stored:
            found.frombytes(os.pread(self._file.fileno(), (stored - start) * NUMBER_BYTES, start * NUMBER_BYTES))
        return found + self._tail[max(0, start - self._stored) : max(0, stop - self._stored)]

    def _store(self) -> None:
        try:
            self._tail.tofile(self._file)
        except OSError as error:
            raise _no_room(error) from None
        self._stored += len(self._tail)
        self._tail = array(self.typecode)


def filled(typecode: str, value: float, count: int) -> array[Any]:
    """A column of `count` times the same number, on disk if it is long.

    Raises:
        InputError: there is no room for it.
    """
    if count < first_row_on_disk():
        return array(typecode, (value,)) * count
    column = DiskColumn(array(typecode))
    block = (array(typecode, (value,)) * _VALUES_AT_ONCE).tobytes()
    for _ in range(count // _VALUES_AT_ONCE):
        column.frombytes(block)
    column.frombytes(block[: count % _VALUES_AT_ONCE * NUMBER_BYTES])
    return column.mapped()


def give_back(column: object) -> None:
    """Drop the pages of a mapped column from memory; nothing for a column that is in memory."""
    if type(column) is memoryview:
        column.obj.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # `mapped` made it of an mmap


def _temporary_file() -> Any:
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError as error:
        raise _no_room(error) from None


def _no_room(error: OSError) -> InputError:
    return InputError(
        f"columns of more than {ROWS_IN_MEMORY:,} rows are kept on disk, and it cannot be written: {error.strerror} "
        "(set TMPDIR to a folder with room)",
        source=tempfile.gettempdir(),
    )
