"""The edges of the library `tokenizers`: what it is given is checked, and its panics are errors of ours."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from seqloom.errors import SeqloomError, UsageError, printable


def checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each of which must be a string that has an encoding in UTF-8."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {number} (counted from 0) must be a string, but is {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text {number} (counted from 0) must be Unicode, but at position {error.start} it has half a"
                f" character (the lone surrogate {printable(text[error.start])}); mend the program or file"
                " that it came from"
            ) from None
        yield text


def batch_of(texts: Iterable[str]) -> list[str]:
    """The texts as a list, checked: the library takes a tuple or list for a text that is already cut. One
    string is refused."""
    if isinstance(texts, str):
        raise UsageError("encode takes a list of texts, but was given one string; put it in a list")
    return list(checked(texts))


@contextmanager
def panics_are_errors(doing: str) -> Iterator[None]:
    """Turns what the library raises into a SeqloomError: bare `Exception`s, and panics of Rust, which are not
    even that.

    Anything else passes: the errors of whoever reads the texts, KeyboardInterrupt, SystemExit.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__module__ == "pyo3_runtime":
            raise SeqloomError(
                f"the library `tokenizers` could not {doing} ({printable(str(error))}); please report it"
            ) from error
        raise


@cache
def prepare_forks() -> None:
    """Lets a process fork (a data loader does) after the library ran in parallel.

    The threads do not live on in a child. It must encode on one thread, and would wait for them for ever
    where the user has set TOKENIZERS_PARALLELISM=true.
    """
    name = "TOKENIZERS_PARALLELISM"
    chosen: str | None = None

    def before() -> None:
        nonlocal chosen
        chosen = os.environ.get(name)
        os.environ[name] = "false"

    def after_in_parent() -> None:
        if chosen is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = chosen

    os.register_at_fork(before=before, after_in_parent=after_in_parent)
