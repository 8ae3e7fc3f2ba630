"""What happened to the rows of data files: used, skipped, repaired, or kept though they look odd."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqloom.errors import place


@dataclass(slots=True)
class Count:
    """How often something was met, and where first (`path:line`)."""

    number: int
    first: str


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
    skips: dict[str, Count] = field(default_factory=dict)
    """Rows left out, by reason."""
    repairs: dict[str, Count] = field(default_factory=dict)
    """Lines handed on with U+FFFD in place of what was bad, by reason."""
    oddities: dict[str, Count] = field(default_factory=dict)
    """Lines handed on as they are, though they look odd, by reason."""
    notes: list[str] = field(default_factory=list)
    """What was guessed, in whole sentences."""

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
        _count(self.skips, reason, path, line)

    def replace(self, reason: str, path: str, line: int) -> None:
        _count(self.repairs, reason, path, line)

    def keep(self, reason: str, path: str, line: int) -> None:
        _count(self.oddities, reason, path, line)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def notices(self) -> list[str]:
        """All of it in plain words, such as `3 lines skipped: bad UTF-8 (first: train.de:17)`."""
        kinds = (
            (self.skips, "skipped"),
            (self.repairs, "repaired with U+FFFD"),
            (self.oddities, "kept unchanged"),
        )
        return self.notes + [
            f"{count.number} {'line' if count.number == 1 else 'lines'} {what}: {reason} (first:"
            f" {count.first})"
            for counts, what in kinds
            for reason, count in counts.items()
        ]


def _count(counts: dict[str, Count], reason: str, path: str, line: int) -> None:
    if reason in counts:
        counts[reason].number += 1
    else:
        counts[reason] = Count(1, place(path, line))
