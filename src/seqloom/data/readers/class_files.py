"""A file for each class, one text a line, or a folder for each class, one text a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from seqloom.data.formats.archives import Member, members, new_member
from seqloom.data.formats.columns import Record, first_few
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import FORMS, ending
from seqloom.data.readers.label_columns import labelled_record, refuse_columns
from seqloom.errors import printable
from seqloom.files import open_binary


def read_class_files(files: Sequence[DataFile]) -> Iterator[Record]:
    """Records of text and label from a folder or `.zip` of a file or a folder for each class, or from several
    files, one for each.

    The class of a file is the part of its name that differs from the others: `pos` of rt-polarity.pos,
    `Arabic` of Arabic.txt.
    """
    whole, path = files[0], files[0].path
    refuse_columns(whole.options)
    if len(files) > 1:
        yield from _by_file(
            [
                new_member(
                    (os.path.basename(file.path),),
                    file.path,
                    partial(open_binary, file.path, pipe=False),
                    file,
                )
                for file in files
            ]
        )
        return
    if not (os.path.isdir(path) or path.lower().endswith(".zip")):
        open_binary(path, pipe=False).close()
        raise whole.error(
            "with data.format=folder this must be a folder, a .zip, or one of several files, one for each"
            " class"
        )
    with members(whole) as (found, left_out):
        in_folders = [member for member in found if len(member.parts) > 1]
        if in_folders:
            left_out += [member.parts[0] for member in found if len(member.parts) == 1]
        if left_out:
            shown = first_few([printable(name) for name in left_out], 5)
            whole.note(f"left out, for they hold no texts: {shown}")
        _refuse_parts(in_folders, whole)
        if not found:
            raise whole.error("must hold a file or a folder for each class, but holds no file")
        yield from _by_folder(in_folders) if in_folders else _by_file(found)


def _refuse_parts(members: Sequence[Member], whole: DataFile) -> None:
    """Raises DataError if several folders hold folders of the same names, such as train/pos and
    test/pos."""
    inner = {member.parts[:2] for member in members if len(member.parts) > 2}
    names = Counter(name for _, name in inner)
    if max(names.values(), default=0) > 1:
        first = printable(min(member.parts[0] for member in members))
        raise whole.error(
            "must hold a folder for each class, but several of its folders hold folders of the same"
            f" names ({', '.join(map(printable, sorted(names)[:5]))}); name one of them instead, such as"
            f" {first}"
        )


def _by_file(members: Sequence[Member]) -> Iterator[Record]:
    for member in members:
        if ending(member.file.path) in (*FORMS, ".zip"):
            raise member.file.error(
                "a table stands among the files of classes; name the tables that are meant instead of their"
                " folder"
            )
    for member, label in zip(
        members, class_names([member.parts[-1] for member in members]), strict=True
    ):
        for line in member.file.full_lines(member.lines()):
            yield Record({"text": line.text, "label": label}, member.file.path, line.number)


def _by_folder(members: Sequence[Member]) -> Iterator[Record]:
    for member in members:
        lines = list(member.lines())
        problem = next((line.problem for line in lines if line.problem is not None), None)
        if problem is not None:
            member.file.skip(problem, 1)
            continue
        text = "\n".join(line.text for line in lines).strip()
        yield from labelled_record({"text": text, "label": member.parts[0]}, member.file, 1)


def class_names(names: list[str]) -> list[str]:
    """The parts, cut at dots, in which file names differ: a.pos and a.neg give pos and neg."""
    parts = [name.removesuffix(".gz").split(".") for name in names]
    if len(names) == 1:
        return [parts[0][0]]
    shortest = min(map(len, parts)) - 1  # something of each is left
    before = _equal_at_start(parts, shortest)
    after = _equal_at_start([part[::-1] for part in parts], shortest - before)
    return [".".join(part[before : len(part) - after]) for part in parts]


def _equal_at_start(parts: list[list[str]], most: int) -> int:
    """How many parts, `most` at most, are the same in all names."""
    equal = 0
    while equal < most and all(part[equal] == parts[0][equal] for part in parts):
        equal += 1
    return equal
