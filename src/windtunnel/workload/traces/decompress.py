"""Plain, gzip or zstd: the bytes of a file whatever it is packed in.

Decides by the first bytes of the file, never by its name; other packed or binary files are called what they are, in
the error that they raise. A file that ends in the middle of its compressed data is an
error, not a short file. zstd needs the package zstandard (the extra `zstd`).
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, cast

from windtunnel.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 1 << 17
_MAGIC_BYTES = 64
# What people have instead of a trace, by how it begins, and what to do about it.
_NO_TEXT = {
    b"PK\x03\x04": "is a zip archive: unpack it first",
    b"BZh": "is packed with bzip2: unpack it first",
    b"\xfd7zXZ\x00": "is packed with xz: unpack it first",
    b"PAR1": "is a Parquet file: write its rows as a CSV with a header, or as JSON lines",
    b"ARROW1": "is an Arrow file: write its rows as a CSV with a header, or as JSON lines",
    b"SQLite format 3\x00": "is a SQLite database: write its rows as a CSV with a header, or as JSON lines",
    b"\xff\xfe": "is UTF-16 text, expected UTF-8",
    b"\xfe\xff": "is UTF-16 text, expected UTF-8",
    b"version https://git-lfs.github.com/": "is a pointer of Git LFS, not the file: get that with 'git lfs pull'",
    b"<!DOCTYPE html": "is a web page: what answered the download was no trace",
    b"<!doctype html": "is a web page: what answered the download was no trace",
    b"<html": "is a web page: what answered the download was no trace",
}


@contextmanager
def decompressed(path: str) -> Iterator[IO[bytes]]:
    """Open a file to read what it holds.

    Raises:
        InputError: the file, or the compressed data in it, cannot be read; also while the block runs.
    """
    try:
        with open(path, "rb") as file:
            magic = file.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
            for beginning, message in _NO_TEXT.items():
                if magic.startswith(beginning):
                    raise InputError(message, source=path)
            if magic.startswith(_GZIP_MAGIC):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield cast(IO[bytes], unpacked)
            elif magic.startswith(_ZSTD_MAGIC):
                with io.BufferedReader(_Zstd(file, path), _CHUNK_BYTES) as unpacked_zstd:
                    yield unpacked_zstd
            else:
                yield file
    except EOFError:
        raise InputError("is cut off: its compressed data ends early", source=path) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"is damaged: its compressed data cannot be read ({error})", source=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=path) from None


class _Zstd(io.RawIOBase):
    """What the zstd frames of a file hold. The package's own stream reader takes a cut-off frame for a whole one."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        try:
            self._zstandard: Any = import_module("zstandard")
        except ModuleNotFoundError:
            message = "is zstd-compressed, which needs the package zstandard: pip install 'windtunnel[zstd]'"
            raise InputError(message, source=path) from None
        self._file = file
        self._path = path
        self._frame = self._new_frame()
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            packed = self._frame.unused_data if self._frame.eof else b""
            packed = packed or self._file.read(_CHUNK_BYTES)
            if not packed:
                if self._frame.eof:
                    return 0
                raise EOFError
            if self._frame.eof:
                self._frame = self._new_frame()
            try:
                self._pending = self._frame.decompress(packed)
            except self._zstandard.ZstdError as error:
                message = f"is damaged: its compressed data cannot be read ({error})"
                raise InputError(message, source=self._path) from None
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size

    def _new_frame(self) -> Any:
        return self._zstandard.ZstdDecompressor().decompressobj()
