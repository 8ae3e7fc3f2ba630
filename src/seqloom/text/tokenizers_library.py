"""The edges of the library `tokenizers`: inputs are checked, and its panics become errors of ours."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache

from seqloom.errors import SeqloomError, UsageError, one_line, printable
from seqloom.json_values import as_text


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each of which must be a string that has an encoding in UTF-8."""
    for number, text in enumerate(texts):
        if as_text(text) is None:
            raise UsageError(
                f"text {number} (counted from 0) must be a string, but is {type(text).__name__}"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text {number} (counted from 0) must be Unicode, but at position {error.start} it has half a"
                f" character (the lone surrogate {printable(text[error.start])}); mend the program or file"
                " that it came from"
            ) from None
        yield text


def checked_batch(texts: Iterable[str]) -> list[str]:
    """The texts as a list, checked. One string is refused.

    The library takes a tuple or list among the texts for a text that is split already.
    """
    if as_text(texts) is not None:
        raise UsageError("encode takes a list of texts, but was given one string; put it in a list")
    return list(checked_texts(texts))


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raises UsageError if an id is outside of a vocabulary of this size."""
    if len(ids) and (min(ids) < 0 or max(ids) >= size):
        wrong = next(i for i in ids if not 0 <= i < size)
        raise UsageError(
            f"an id must be from 0 to {size - 1}, but {wrong} was given; was it made by another tokenizer?"
        )


@contextmanager
def panics_are_errors(action: str) -> Iterator[None]:
    """Turns what the library raises into a SeqloomError: bare `Exception`s, and panics of Rust, which are not
    even that.

    Anything else passes: KeyboardInterrupt, SystemExit, and the errors of the code that reads the texts.
    """
    try:
        # texts that are trained on come from code that may write
        with nullcontext() if action == "train" else _held_back_panics():
            yield
    except BaseException as error:
        if type(error) is Exception or _is_panic(error):
            reason = one_line(str(error), 300)
            raise SeqloomError(f"the library `tokenizers` could not {action} ({reason})") from error
        raise


def _is_panic(error: BaseException) -> bool:
    return type(error).__module__ == "pyo3_runtime"


@contextmanager
def _held_back_panics() -> Iterator[None]:
    """Holds back what is written to standard error: Rust prints a panic there, with a backtrace, before it
    can be caught. Anything else is written afterwards."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as handles:
        try:
            held = os.memfd_create("standard error")
            handles.callback(os.close, held)
            standard_error = os.dup(2)
            handles.callback(os.close, standard_error)
        except OSError:
            # it is closed, or no more files may be opened
            yield
            return
        panicked = False
        os.dup2(held, 2)
        try:
            yield
        except BaseException as error:
            panicked = _is_panic(error)
            raise
        finally:
            os.dup2(standard_error, 2)
            if not panicked:
                os.lseek(held, 0, os.SEEK_SET)
                while block := os.read(held, 2**16):
                    os.write(2, block)


@cache
def prepare_for_fork() -> None:
    """Lets a process fork (a data loader does) after the library has run in parallel.

    The threads do not exist in the child. It must encode on one thread, and would wait for them forever
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
