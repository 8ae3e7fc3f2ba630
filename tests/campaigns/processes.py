"""Commands of seqloom in processes of their own, forked from this one: cheap, and they can be killed."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from seqloom.cli import main

LOADED = (
    *("torch._dynamo", "seqloom.workflows.train", "seqloom.workflows.evaluate"),
    *("seqloom.workflows.exchange", "seqloom.workflows.compare.run"),
    *("seqloom.tasks.language_modeling.mixture", "seqloom.tasks.text.predictor"),
    *("seqloom.tasks.translation.translator", "seqloom.tasks.language_modeling.language_model"),
)
"""What the commands import, once for all of them."""
CHANGES = (
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.chmod",
    "os.truncate",
    "os.fsync",
)
"""What a process does to files, beside opening them for writing."""


class Ran(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    """The exit status; negative where a signal ended it."""
    out: str
    err: str
    stopped: bool
    """Whether it did not end in time."""


def run(words: Sequence[str], folder: Path, *, limit: float = 60, kill_at: int | str = 0) -> Ran:
    """A command in this folder; killed before the `kill_at`-th thing that it does to a file, or the first
    that it does to a file of such a name."""
    for name in LOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if not process:
            _become(words, folder, (out.fileno(), err.fileno()), kill_at)
        ended, status, began = 0, 0, time.monotonic()
        while not ended and time.monotonic() - began < limit:
            ended, status = os.waitpid(process, os.WNOHANG)
            time.sleep(0 if ended else 0.003)
        if not ended:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
        written = []
        for file in (out, err):
            file.seek(0)
            written.append(file.read().decode(errors="replace"))
    return Ran(os.waitstatus_to_exitcode(status), written[0], written[1], not ended)


def _become(
    words: Sequence[str], folder: Path, outputs: tuple[int, int], kill_at: int | str
) -> None:
    """Makes this forked process that of a command; does not return."""
    code = 99
    try:
        for target, handle in enumerate(outputs, start=1):
            os.dup2(handle, target)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        os.chdir(folder)
        if kill_at:
            at_every_event(lambda *event: _kill_if(kill_at, *event))
        main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 98
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill_if(kill_at: int | str, seen: int, named: str) -> None:
    if kill_at == seen or (isinstance(kill_at, str) and kill_at in named):
        os.kill(os.getpid(), signal.SIGKILL)


def at_every_event(act: Callable[[int, str], None]) -> None:
    """Calls `act` with 1, 2, 3, ... and what it is done to, before each thing that this process does to a
    file."""
    seen, acting = 0, False

    def look(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen, acting
        if acting:
            return
        writes = (
            name == "open"
            and isinstance(arguments[2], int)
            and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        )
        if writes or name in CHANGES:
            seen, acting = seen + 1, True
            act(seen, str(arguments))
            acting = False

    fsync, write = os.fsync, os.write

    def flush(fd: Any) -> None:
        sys.audit("os.fsync", fd)
        fsync(fd)

    def write_in_two(handle: int, line: Any) -> int:
        half = write(handle, line[: len(line) // 2])
        sys.audit("os.fsync", handle)
        return half + write(handle, line[half:])

    os.fsync, os.write = flush, write_in_two
    sys.addaudithook(look)
