"""A data file that is being read: its lines, and its errors and notices, which name the place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeVar, final

from seqloom.config import DataConfig
from seqloom.data.formats.lines import REPLACEMENT, Line, scan_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, place, printable

T = TypeVar("T")
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


@final
@dataclass(slots=True)
class DataFile:
    """A file (`-`: standard input), the options to read it with, and the report that counts its rows."""

    path: str
    options: DataConfig
    report: ReadReport
    open_file: Callable[[], BinaryIO] | None = None
    """Opens what is not a file of its own, such as one in an archive; `path` is then only for messages."""

    def lines(self, *, may_be_empty: bool = False) -> Iterator[Line]:
        """Every line, as `scan_lines` gives it."""
        return scan_lines(
            self.path,
            self.report,
            self.options,
            may_be_empty=may_be_empty,
            open_file=self.open_file,
        )

    def full_lines(self, lines: Iterable[Line] | None = None) -> Iterator[Line]:
        """The lines with text (of `lines`, where they are known already); blank and bad ones are counted as
        skipped."""
        for line in self.lines() if lines is None else lines:
            if line.problem is not None or not line.text.strip():
                self.skip(line.problem or "blank", line.number)
            else:
                yield line

    def error(self, message: str, line: int | None = None) -> DataError:
        return DataError(message, self.path, line)

    def skip(self, reason: str, line: int) -> None:
        self.report.skip(reason, self.path, line)

    def usable(self, read: Callable[[], T], reason: str, line: int) -> Iterator[T]:
        """What `read` gives; nothing if it is wrong and what is wrong may be skipped."""
        try:
            found = read()
        except DataError as error:
            if self.options.on_bad_line != "skip":
                raise
            self.skip(reason, error.line or line)
        else:
            yield found

    def has_no_label(self, label: str, line: int) -> bool:
        """Whether the label of a row means that there is none (`data.no_label`): then it is skipped."""
        names = (self.options.no_label or "").split(",")
        found = bool(label.strip()) and label.strip() in map(str.strip, names)
        if found:
            self.skip(f"the label is {printable(label.strip())!r}, which means none", line)
        return found

    def keep(self, reason: str, line: int) -> None:
        self.report.keep(reason, self.path, line)

    def note(self, sentence: str, line: int | None = None) -> None:
        self.report.note(f"{place(self.path, line)}: {sentence}")

    def note_guesses(self, guesses: Mapping[str, tuple[str, str]]) -> None:
        """Notes guessed columns: setting -> (column, what it is taken as)."""
        taken = ", ".join(
            f"{printable(name)!r} is taken as {title}" for name, title in guesses.values()
        )
        settings = " ".join(f"--set data.{setting}=NAME" for setting in guesses)
        self.note(f"{taken}; to take others: {settings}")

    def find(self, what: str, line: int) -> None:
        self.report.find(what, self.path, line)

    def clean(self, texts: list[str], line: int) -> list[str] | None:
        """The texts, with U+FFFD for what is not a character where the policy is to replace it; None if
        the row is skipped."""
        if not any(_NOT_TEXT.search(text) for text in texts):
            return texts
        policy = self.options.on_bad_line
        if policy == "error":
            raise self.error(
                r"a text holds half of a surrogate pair (\ud800 to \udfff) or \u0000, which are no"
                r" characters; "
                "leave such lines out with --set data.on_bad_line=skip",
                line,
            )
        if policy == "skip":
            self.skip("lone surrogate or NUL", line)
            return None
        self.report.replace("lone surrogate or NUL", self.path, line)
        return [_NOT_TEXT.sub(REPLACEMENT, text) for text in texts]
