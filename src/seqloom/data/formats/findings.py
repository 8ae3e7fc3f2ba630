"""What is odd in a file and yet means something: how often it was met, and where first."""

from __future__ import annotations

from typing import final

from seqloom.data.formats.read_report import Count, ReadReport
from seqloom.errors import place


@final
class Findings:
    """Of one file or archive; said in the report when it is read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._counts: dict[str, Count] = {}

    def note(self, what: str, line: int, path: str | None = None) -> None:
        """`path`: of a file in the archive."""
        if what in self._counts:
            self._counts[what].number += 1
        else:
            self._counts[what] = Count(1, place(path or self._path, line))

    def say(self, report: ReadReport) -> None:
        for what, count in self._counts.items():
            report.note(f"{count.number:,} x {what} (first: {count.first})")
