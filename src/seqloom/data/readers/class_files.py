"""A file for each class, one text a line, or a folder for each class, one text a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from seqloom.config import DataConfig
from seqloom.data.formats.archives import Member, member_lines, members
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.label_columns import labelled_record, refuse_columns
from seqloom.data.readers.records import FORMS
from seqloom.errors import DataError, place, printable
from seqloom.files import open_binary


def read_class_files(paths: Sequence[str], options: DataConfig, report: ReadReport) -> Iterator[Record]:
    """Records of text and label from a folder or `.zip` of a file or a folder for each class, or from several
    files, one for each.

    The class of a file is what its name has not in common with the others: `pos` of rt-polarity.pos, `Arabic`
    of Arabic.txt.
    """
    refuse_columns(options)
    if len(paths) > 1:
        files = [Member((os.path.basename(path),), path, partial(open_binary, path)) for path in paths]
        yield from _by_file(files, options, report)
        return
    path = paths[0]
    if not (os.path.isdir(path) or path.lower().endswith(".zip")):
        open_binary(path).close()
        raise DataError(
            "with data.format=folder this must be a folder, a .zip, or one of several files, one for each"
            " class",
            path,
        )
    with members(path) as (found, notes):
        folders = [one for one in found if len(one.parts) > 1]
        notes += [one.parts[0] for one in found if len(one.parts) == 1] if folders else []
        if notes:
            shown = ", ".join(map(printable, notes[:5])) + ", ..." * (len(notes) > 5)
            report.note(f"{place(path)}: left out, for they hold no texts: {shown}")
        below = Counter(name for _, name in {one.parts[:2] for one in folders if len(one.parts) > 2})
        if max(below.values(), default=0) > 1:  # train/pos and test/pos
            one = printable(min(one.parts[0] for one in folders))
            raise DataError(
                "must hold a folder for each class, but several of its folders hold folders of the same"
                f" names ({', '.join(map(printable, sorted(below)[:5]))}); name one of them instead, such as"
                f" {one}",
                path,
            )
        if not found:
            raise DataError("must hold a file or a folder for each class, but holds no file", path)
        yield from _by_folder(folders, options, report) if folders else _by_file(found, options, report)


def _by_file(files: list[Member], options: DataConfig, report: ReadReport) -> Iterator[Record]:
    table = next(
        (
            one
            for one in files
            if os.path.splitext(one.path.removesuffix(".gz"))[1].lower() in (*FORMS, ".json", ".zip")
        ),
        None,
    )
    if table is not None:
        raise DataError(
            "a table stands among the files of classes; name the tables that are meant instead of their"
            " folder",
            table.path,
        )
    for one, label in zip(files, class_names([one.parts[-1] for one in files]), strict=True):
        for line in member_lines(one, options, report):
            if line.problem is not None or not line.text.strip():
                report.skip(line.problem or "blank", one.path, line.number)
            else:
                yield Record({"text": line.text, "label": label}, one.path, line.number)


def _by_folder(files: list[Member], options: DataConfig, report: ReadReport) -> Iterator[Record]:
    for one in files:
        lines = list(member_lines(one, options, report))
        problem = next((line.problem for line in lines if line.problem is not None), None)
        if problem is not None:
            report.skip(problem, one.path, 1)
            continue
        text = "\n".join(line.text for line in lines).strip()
        yield from labelled_record({"text": text, "label": one.parts[0]}, one.path, 1, report)


def class_names(names: list[str]) -> list[str]:
    """What file names have not in common, cut at dots: a.pos and a.neg give pos and neg."""
    parts = [name.removesuffix(".gz").split(".") for name in names]
    if len(names) == 1:
        return [parts[0][0]]
    shortest = min(map(len, parts)) - 1  # something of each is left
    before = next((at for at in range(shortest) if len({one[at] for one in parts}) > 1), shortest)
    after = next(
        (at for at in range(shortest - before) if len({one[-1 - at] for one in parts}) > 1), shortest - before
    )
    return [".".join(one[before : len(one) - after]) for one in parts]
