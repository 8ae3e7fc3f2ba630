"""Users' text files to records that know their file and line.

Parallel text, TSV, CSV and JSONL give pairs; plain text gives one text a line. What had to be guessed is said
in the report; a row that cannot be used is an error, or left out and counted.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from seqloom.config import DataConfig
from seqloom.data.formats.columns import (
    PAIR,
    Record,
    Wanted,
    choose_columns,
    lines_of,
    listed,
    pair_record,
    taken,
)
from seqloom.data.formats.jsonl import read_json_lines
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.parquet import read_parquet
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import read_table
from seqloom.errors import DataError, UsageError, place, printable
from seqloom.files import open_binary

FORMS: dict[str, str] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
"""What the end of a file's name says about its form (before `.gz`)."""


def read_texts(
    path: str, options: DataConfig, report: ReadReport, *, every_line: bool = False
) -> Iterator[Record]:
    """One record `{"text"}` for each line of a file, blank ones too; with `every_line` also for skipped ones,
    an empty text.

    Raises what `read_lines` raises.
    """
    lines = read_lines(
        path,
        report,
        encoding=options.encoding,
        on_bad_line=options.on_bad_line,
        max_line_bytes=options.max_line_bytes,
        every_line=every_line,
    )
    for number, text in lines:
        yield Record({"text": text}, path, number)


def read_pairs(
    paths: Sequence[str], options: DataConfig, report: ReadReport, wanted: Wanted = PAIR
) -> Iterator[Record]:
    """One record `{"source", "target"}` for each pair, or what else is wanted of it; a generator that holds
    one row at a time.

    `paths` is two files of parallel text; a prefix such as `data/train` beside which `data/train.en` and
    `data/train.de` stand (`.gz` or not); or one table: `.tsv`, `.csv`, `.jsonl`, or any name (`-` too) with
    `options.format`. Pairs with a blank side are skipped, both sides together. Texts are kept as they are,
    white space included.

    Raises DataError for data that is wrong, also when that shows only at the end (sides of unequal length, no
    usable pair), and UsageError for paths or options that fit together in no way; both when the first record
    is asked for.
    """
    before, used = report.read, 0
    try:
        for record in _pairs(list(paths), options, report, wanted):
            used += 1
            report.used += 1
            yield record
    except DataError as error:
        report.rejected += error.line is not None
        raise
    if not used:
        raise DataError(
            f"there are no usable pairs in it (rows read: {report.read - before}, all blank on a side or"
            " skipped)",
            paths[0],
        )


def _pairs(paths: list[str], options: DataConfig, report: ReadReport, wanted: Wanted) -> Iterator[Record]:
    if not 1 <= len(paths) <= 2:
        raise UsageError(
            f"pairs need one table, two parallel files or their prefix, but {len(paths)} files are given"
        )
    form = _form(paths, options)
    if wanted is not PAIR and form in ("parallel", "text"):
        raise UsageError(
            f"{', '.join(wanted.roles)} must be columns of one table (tsv, csv, jsonl or parquet), but {form}"
            " text is given"
        )
    if form == "parallel":
        return _parallel(paths if len(paths) == 2 else _sides(paths[0], options, report), options, report)
    if len(paths) == 2:
        raise UsageError(f"two files can only be parallel text, but the form is {form}; name one {form} file")
    if form == "text":
        raise UsageError(
            "pairs must be parallel, tsv, csv, jsonl or parquet, but data.format is text; two files of lines"
            " are parallel"
        )
    if form == "parquet":
        return read_parquet(paths[0], options, report, wanted)
    return (
        read_json_lines(paths[0], options, report, wanted)
        if form == "jsonl"
        else read_table(paths[0], form, options, report, wanted)
    )


def data_files(paths: Sequence[str], data: DataConfig) -> list[str]:
    """The files behind what was named: a prefix stands for two.

    Raises as `read_pairs` does, and DataError where one can be read only once: who asks for files reads them
    several times.
    """
    is_prefix = len(paths) == 1 and _form(paths, data) == "parallel"
    named = _sides(paths[0], data, ReadReport()) if is_prefix else list(paths)
    for path in named:
        refuse_pipe(path)
        open_binary(path).close()
    return named


def refuse_pipe(path: str) -> None:
    """Raises DataError where a file can be read only once."""
    if path == "-" or Path(path).is_fifo():
        raise DataError(
            "must be a file, for it is read several times, but is a pipe or standard input; save it as a file"
            " first",
            path,
        )


