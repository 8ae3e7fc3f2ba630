"""The folder of a study that can be stopped and continued by the same command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seqloom import files
from seqloom.errors import FolderError, UsageError, printable


@contextmanager
def locked_folder(
    folder: Path, marker: str, *, kind: str, activity: str, option: str = "--output-dir"
) -> Iterator[None]:
    """Creates the folder if it is missing and keeps other processes out of it.

    `marker` is the file that an earlier study of this kind left there; `kind` (probe) and `activity`
    (probing) name the study in messages. Raises UsageError if the folder contains something else,
    FolderError if another process has it locked.
    """
    name = printable(str(folder))
    if files.holds_something(folder) and not (folder / marker).is_file():
        raise UsageError(
            f"{name}: must be new, empty or of an earlier {kind}, but holds something else; name another"
            f" {option}"
        )
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder / files.LOCK) as acquired:
        if not acquired:
            raise FolderError(
                f"{name}: another process is {activity} into this folder; wait for it or stop it"
            )
        yield
