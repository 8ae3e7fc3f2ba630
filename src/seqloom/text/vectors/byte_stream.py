"""A file that is read once, from front to back: by lines, up to a delimiter, or so many bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import DataError

CHUNK = 2**20
LONGEST_LINE = 2**20
"""Bytes."""


@final
class ByteStream:
    """Bytes of `path`, a chunk at a time in memory. Raises DataError if they end too early, a `.gz` is
    damaged, or a line never ends."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file, self.path = file, path
        self._buffer, self._position = b"", 0

    def peek(self, size: int) -> bytes:
        """The next bytes, fewer only where the file ends; the stream stays where it is."""
        if len(self._buffer) - self._position < size:
            parts = [self._buffer[self._position :]]
            missing = size - len(parts[0])
            while missing > 0 and (part := self._read(max(missing, CHUNK))):
                parts.append(part)
                missing -= len(part)
            self._buffer, self._position = b"".join(parts), 0
        return self._buffer[self._position : self._position + size]

    def take(self, size: int, what: str) -> bytes:
        """The next bytes."""
        taken = self.peek(size)
        if len(taken) < size:
            raise self._cut_off(what)
        self._position += size
        return taken

    def until(self, delimiter: bytes, most: int, what: str) -> bytes:
        """The bytes before the next delimiter, which is skipped."""
        end = self._buffer.find(delimiter, self._position, self._position + most)
        if end < 0:
            end = self.peek(most).find(delimiter) + self._position
            if end < self._position:
                too_long = len(self._buffer) - self._position >= most
                raise (
                    DataError(f"{what} must be shorter", self.path)
                    if too_long
                    else self._cut_off(what)
                )
        taken = self._buffer[self._position : end]
        self._position = end + len(delimiter)
        return taken

    def _cut_off(self, what: str) -> DataError:
        return DataError(f"ends within {what}: the file is cut off; get it again", self.path)

    def numbers(self, dtype: str, count: int, what: str) -> NDArray[Any]:
        """So many numbers of a dtype of numpy, such as `<f4`."""
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count, what), dtype)

    def lines(self) -> Iterator[bytes]:
        """Lines without their end; only `\\n` ends one."""
        rest, self._buffer, self._position, number = self._buffer[self._position :], b"", 0, 0
        while True:
            *lines, last = rest.split(b"\n")
            yield from lines
            number += len(lines)
            if len(last) > LONGEST_LINE:
                raise DataError(
                    f"a line must have at most {LONGEST_LINE} bytes", self.path, number + 1
                )
            more = self._read(CHUNK)
            if not more:
                break
            rest = last + more
        if last:
            yield last

    def _read(self, size: int) -> bytes:
        try:
            return self.file.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                f"the .gz is damaged or cut off ({error}); get it again", self.path
            ) from None
