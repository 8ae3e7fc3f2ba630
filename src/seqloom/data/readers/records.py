"""Users' text files to records that know their file and line.

Parallel text, TSV, CSV and JSONL give pairs; plain text gives one text a line. What had to be guessed is
noted in the report; a row that cannot be used is an error, or left out and counted.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from seqloom.config import DataConfig
from seqloom.data.formats.columns import (
    PAIR,
    SOURCES,
    TEXT,
    TEXTS,
    Header,
    Record,
    Wanted,
    choose_columns,
    note_pair,
    pair_record,
    source_and_target,
)
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import FORMS, ending, form_or, read_records
from seqloom.data.formats.lines import Line, read_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError, place, printable, quoted
from seqloom.files import open_binary


def read_texts(
    path: str, options: DataConfig, report: ReadReport, *, every_line: bool = False
) -> Iterator[Record]:
    """One record `{"text"}` for each line of a file, or for each row of a table, blank ones too; with
    `every_line` also for skipped lines, an empty text.

    Raises what `read_lines` raises.
    """
    form = form_or("text", path, options)
    if form != "text":
        rows = read_records(DataFile(path, options, report), form, _INPUTS)
        yield from report.counted(rows, [path], "", required=False)
        return
    for number, text in read_lines(path, report, options, every_line=every_line):
        yield Record({"text": text}, path, number)


def plain_texts(file: DataFile) -> Iterator[Record]:
    """Every line, for who counts it as an example."""
    for number, text in read_lines(file.path, file.report, file.options, every_line=True):
        file.report.used -= 1
        yield Record({"text": text}, file.path, number)


def _input_column(header: Header) -> dict[str, str]:
    setting = "text" if header.file.options.source is None else "source"
    (column,) = choose_columns(header, [Wanted(setting, "text", (*TEXTS, *SOURCES))]).values()
    return {"text": column}


def _every_row(fields: dict[str, str], file: DataFile, line: int) -> Iterator[Record]:
    if not fields["text"].strip():
        file.keep("blank", line)
    yield Record(fields, file.path, line)


_INPUTS = replace(
    TEXT,
    choose=_input_column,
    record=_every_row,
    settings=("text", "source"),
    known=frozenset((*TEXTS, *SOURCES)),
)
"""A table of texts that must each be answered."""


def read_pairs(paths: Sequence[str], options: DataConfig, report: ReadReport) -> Iterator[Record]:
    """One record `{"source", "target"}` for each pair; a generator that holds one row at a time.

    `paths` is two files of parallel text; a prefix such as `data/train` beside which `data/train.en` and
    `data/train.de` lie (`.gz` or not); or one table: `.tsv`, `.csv`, `.jsonl`, `.json`, or any name (`-`
    too) with `options.format`. Pairs with a blank side are skipped, both sides together. Texts are kept as
    they are, white space included.

    Raises DataError for data that is wrong, also when that shows only at the end (sides of unequal length, no
    usable pair), and UsageError for paths or options that do not go together; both when the first record is
    asked for.
    """
    nothing = "there are no usable pairs in it (rows read: {rows}, all blank on a side or skipped)"
    yield from report.counted(_pairs(list(paths), options, report), paths, nothing)


def _pairs(paths: list[str], options: DataConfig, report: ReadReport) -> Iterator[Record]:
    if not 1 <= len(paths) <= 2:
        raise UsageError(
            f"pairs need one table, two parallel files or their prefix, but {len(paths)} files are given"
        )
    form = _form(paths, options)
    if form == "parallel":
        sides = paths if len(paths) == 2 else _sides(DataFile(paths[0], options, report))
        return _parallel([DataFile(path, options, report) for path in sides])
    if len(paths) == 2:
        raise UsageError(
            f"two files can only be parallel text, but the form is {form}; name one {form} file"
        )
    if form == "text":
        raise UsageError(
            "pairs must be parallel, tsv, csv, jsonl, json or parquet, but data.format is text; two files of"
            " lines are parallel"
        )
    return read_records(DataFile(paths[0], options, report), form, PAIR)


def data_files(paths: Sequence[str], data: DataConfig) -> list[str]:
    """The files behind what was named: a prefix stands for two.

    Raises as `read_pairs` does, and DataError if one can be read only once: who asks for files reads them
    several times.
    """
    is_prefix = len(paths) == 1 and _form(paths, data) == "parallel"
    named = _sides(DataFile(paths[0], data, ReadReport())) if is_prefix else list(paths)
    for path in named:
        refuse_pipe(path)
        open_binary(path).close()
    return named


def refuse_pipe(path: str) -> None:
    """Raises DataError if a file can be read only once."""
    if path == "-" or Path(path).is_fifo():
        raise DataError(
            "must be a file, for it is read several times, but is a pipe or standard input; save it as a file"
            " first",
            path,
        )


def forms_of_pairs(paths: Sequence[str], options: DataConfig) -> set[str]:
    """The form of these files. Raises UsageError or DataError if neither a setting nor a name says it."""
    return {_form(paths, options)}


def _form(paths: Sequence[str], options: DataConfig) -> str:
    if options.format != "auto":
        return options.format
    if list(paths) == ["-"]:
        raise UsageError(
            "the form of standard input must be said: --set data.format=tsv (or csv, jsonl)"
        )
    forms = [FORMS.get(ending(path)) for path in paths]
    if forms[0] is not None and forms[0] == forms[-1]:
        return forms[0]
    if len(paths) == 1 and os.path.exists(paths[0]) and not os.path.isdir(paths[0]):
        raise DataError(
            "its name does not say in which form the pairs are; say it with --set data.format=tsv (or csv,"
            " jsonl)",
            paths[0],
        )
    return "parallel"


def _sides(prefix: DataFile) -> list[str]:
    """The two files `prefix.SUFFIX` or `prefix.SUFFIX.gz`, source first."""
    folder, stem = os.path.split(prefix.path)
    found: dict[str, list[str]] = {}
    for name in _names_in(folder):
        suffix = name[len(stem) + 1 :].removesuffix(".gz")
        is_side = (
            name.startswith(f"{stem}.")
            and suffix
            and "." not in suffix
            and f".{suffix}" not in FORMS
        )
        path = os.path.join(folder, name)
        if is_side and not os.path.isdir(path):
            found.setdefault(suffix, []).append(path)
    if not found:
        _refuse_prefix(prefix.path, folder, stem)
    names = list(found)
    pair = source_and_target(Header(names, prefix, None, "file"))
    if pair is None and len(names) == 2 and prefix.options.source is prefix.options.target is None:
        pair = names[0], names[1]
        note_pair(*pair, prefix)
    if pair is None:
        raise prefix.error(
            f"beside it stand {quoted(names)}; two must be taken: say which with --set data.source=NAME --set"
            " data.target=NAME"
        )
    for side in pair:
        if len(found[side]) > 1:
            other = printable(os.path.basename(found[side][1]))
            raise DataError(
                f"stands beside {other}; name the two files that are meant", found[side][0]
            )
    return [found[side][0] for side in pair]


def _names_in(folder: str) -> list[str]:
    return sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []


def _refuse_prefix(prefix: str, folder: str, stem: str) -> NoReturn:
    if os.path.lexists(prefix):
        open_binary(prefix).close()  # a folder or a loop of links says so itself
        raise DataError(
            "parallel text must be two files, or a prefix beside which two files such as PREFIX.en and"
            " PREFIX.de stand",
            prefix,
        )
    names = _names_in(folder)
    near = difflib.get_close_matches(stem, {name.split(".")[0] for name in names} | set(names), n=3)
    hint = f"; near it: {', '.join(printable(name) for name in near)}" if near else ""
    raise DataError(
        f"there is no such file, nor two files such as {printable(stem)}.en and {printable(stem)}.de{hint}",
        prefix,
    )


def _parallel(files: list[DataFile]) -> Iterator[Record]:
    """Pairs of the lines with the same number; their place is that of the source."""
    if files[0].path == files[1].path == "-":
        raise UsageError("standard input can be one side of parallel text, not both")
    one_sided = ""

    def unequal(shorter: int, fewer: int, more: int) -> str:
        counts = (more, fewer) if shorter else (fewer, more)
        sides = ", ".join(
            f"{printable(file.path)} has {count}" for file, count in zip(files, counts, strict=True)
        )
        hint = (
            f"; the first suspicious line is {one_sided} (blank on one side only)"
            if one_sided
            else ""
        )
        return f"both sides must have the same number of lines: {sides}{hint}"

    for source, target in paired_lines(files, unequal):
        blank = files[1] if source.text.strip() and not target.text.strip() else files[0]
        if not one_sided and bool(source.text.strip()) != bool(target.text.strip()):
            one_sided = place(blank.path, source.number)
        yield from pair_record({"source": source.text, "target": target.text}, blank, source.number)


def paired_lines(
    files: Sequence[DataFile], unequal: Callable[[int, int, int], str]
) -> Iterator[tuple[Line, Line]]:
    """The lines of two files that have the same number; a pair with a bad line is skipped.

    Raises DataError if one file ends earlier; `unequal` says what must hold: (which, its lines, those of
    the other).
    """
    sides = [file.lines() for file in files]
    for first, second in zip_longest(*sides):
        if first is None or second is None:
            shorter = 0 if first is None else 1
            line = (first or second).number
            more = line + sum(1 for _ in sides[1 - shorter])
            raise files[shorter].error(
                f"ends here, but {unequal(shorter, line - 1, more)}; look where they part, and make them line"
                " up",
                line - 1,
            )
        for file, line in zip(files, (first, second), strict=True):
            if line.problem is not None:
                file.skip(line.problem, line.number)
                break
        else:
            yield first, second
