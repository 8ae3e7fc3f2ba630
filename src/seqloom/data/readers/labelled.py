"""Users' files to labelled texts: tables, lines that begin with their labels, a file or a folder for each
class, labels in a file of their own, and JSON."""

from __future__ import annotations

import math
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from seqloom.config import DataConfig
from seqloom.data.formats.columns import UNIT, Record, Wanted, lines_of
from seqloom.data.formats.json_documents import read_json_document
from seqloom.data.formats.jsonl import read_json_lines
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.parquet import read_parquet
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import read_table
from seqloom.data.readers.class_files import read_class_files
from seqloom.data.readers.examples import LabelledText
from seqloom.data.readers.label_columns import labelled_columns, labelled_record, refuse_columns
from seqloom.data.readers.records import FORMS, read_texts, refuse_pipe
from seqloom.errors import DataError, UsageError, place, printable
from seqloom.files import open_binary

PREFIX = "__label__"
TABLES = ("tsv", "csv", "jsonl", "parquet", "json")
_ENTITY = re.compile(r"&(?:[a-z]{2,6}|#[0-9]+);|(?<![^ ])#[0-9]+;")
"""`&lt;` and `&#36;`, also where the & was lost."""
MAPPING = "mapping.txt"
"""Beside a file of labels: lines of a number and its name."""


def read_labelled(
    paths: Sequence[str],
    options: DataConfig,
    report: ReadReport,
    *,
    pairs: bool | None = None,
    answers: bool = True,
    number: bool = False,
) -> Iterator[LabelledText]:
    """The examples of one file or of several, one after the other.

    `pairs`: whether each has two texts; None: where `data.second` or a header says so. `answers=False`:
        labels are not read and need
    not be there; plain text is one text a line, and no text is left out for being blank. `number`: `labels`
    is the text of a number.

    Raises DataError for data that is wrong and UsageError for paths and options that fit together in no way;
    both when asked for the first example.
    """
    before, used = report.read, 0
    try:
        for record in _records(list(paths), options, report, pairs, answers, number):
            example = _example(record, options, report, answers, number)
            if example is not None:
                used += 1
                report.used += 1
                yield example
    except DataError as error:
        report.rejected += error.line is not None
        raise
    if answers and not used:
        raise DataError(
            f"there are no usable examples in it (rows read: {report.read - before}, all blank or skipped)",
            paths[0],
        )


def _records(
    paths: list[str], options: DataConfig, report: ReadReport, pairs: bool | None, answers: bool, number: bool
) -> Iterator[Record]:
    forms = [form_of(path, options) for path in paths]
    wanted = labelled_columns(pairs=pairs, answers=answers, number=number)
    if options.format == "folder" and len(paths) > 1:
        yield from read_class_files(paths, options, report)
    elif answers and len(paths) == 2 and set(forms) <= {"text", "parallel"}:
        yield from _beside(paths[0], paths[1], options, report)
    else:
        for path, form in zip(paths, forms, strict=True):
            two = None
            for record in _of_file(path, form, options, report, wanted, answers):
                if two is None and (two := "second" in record.fields) is not pairs and pairs is None:
                    wanted = labelled_columns(
                        pairs=two, answers=answers, number=number
                    )  # what follows must be alike
                yield record


def form_of(path: str, options: DataConfig) -> str:
    """tsv, csv, jsonl, parquet, json, folder (also in a zip archive), fasttext, label_first or text. Raises
    UsageError for others."""
    if options.format != "auto":
        if options.format in ("conll", "conllu", "tagged"):
            raise UsageError(
                f"labelled texts cannot be read from data.format={options.format}, which is for words with"
                " tags"
            )
        return options.format
    if path == "-":
        raise UsageError(
            "the form of standard input must be said: --set data.format=tsv (or csv, jsonl, text, fasttext,"
            " label_first)"
        )
    if os.path.isdir(path) or path.lower().endswith(".zip"):
        return "folder"
    ending = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    return "json" if ending == ".json" else FORMS.get(ending, "text")


def _of_file(
    path: str, form: str, options: DataConfig, report: ReadReport, wanted: Wanted, answers: bool
) -> Iterator[Record]:
    if form in TABLES:
        return read_rows_of(path, form, options, report, wanted)
    if form == "folder":
        return read_class_files([path], options, report)
    refuse_columns(options)
    if form == "fasttext" or (
        form == "text" and answers and options.format == "auto" and _begins_with_label(path, report)
    ):
        return _fasttext(path, options, report, answers)
    if form == "label_first":
        return _label_first(path, options, report)
    if form == "parallel" or answers:
        raise UsageError(
            f"{printable(path)}: plain text has no labels: say where they are with --set"
            " data.format=label_first (or fasttext, tsv, csv, folder), or name a second file with a label in"
            " each line"
        )
    return _plain(path, options, report)


def read_rows_of(
    path: str, form: str, options: DataConfig, report: ReadReport, wanted: Wanted
) -> Iterator[Record]:
    """The records of a table of any form."""
    if form == "jsonl":
        return read_json_lines(path, options, report, wanted)
    if form == "parquet":
        return read_parquet(path, options, report, wanted)
    return (
        read_json_document(path, options, report, wanted)
        if form == "json"
        else read_table(path, form, options, report, wanted)
    )


def _plain(path: str, options: DataConfig, report: ReadReport) -> Iterator[Record]:
    for record in read_texts(path, options, report, every_line=True):
        report.used -= 1  # it is counted as an example
        yield record


def _begins_with_label(path: str, report: ReadReport) -> bool:
    refuse_pipe(path)  # for the lines are read once more
    with open_binary(path) as file:
        found = file.read(4096).removeprefix(BOM_UTF8).lstrip().startswith(PREFIX.encode())
    if found:
        report.note(f"{place(path)}: lines begin with {PREFIX} and are read as data.format=fasttext")
    return found


