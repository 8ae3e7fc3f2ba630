"""What happened to the rows of data files: used, skipped, repaired, or kept though they look odd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from seqloom.errors import DataError, counted, place


@dataclass(slots=True)
class Count:
    """How often something occurred, and where first (`path:line`)."""

    number: int
    first: str


T = TypeVar("T")
Counts = dict[str, Count]
"""By reason."""


def count(counts: Counts, reason: str, path: str, line: int) -> None:
    if reason in counts:
        counts[reason].number += 1
    else:
        counts[reason] = Count(1, place(path, line))


@dataclass(slots=True)
class ReadReport:
    """What happened to each row that was read: no row is dropped without being counted here.

    A row makes one record: a line of text, a row of a table (which may span lines) or a pair of parallel
    lines; a header is not a row. Law: read = used + skipped + rejected. Give each pass over the data a new
    report.
    """

    used: int = 0
    """Rows handed on, repaired or not."""
    rejected: int = 0
    """1 where reading ended with an error that names a line."""
    skips: Counts = field(default_factory=dict)
    """Rows left out."""
    repairs: Counts = field(default_factory=dict)
    """Lines handed on with U+FFFD in place of what was bad."""
    oddities: Counts = field(default_factory=dict)
    """Lines handed on as they are, though they look odd."""
    findings: Counts = field(default_factory=dict)
    """What is odd but has a meaning."""
    notes: list[str] = field(default_factory=list)
    """What was guessed, in whole sentences."""
    left_out: dict[int, str] | None = None
    """Line of a skipped row -> the reason, where somebody wants to know of each."""

    @property
    def read(self) -> int:
        return self.used + self.skipped + self.rejected

    @property
    def skipped(self) -> int:
        return sum(count.number for count in self.skips.values())

    @property
    def replaced(self) -> int:
        return sum(count.number for count in self.repairs.values())

    def skip(self, reason: str, path: str, line: int) -> None:
        count(self.skips, reason, path, line)
        if self.left_out is not None:
            self.left_out[line] = reason

    def replace(self, reason: str, path: str, line: int) -> None:
        count(self.repairs, reason, path, line)

    def keep(self, reason: str, path: str, line: int) -> None:
        count(self.oddities, reason, path, line)

    def find(self, what: str, path: str, line: int) -> None:
        count(self.findings, what, path, line)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    @contextmanager
    def reading(
        self, paths: Sequence[str], nothing: str, *, required: bool = True
    ) -> Iterator[None]:
        """Counts a row that ends the reading with an error. Raises DataError, with `nothing` as its message,
        where a row is required and none was used; `{rows}` in it becomes the number of rows read."""
        used, read = self.used, self.read
        try:
            yield
        except DataError as error:
            self.rejected += error.line is not None
            raise
        if required and self.used == used:
            raise DataError(nothing.format(rows=self.read - read), next(iter(paths), None))

    def counted(
        self, items: Iterable[T], paths: Sequence[str], nothing: str, *, required: bool = True
    ) -> Iterator[T]:
        """Items that are each made of one row, counted as used; see `reading`."""
        with self.reading(paths, nothing, required=required):
            for item in items:
                self.used += 1
                yield item

    def notices(self) -> list[str]:
        """Everything in plain words, such as `3 lines skipped: bad UTF-8 (first: train.de:17)`."""
        kinds = (
            (self.skips, "skipped"),
            (self.repairs, "repaired with U+FFFD"),
            (self.oddities, "kept unchanged"),
        )
        notices = [
            *self.notes,
            *(
                f"{found.number:,} x {what} (first: {found.first})"
                for what, found in self.findings.items()
            ),
        ]
        for counts, what in kinds:
            for reason, count in counts.items():
                lines = counted(count.number, "line")
                notices.append(f"{lines} {what}: {reason} (first: {count.first})")
        return notices
