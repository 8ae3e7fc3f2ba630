"""A file that is read once, from front to back: by lines, by marks, or so many bytes."""

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
    """Bytes of `path`, held a chunk at a time. Raises DataError where they end too early, a `.gz` is damaged,
    or a line never ends."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file, self.path = file, path
        self._held, self._at = b"", 0

    def peek(self, size: int) -> bytes:
        """The next bytes, fewer only where the file ends; they stay."""
        if len(self._held) - self._at < size:
            parts = [self._held[self._at :]]
            missing = size - len(parts[0])
            while missing > 0 and (part := self._more(max(missing, CHUNK))):
                parts.append(part)
                missing -= len(part)
            self._held, self._at = b"".join(parts), 0
        return self._held[self._at : self._at + size]

    def take(self, size: int, what: str) -> bytes:
        found = self.peek(size)
        if len(found) < size:
            raise DataError(f"ends within {what}: the file is cut off; get it again", self.path)
        self._at += size
        return found

    def until(self, mark: bytes, most: int, what: str) -> bytes:
        """What stands before the next `mark`, which is passed."""
        end = self._held.find(mark, self._at, self._at + most)
        if end < 0:
            end = self.peek(most).find(mark) + self._at
            if end < self._at:
                cut = len(self._held) - self._at < most
                raise DataError(
                    (
                        f"ends within {what}: the file is cut off; get it again"
                        if cut
                        else f"{what} must be shorter"
                    ),
                    self.path,
                )
        found = self._held[self._at : end]
        self._at = end + len(mark)
        return found

    def numbers(self, kind: str, count: int, what: str) -> NDArray[Any]:
        """So many numbers of a kind of numpy's, such as `<f4`."""
        return np.frombuffer(self.take(np.dtype(kind).itemsize * count, what), kind)

    def number(self, kind: str, what: str) -> int:
        """One whole number."""
        return int(self.numbers(kind, 1, what)[0])

    def lines(self) -> Iterator[bytes]:
        """Lines without their end; they end at `\\n` alone."""
        rest, self._held, self._at, number = self._held[self._at :], b"", 0, 0
        while True:
            lines = rest.split(b"\n")
            yield from lines[:-1]
            number += len(lines) - 1
            if len(lines[-1]) > LONGEST_LINE:
                raise DataError(f"a line must have at most {LONGEST_LINE} bytes", self.path, number + 1)
            more = self._more(CHUNK)
            if not more:
                break
            rest = lines[-1] + more
        if lines[-1]:
            yield lines[-1]

    def _more(self, size: int) -> bytes:
        try:
            return self.file.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"the .gz is damaged or cut off ({error}); get it again", self.path) from None
