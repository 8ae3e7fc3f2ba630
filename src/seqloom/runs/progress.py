"""Files to pairs, with all that must be said about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.records import read_pairs, read_texts
from seqloom.errors import SeqloomError

T = TypeVar("T")

Say = Callable[[str], None]
"""Tells the user something, on standard error."""


def silent(_: str) -> None:
    """Tells nobody."""


@contextmanager
def tallied(say: Say) -> Iterator[ReadReport]:
    """A tally; at the end, or at an error, what it has noticed is said."""
    tally = ReadReport()
    try:
        yield tally
    finally:
        for notice in tally.notices():
            say(notice)


def each_pair(
    paths: Sequence[str], data: DataConfig, say: Say = lambda _: None
) -> Generator[Record, None, None]:
    """The pairs of files, one at a time; at the end, or at an error, what was guessed, repaired and left out
    is said."""
    with tallied(say) as tally:
        yield from read_pairs(paths, data, tally)


def read_pair_list(paths: Sequence[str], data: DataConfig, say: Say) -> list[tuple[str, str]]:
    """All pairs of files, for what must hold them all anyway."""
    return [(record.fields["source"], record.fields["target"]) for record in each_pair(paths, data, say)]


def each_text(path: str, data: DataConfig, say: Say) -> Iterator[str]:
    """The lines of a text that must each be answered: a blank or a skipped one is an empty text, an empty
    file has none."""
    with tallied(say) as tally:
        for record in read_texts(path, data, tally, every_line=True):
            yield record.fields["text"]


def split_note(count: int, what: str, seed: int) -> str:
    """What is said of a validation part that nobody gave; `what` is one of it."""
    return f"no validation data given: {count:,} {what}{'s' if count > 1 else ''} split off by seed {seed}"


def counted(records: Iterable[T], what: str, say: Say, every: float = 5.0) -> Iterator[T]:
    """The same records; how many there were is said every few seconds."""
    said = time.monotonic()
    for number, record in enumerate(records, start=1):
        if number % 1000 == 0 and time.monotonic() - said > every:
            say(f"{number:,} {what}")
            said = time.monotonic()
        yield record


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Up to `size` at a time, in order. Where `items` raises a SeqloomError, what came before it is given
    first."""
    remaining = iter(items)
    failure: SeqloomError | None = None
    while failure is None:
        some: list[T] = []
        try:
            for item in islice(remaining, size):  # not list(): an error would lose what came before it
                some.append(item)
        except SeqloomError as error:
            failure = error
        if some:
            yield some
        elif failure is None:
            return
    raise failure