def _form(paths: Sequence[str], options: DataConfig) -> str:
    if options.format != "auto":
        return options.format
    if list(paths) == ["-"]:
        raise UsageError("the form of standard input must be said: --set data.format=tsv (or csv, jsonl)")
    form = FORMS.get(os.path.splitext(paths[0].removesuffix(".gz"))[1].lower())
    if form is not None and (
        len(paths) == 1 or FORMS.get(os.path.splitext(paths[1].removesuffix(".gz"))[1].lower()) == form
    ):
        return form
    if len(paths) == 1 and os.path.exists(paths[0]) and not os.path.isdir(paths[0]):
        raise DataError(
            "its name does not say in which form the pairs are; say it with --set data.format=tsv (or csv,"
            " jsonl)",
            paths[0],
        )
    return "parallel"


def _sides(prefix: str, options: DataConfig, report: ReadReport) -> list[str]:
    """The two files `prefix.SUFFIX` or `prefix.SUFFIX.gz`, source first."""
    folder, stem = os.path.split(prefix)
    found: dict[str, list[str]] = {}
    if os.path.isdir(folder or "."):
        for name in sorted(os.listdir(folder or ".")):
            suffix = name[len(stem) + 1 :].removesuffix(".gz")
            path = os.path.join(folder, name)
            if (
                name.startswith(f"{stem}.")
                and suffix
                and "." not in suffix
                and f".{suffix}" not in FORMS
                and not os.path.isdir(path)
            ):
                found.setdefault(suffix, []).append(path)
    if not found:
        raise _no_sides(prefix, folder, stem)
    names = list(found)
    pair = choose_columns(names, options, report, prefix, None, "file")
    if pair is None and len(names) == 2 and options.source is None and options.target is None:
        pair = taken(names[0], names[1], report, prefix)
    if pair is None:
        raise DataError(
            f"beside it stand {listed(names)}; two must be taken: say which with --set data.source=NAME --set"
            " data.target=NAME",
            prefix,
        )
    for side in pair:
        if len(found[side]) > 1:
            other = printable(os.path.basename(found[side][1]))
            raise DataError(f"stands beside {other}; name the two files that are meant", found[side][0])
    return [found[side][0] for side in pair]


def _no_sides(prefix: str, folder: str, stem: str) -> DataError:
    if os.path.lexists(prefix):
        open_binary(prefix).close()  # a folder or a loop of links says so itself
        return DataError(
            "parallel text must be two files, or a prefix beside which two files such as PREFIX.en and"
            " PREFIX.de stand",
            prefix,
        )
    names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    near = difflib.get_close_matches(stem, {name.split(".")[0] for name in names} | set(names), n=3)
    hint = f"; near it: {', '.join(printable(name) for name in near)}" if near else ""
    return DataError(
        f"there is no such file, nor two files such as {printable(stem)}.en and {printable(stem)}.de{hint}",
        prefix,
    )


def _parallel(paths: list[str], options: DataConfig, report: ReadReport) -> Iterator[Record]:
    """Pairs of the lines with the same number; their place is that of the source."""
    if paths[0] == paths[1] == "-":
        raise UsageError("standard input can be one side of parallel text, not both")
    sides = [lines_of(path, options, report) for path in paths]
    one_sided: str | None = None
    for source, target in zip_longest(*sides):
        if source is None or target is None:
            longer = 1 if source is None else 0
            counts = [(source or target).number - 1] * 2
            counts[longer] += 1 + sum(1 for _ in sides[longer])
            hint = f"; the first suspicious line is {one_sided} (blank on one side only)" if one_sided else ""
            raise DataError(
                f"ends here, but both sides must have the same number of lines: {printable(paths[0])} has"
                f" {counts[0]}, {printable(paths[1])} has {counts[1]}{hint}; look where they part, and make"
                " them line up",
                paths[1 - longer],
                counts[1 - longer],
            )
        bad = next(
            (
                (path, line)
                for path, line in zip(paths, (source, target), strict=True)
                if line.problem is not None
            ),
            None,
        )
        if bad is not None:
            report.skip(f"{bad[1].problem}", bad[0], bad[1].number)
            continue
        path = (
            paths[1] if source.text.strip() and not target.text.strip() else paths[0]
        )  # of the blank side, if one is
        if one_sided is None and bool(source.text.strip()) != bool(target.text.strip()):
            one_sided = place(path, source.number)
        yield from pair_record({"source": source.text, "target": target.text}, path, source.number, report)
