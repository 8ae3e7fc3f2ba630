"""Reading with notices: what was guessed, repaired and left out is logged, and so is how far reading is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import TypeVar

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.records import read_pairs, read_texts
from seqloom.errors import SeqloomError, counted

logger = logging.getLogger(__name__)

T = TypeVar("T")


Receive = Callable[[logging.LogRecord, Callable[[logging.LogRecord], None]], None]
"""(a record, what passes it on to where it would have gone)"""


class _Redirection(logging.Handler):
    """Hands every record to a function, in place of the handlers before it."""

    def __init__(self, receive: Receive, handlers: list[logging.Handler], level: int) -> None:
        super().__init__()
        self.receive, self.handlers, self.least = receive, handlers, level

    def emit(self, record: logging.LogRecord) -> None:
        self.receive(record, self.forward)

    def forward(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= max(handler.level, self.least):
                handler.handle(record)


@contextmanager
def redirect_logs(receive: Receive) -> Iterator[None]:
    """While it lasts, what seqloom logs goes to this function instead of the handlers."""
    package = logging.getLogger("seqloom")
    before = package.handlers, package.level, package.propagate
    outer = [*package.handlers, *(logging.getLogger().handlers if package.propagate else ())]
    package.handlers = [_Redirection(receive, outer, package.getEffectiveLevel())]
    package.setLevel(logging.INFO)
    package.propagate = False
    try:
        yield
    finally:
        package.handlers, level, package.propagate = before
        package.setLevel(level)


def mute_logs() -> AbstractContextManager[None]:
    """Nothing is logged while it lasts: for work that is done a second time, or by every worker alike."""
    return redirect_logs(lambda record, forward: None)


def named_logs(name: str) -> AbstractContextManager[None]:
    """What is logged while it lasts begins with a name."""

    def receive(record: logging.LogRecord, forward: Callable[[logging.LogRecord], None]) -> None:
        record.msg, record.args = f"{name}: {record.getMessage()}", ()
        forward(record)

    return redirect_logs(receive)


@contextmanager
def collect_logs() -> Iterator[list[str]]:
    """What is logged while it lasts, as a list."""
    notices: list[str] = []
    with redirect_logs(lambda record, forward: notices.append(record.getMessage())):
        yield notices


def log_once(seen: set[str]) -> AbstractContextManager[None]:
    """Each notice is logged once, in all places together that share the set of those that were seen."""

    def receive(record: logging.LogRecord, forward: Callable[[logging.LogRecord], None]) -> None:
        if record.getMessage() not in seen:
            seen.add(record.getMessage())
            forward(record)

    return redirect_logs(receive)


@contextmanager
def logged_report(
    notices: bool = True, left_out: dict[int, str] | None = None
) -> Iterator[ReadReport]:
    """A report of what was repaired, guessed and left out; it is logged at the end, or at an error."""
    report = ReadReport(left_out=left_out)
    try:
        yield report
    finally:
        if notices:
            log_notes(report.notices())


def each_pair(
    paths: Sequence[str], data: DataConfig, notices: bool = True
) -> Generator[Record, None, None]:
    """The pairs of files, one at a time; at the end, or at an error, what was guessed, repaired and left out
    is logged, unless this is a second pass (`notices`)."""
    with logged_report(notices) as report:
        yield from read_pairs(paths, data, report)


def read_pair_list(paths: Sequence[str], data: DataConfig) -> list[tuple[str, str]]:
    """All pairs of files, for what must hold them all anyway."""
    return [(record.fields["source"], record.fields["target"]) for record in each_pair(paths, data)]


def each_record(path: str, data: DataConfig) -> Iterator[Record]:
    """The lines of a text, or the rows of a table, that must each be answered: a blank or a skipped line is
    an empty text, an empty file has none."""
    with logged_report() as report:
        yield from read_texts(path, data, report, every_line=True)


def each_text(path: str, data: DataConfig) -> Iterator[str]:
    """Their texts."""
    return (record.fields["text"] for record in each_record(path, data))


def log_notes(notes: Iterable[str]) -> None:
    for note in notes:
        logger.info(note)


def split_note(count: int, what: str, seed: int) -> str:
    """The notice about a validation part that was split off; `what` names one example."""
    return f"no validation data given: {counted(count, what)} split off by seed {seed}"


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Up to `size` at a time, in order. Where `items` raises a SeqloomError, what came before it is given
    first."""
    remaining = iter(items)
    failure: SeqloomError | None = None
    while failure is None:
        chunk: list[T] = []
        try:
            # not list(): an error would lose what came before it
            for item in islice(remaining, size):
                chunk.append(item)
        except SeqloomError as error:
            failure = error
        if chunk:
            yield chunk
        elif failure is None:
            return
    raise failure
