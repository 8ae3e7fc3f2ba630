"""The few exceptions of seqloom, one base class.

Every message is one line that says what must hold, what was given, where, and what to do. The command line
prints it without a traceback and ends with `exit_code`: 1 = it failed, 2 = it was asked wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_MESSAGE = 2000
"""Bytes of UTF-8."""


class SeqloomError(Exception):
    """Something that a user can understand and act on."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


class UsageError(SeqloomError):
    """The command line, a run file or an argument is wrong."""

    exit_code = 2


class DataError(SeqloomError):
    """A data file is not what it must be; `path` and `line` (from 1) say where."""

    exit_code = 2

    def __init__(self, message: str, path: str | None = None, line: int | None = None) -> None:
        self.path, self.line = path, line
        super().__init__(f"{place(path, line)}: {message}" if path is not None else message)


class FolderError(SeqloomError):
    """A run folder, a checkpoint or a file in it is missing, damaged or not ours; `path` says where."""

    def __init__(self, message: str, path: object = None) -> None:
        super().__init__(message if path is None else f"{printable(str(path))}: {message}")


class TrainingError(SeqloomError):
    """Training cannot go on: a loss or gradient that is not finite, a batch without a trained token."""


class MissingExtraError(SeqloomError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra `{extra}`, which is not installed; install it with: pip install"
            f" 'seqloom[{extra}]'"
        )


def place(path: str, line: int | None = None) -> str:
    """`path:line`, with whatever could disturb a terminal escaped."""
    shown = "standard input" if path == "-" else printable(path)
    return shown if line is None else f"{shown}:{line}"


def printable(text: str) -> str:
    """`text` with control characters, line breaks, bidirectional marks and lone surrogates written as
    escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def listed(names: Iterable[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(printable, every[:most])) + more


def quoted(names: Iterable[str]) -> str:
    """As `listed`, up to 20 of them in quotation marks."""
    return listed(map(repr, names), 20)


def counted(number: int, one: str, more: str = "") -> str:
    """A number with what is counted: 1 document, 2 documents. `more` is the plural where it has no s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def one_line(message: str, limit: int = LONGEST_MESSAGE) -> str:
    """A message of a library, which may have several lines, as one that is `printable` and `bounded`."""
    return bounded(" ".join(printable(part) for part in message.splitlines()).rstrip(), limit)


def bounded(text: str, limit: int = LONGEST_MESSAGE) -> str:
    """A text of at most `limit` bytes. Of a longer one, which repeats what was given, the beginning and the
    end are kept: they say where, and what to do."""
    # a character has at most four bytes
    if len(text) * 4 <= limit or len(text.encode("utf-8", "surrogatepass")) <= limit:
        return text
    begin = text[:limit].encode("utf-8", "surrogatepass")[: limit * 3 // 4 - 5]
    end = text[-limit:].encode("utf-8", "surrogatepass")[-limit // 4 :]
    return f"{begin.decode('utf-8', 'ignore')} ... {end.decode('utf-8', 'ignore')}"


def shown(value: object, longest: int = 50) -> str:
    """A wrong value for a message, in at most `longest` characters."""
    return printable(str(value))[:longest]
