"""The process that a command runs in: its standard streams, its memory, and the width of its terminal."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from io import TextIOWrapper

from seqloom.errors import SeqloomError

NARROWEST, WIDEST = 20, 1000
"""Columns of a terminal that are believed."""
MOST_THREADS = 1024
"""As train.threads."""
LEAST_MEMORY = 768
"""MiB of addresses, below which the libraries end the process without a word that can be understood."""


def prepare() -> None:
    """Fills what is closed or cannot be used, before anything is read or written."""
    _fill_closed_streams()
    # some terminals and schedulers say that they have no columns
    columns = os.environ.get("COLUMNS", "")
    if columns and not (columns.isdecimal() and NARROWEST <= int(columns[:9]) <= WIDEST):
        del os.environ["COLUMNS"]
    # so many threads end the process without a word
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads[:9]) > MOST_THREADS:
        del os.environ["OMP_NUM_THREADS"]


def _fill_closed_streams() -> None:
    """Opens /dev/null in place of each closed stream: else the next file that is opened would get its number,
    and what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the system gives the lowest number that is free
            os.open(os.devnull, os.O_RDWR)
    # What is read from a standard input that is closed is an error of its own.
    if sys.stdout is None:
        sys.stdout = _nowhere()
        _say("standard output is closed: the result is shown nowhere")
    if sys.stderr is None:
        sys.stderr = _nowhere()


def _nowhere() -> TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


def _say(line: str) -> None:
    write_error_line(f"seqloom: {line}")


def write_error_line(line: str) -> None:
    """A line on standard error; nothing where that is full, or the program that reads it has ended: the work
    goes on."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
        return
    silence(2)


def silence(number: int) -> None:
    """Drops what is still written to a standard stream that takes nothing any more."""
    with suppress(OSError):
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, number)
        os.close(handle)


def end_streams() -> None:
    """Writes what waits to be written. What cannot be written is dropped: the interpreter would end with a
    message and an exit code of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(number)


def require_memory() -> None:
    """Raises SeqloomError where the limit of this process is too small for any model."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_MEMORY * 2**20:
        raise SeqloomError(
            f"memory is short: a process must have {LEAST_MEMORY} MiB of addresses or more, but the limit is"
            f" {limit // 2**20} MiB; raise it with: ulimit -v unlimited"
        )
