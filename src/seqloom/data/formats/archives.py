"""The files of a folder or of a zip archive, read where they are."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import BinaryIO, NamedTuple, cast

from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.lines import Line
from seqloom.errors import printable
from seqloom.files import open_binary

_NOTES = re.compile(r"(readme|licen[cs]e|copying|notice|citation|changelog)\b", re.IGNORECASE)
"""Beginnings of names of files that are about the data and not data."""
_DAMAGE = (
    zipfile.BadZipFile, NotImplementedError, OSError, ValueError, KeyError, EOFError, OverflowError,
    RuntimeError, struct.error, zlib.error,
)  # fmt: skip
"""What `zipfile` raises for archives that are damaged, or of a kind that it does not know."""


class Member(NamedTuple):
    """A file in a folder or archive."""

    parts: tuple[str, ...]
    """Folders and name, from the root."""
    file: DataFile
    """Its path is for messages: `texts.zip/pos/1.txt`."""

    def lines(self) -> Iterator[Line]:
        """Every line; there may be none. Raises DataError as `scan_lines` does, and where the archive is
        damaged."""
        try:
            yield from self.file.lines(may_be_empty=True)
        except _DAMAGE as error:
            raise self.file.error(
                f"the archive is damaged or of an unknown kind here ({printable(str(error))}); fetch it again"
            ) from None


def new_member(
    parts: tuple[str, ...], path: str, open_file: Callable[[], BinaryIO], whole: DataFile
) -> Member:
    """A file that is read as the `whole` is."""
    return Member(parts, DataFile(path, whole.options, whole.report, open_file))


@contextmanager
def members(file: DataFile) -> Iterator[tuple[list[Member], list[str]]]:
    """The files in a folder or `.zip`, however deep, in order of their names, and the names of those left
    out: README and the like; hidden ones are passed over. They can be opened inside the context. Raises
    DataError if an archive is damaged or locked."""
    with ExitStack() as stack:
        if file.path.lower().endswith(".zip"):
            found = _of_archive(file, stack)
        else:
            found = _of_folder(file)
        found.sort(key=lambda file: file.parts)
        notes = [file.parts[-1] for file in found if _NOTES.match(file.parts[-1])]
        yield [file for file in found if not _NOTES.match(file.parts[-1])], notes


def _hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def _of_folder(whole: DataFile) -> list[Member]:
    found = []
    for folder, _, names in os.walk(whole.path):
        for name in names:
            path = os.path.join(folder, name)
            parts = tuple(os.path.relpath(path, whole.path).split(os.sep))
            if not _hidden(parts):
                found.append(new_member(parts, path, partial(open_binary, path, pipe=False), whole))
    return found


def _of_archive(whole: DataFile, stack: ExitStack) -> list[Member]:
    opened = stack.enter_context(open_binary(whole.path, pipe=False))
    try:
        archive = stack.enter_context(zipfile.ZipFile(opened))
    except _DAMAGE as error:
        raise whole.error(
            f"must be a whole ZIP archive, but cannot be read ({printable(str(error))}); fetch it again"
        ) from None
    found = []
    for info in archive.infolist():
        parts = tuple(part for part in info.filename.split("/") if part)
        # what is damaged may have no name
        if not parts or info.filename.endswith("/") or _hidden(parts):
            continue
        if info.flag_bits & 1:
            raise whole.error(
                f"holds a file that needs a password ({printable(info.filename)}); unpack it first"
            )
        open_file = cast(Callable[[], BinaryIO], partial(archive.open, info))
        found.append(new_member(parts, f"{whole.path}/{info.filename}", open_file, whole))
    if len({file.parts[0] for file in found}) == 1 and all(len(file.parts) > 1 for file in found):
        found = [file._replace(parts=file.parts[1:]) for file in found]  # one folder that holds all
    return found
