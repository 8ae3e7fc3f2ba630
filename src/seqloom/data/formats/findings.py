"""What is odd in a file and yet means something: how often it was met, and where first."""

from __future__ import annotations

from typing import final

from seqloom.data.formats.lines import Count, Tally
from seqloom.errors import place


@final
class Findings:
    """Of one file or archive; said in the tally when it is read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._counts: dict[str, Count] = {}

    def note(self, what: str, line: int, path: str | None = None) -> None:
        """`path`: of a file in the archive."""
        if what in self._counts:
            self._counts[what].number += 1
        else:
            self._counts[what] = Count(1, place(path or self._path, line))

    def say(self, tally: Tally) -> None:
        for what, count in self._counts.items():
            tally.remark(f"{count.number:,} x {what} (first: {count.first})")