def _lines(path: str, options: DataConfig, report: ReadReport) -> Iterator[tuple[int, str]]:
    """The lines that hold something."""
    for line in lines_of(path, options, report):
        if line.problem is not None or not line.text.strip():
            report.skip(line.problem or "blank", path, line.number)
        else:
            yield line.number, line.text


def _fasttext(path: str, options: DataConfig, report: ReadReport, answers: bool) -> Iterator[Record]:
    for number, text in _lines(path, options, report):
        labels = []
        while match := re.match(rf"[ \t]*{PREFIX}([^ \t]*)[ \t]*", text):
            labels.append(match[1])
            text = text[match.end() :]
        if answers and not labels and options.label_separator is None:
            raise DataError(
                f"the line must begin with {PREFIX}NAME, but is {printable(text[:60])!r}", path, number
            )
        yield from labelled_record(
            {"text": text, "label": joined(labels)}, path, number, report, blanks=not answers
        )


def _label_first(path: str, options: DataConfig, report: ReadReport) -> Iterator[Record]:
    for number, line in _lines(path, options, report):
        label, *rest = re.split(r"[ \t]+", line.lstrip(" \t"), maxsplit=1)
        yield from labelled_record({"text": "".join(rest), "label": label}, path, number, report)


def _beside(texts: str, labels: str, options: DataConfig, report: ReadReport) -> Iterator[Record]:
    """Texts in one file, in the same line of another their labels, whose names a file `mapping.txt` beside it
    may hold."""
    refuse_columns(options)
    names = _names(labels, options, report)
    sides = [lines_of(path, options, report) for path in (texts, labels)]
    for text, label in zip_longest(*sides):
        if text is None or label is None:
            shorter = (texts, labels)[text is not None]
            longer = 1 + sum(1 for _ in sides[text is None]) + (text or label).number - 1
            raise DataError(
                "ends here, but each text must have one line of labels:"
                f" {printable(texts if text is not None else labels)} has {longer} lines; look where they"
                " part, and make them line up",
                shorter,
                (text or label).number - 1,
            )
        bad = next(
            ((path, line) for path, line in ((texts, text), (labels, label)) if line.problem is not None),
            None,
        )
        if bad is not None:
            report.skip(f"{bad[1].problem}", bad[0], bad[1].number)
            continue
        found = label.text
        if names is not None and found.strip():
            if found.strip() not in names:
                problem = (
                    f"the label must be one of those of {MAPPING} beside it, but is {printable(found)[:40]!r}"
                )
                raise DataError(problem, labels, label.number)
            found = names[found.strip()]
        path = texts if found.strip() else labels  # of the blank side, if one is
        yield from labelled_record({"text": text.text, "label": found}, path, text.number, report)


def _names(labels: str, options: DataConfig, report: ReadReport) -> dict[str, str] | None:
    path = os.path.join(os.path.dirname(labels), MAPPING)
    if not os.path.isfile(path):
        return None
    names: dict[str, str] = {}
    for number, line in read_lines(path, ReadReport(), encoding=options.encoding):
        key, *name = re.split(r"[ \t]+", line.strip(), maxsplit=1)
        if not key:
            continue
        if not name or key in names or name[0] in names.values():
            raise DataError("each line must be a number and its name, each once", path, number)
        names[key] = name[0]
    report.note(
        f"{place(labels)}: labels are named as {MAPPING} beside it has it"
        f" ({', '.join(map(printable, list(names.values())[:5]))})"
    )
    return names


def joined(labels: Sequence[str]) -> str:
    """Several labels, or none, as a table holds a list of them."""
    return "".join(f"{label}{UNIT}" for label in labels)


def _example(
    record: Record, options: DataConfig, report: ReadReport, answers: bool, number: bool
) -> LabelledText | None:
    """None where the row is left out, which is counted."""
    fields, path, line = record.fields, record.path, record.line
    labels: tuple[str, ...] | None = ()
    if answers:
        labels = (
            _score(fields["label"], path, line, report)
            if number
            else _labels(fields["label"], options, path, line, report)
        )
    if labels is None:
        return None
    if _ENTITY.search(fields["text"]):
        report.keep("HTML entities such as &amp; in a text", path, line)
    return LabelledText(fields["text"], fields.get("second"), labels, fields.get("group") or None, path, line)


def _score(written: str, path: str, line: int, report: ReadReport) -> tuple[str] | None:
    if not written.strip():
        report.skip("the score is blank", path, line)
        return None
    try:
        value = math.nan if "_" in written else float(written)  # 1_5 is 15 to Python alone
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"the score must be a number, but is {printable(written)[:40]!r}; if it is another column: --set"
            " data.score=NAME",
            path,
            line,
        )
    return (written.strip(),)


def _labels(
    written: str, options: DataConfig, path: str, line: int, report: ReadReport
) -> tuple[str, ...] | None:
    several = options.label_separator is not None
    if written.endswith(UNIT):
        labels = written.split(UNIT)[:-1]
    else:
        labels = [part.strip() for part in written.split(options.label_separator)] if several else [written]
        labels = [label for label in labels if label] if several else labels
    if len(labels) != 1 and not several:
        raise DataError(
            f"a text must have one label, but has {len(labels)}; where texts may have several: --set"
            " data.label_separator=,",
            path,
            line,
        )
    if options.label_until:
        labels = [label.partition(options.label_until)[0] for label in labels]
    if all(label.strip() for label in labels):
        return tuple(dict.fromkeys(labels))
    if options.on_bad_line == "skip":
        report.skip("the label is empty", path, line)
        return None
    raise DataError(
        "the label is empty; leave such rows out with --set data.on_bad_line=skip, or write it", path, line
    )
