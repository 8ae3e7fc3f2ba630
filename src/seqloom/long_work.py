"""How far long work is, as lines of the log: every few seconds, with what is left if that is known; and which
worker writes them. Work that nobody waits for any more can be ended."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, final

logger = logging.getLogger(__name__)

T = TypeVar("T")
EVERY = 5.0
"""Seconds between two lines."""
_is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)


class UnwantedWorkError(Exception):
    """Nobody waits for the result of this work."""


@contextmanager
def ends_unless(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Inside it, `LongWork` raises UnwantedWorkError at its next count once this is false."""
    token = _is_wanted.set(is_wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)


def every_few_seconds(seconds: float = EVERY) -> Callable[[], bool]:
    """A function that is true when so many seconds have passed since it was last true, or made."""
    last = time.monotonic()

    def is_due() -> bool:
        nonlocal last
        if time.monotonic() - last <= seconds:
            return False
        last = time.monotonic()
        return True

    return is_due


@final
class LongWork:
    """Counts what is done, and logs the count, the speed and the time left every few seconds."""

    def __init__(self, what: str, total: int | None = None, every: float = EVERY) -> None:
        """`what` is done, as in "pairs read"; `total`: how many in all, where that is known."""
        self.what, self.total, self.done = what, total, 0
        self.is_due, self.started = every_few_seconds(every), time.monotonic()

    def add(self, count: int = 1) -> None:
        """Raises UnwantedWorkError where nobody waits for it (`ends_unless`)."""
        self.done += count
        if not _is_wanted.get()():
            raise UnwantedWorkError
        if self.is_due():
            rate = self.done / max(time.monotonic() - self.started, 1e-9)
            line = f"{self.done:,} {self.what}"
            if self.total is not None:
                left = duration((self.total - self.done) / rate)
                line = f"{self.done:,} of {self.total:,} {self.what}, {left} left"
            logger.info(f"{line} ({rate:,.0f}/s)")


def log_progress(
    items: Iterable[T], what: str, every: float = EVERY, total: int | None = None
) -> Iterator[T]:
    """The same items; how many they are is logged every few seconds."""
    work = LongWork(what, total, every)
    for item in items:
        work.add()
        yield item


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def is_first_worker() -> bool:
    """Whether this process writes messages: it is the only one, or the first that `torchrun` started."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    # nonsense is reported by whoever has it
    numbers = [int(text) for text in (rank, size) if text.isdecimal() and len(text) < 10]
    return len(numbers) < 2 or not 0 < numbers[0] < numbers[1]


@contextmanager
def logging_to(handler: logging.Handler, level: int) -> Iterator[None]:
    """Inside it, what seqloom logs at this level and above goes to this handler too."""
    package = logging.getLogger("seqloom")
    before = package.level
    package.addHandler(handler)
    package.setLevel(level)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(before)
