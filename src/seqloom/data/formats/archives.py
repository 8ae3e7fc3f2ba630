"""The files of a folder or of a zip archive, read where they are."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, NamedTuple, cast

from seqloom.config import DataConfig
from seqloom.data.formats.lines import Line, scan_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, printable
from seqloom.files import open_binary

_NOTES = re.compile(r"(readme|licen[cs]e|copying|notice|citation|changelog)\b", re.IGNORECASE)
"""Beginnings of names of files that tell of the data and are none."""


class Member(NamedTuple):
    """A file in a folder or archive."""

    parts: tuple[str, ...]
    """Folders and name, from the root."""
    path: str
    """For messages: `texts.zip/pos/1.txt`."""
    open: Callable[[], BinaryIO]


@contextmanager
def members(path: str) -> Iterator[tuple[list[Member], list[str]]]:
    """The files in a folder or `.zip`, however deep, in order of their names, and the names of those left
    out: README and the like; hidden ones are passed over. They can be opened inside the context. Raises
    DataError where an archive is damaged or locked."""
    with ExitStack() as stack:
        found = _of_archive(path, stack) if path.lower().endswith(".zip") else _of_folder(path)
        found.sort(key=lambda one: one.parts)
        notes = [one.parts[-1] for one in found if _NOTES.match(one.parts[-1])]
        yield [one for one in found if not _NOTES.match(one.parts[-1])], notes


def _hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def _of_folder(path: str) -> list[Member]:
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            parts = tuple(os.path.relpath(file, path).split(os.sep))
            if not _hidden(parts):
                found.append(Member(parts, file, lambda file=file: open_binary(file)))  # type: ignore[misc]  # bound now, not later
    return found


def _of_archive(path: str, stack: ExitStack) -> list[Member]:
    open_binary(path).close()  # what cannot be opened is said as it is everywhere
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DataError(
            f"must be a whole ZIP archive, but cannot be read ({printable(str(error))}); fetch it again", path
        ) from None
    found = []
    for info in archive.infolist():
        parts = tuple(part for part in info.filename.split("/") if part)
        if info.is_dir() or _hidden(parts):
            continue
        if info.flag_bits & 1:
            raise DataError(
                f"holds a file that needs a password ({printable(info.filename)}); unpack it first", path
            )
        found.append(
            Member(parts, f"{path}/{info.filename}", lambda info=info: cast(BinaryIO, archive.open(info)))  # type: ignore[misc]
        )
    if len({one.parts[0] for one in found}) == 1 and all(len(one.parts) > 1 for one in found):
        found = [one._replace(parts=one.parts[1:]) for one in found]  # one folder that holds all
    return found


def member_lines(member: Member, options: DataConfig, report: ReadReport) -> Iterator[Line]:
    """Every line of a file, which may be empty. Raises DataError as `scan_lines` does, and where its archive
    is damaged."""
    try:
        yield from scan_lines(
            member.path,
            report,
            encoding=options.encoding,
            on_bad_line=options.on_bad_line,
            max_line_bytes=options.max_line_bytes,
            may_be_empty=True,
            open_file=member.open,
        )
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(
            f"the archive is damaged or of an unknown kind here ({printable(str(error))}); fetch it again",
            member.path,
        ) from None
