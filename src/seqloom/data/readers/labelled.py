"""Users' files to labelled texts: tables, lines that begin with their labels, a file or a folder for each
class, labels in a file of their own, and JSON."""

from __future__ import annotations

import math
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import partial

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import TABLES, form_or, read_records
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.class_files import read_class_files
from seqloom.data.readers.examples import LabelledText
from seqloom.data.readers.label_columns import labelled_record, labelled_schema, refuse_columns
from seqloom.data.readers.records import paired_lines, plain_texts, refuse_pipe
from seqloom.errors import DataError, UsageError, counted, printable
from seqloom.files import open_binary
from seqloom.json_values import UNIT

PREFIX = "__label__"
_LABEL = re.compile(rf"[ \t]*{PREFIX}([^ \t]*)[ \t]*")
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
    labels are not read and need not exist; plain text is one text a line, and no text is left out for being
    blank. `number`: `labels` is the text of a number.

    Raises DataError for data that is wrong and UsageError for paths and options that do not go together; both
    when asked for the first example.
    """
    nothing = "there are no usable examples in it (rows read: {rows}, all blank or skipped)"
    examples = _examples(list(paths), options, report, pairs, answers, number)
    return report.counted(examples, paths, nothing, required=answers)


def _examples(
    paths: list[str],
    options: DataConfig,
    report: ReadReport,
    pairs: bool | None,
    answers: bool,
    number: bool,
) -> Iterator[LabelledText]:
    reason = "the score is no number" if number else "the label is not as it must be"
    for record in _records(paths, options, report, pairs, answers, number):
        file = DataFile(record.path, options, report)
        for example in file.usable(
            partial(_example, record, file, answers, number), reason, record.line
        ):
            if example is not None:
                yield example


def _records(
    paths: list[str],
    options: DataConfig,
    report: ReadReport,
    pairs: bool | None,
    answers: bool,
    number: bool,
) -> Iterator[Record]:
    forms = [form_of(path, options) for path in paths]
    files = [DataFile(path, options, report) for path in paths]
    if options.format == "folder" and len(paths) > 1:
        yield from read_class_files(files)
        return
    if answers and len(paths) == 2 and set(forms) <= {"text", "parallel"}:
        yield from _beside(files)
        return
    for file, form in zip(files, forms, strict=True):
        schema = labelled_schema(pairs=pairs, answers=answers, number=number)
        for record in _of_file(file, form, schema, answers):
            if pairs is None:
                pairs = "second" in record.fields  # the following files must be alike
            yield record


def form_of(path: str, options: DataConfig) -> str:
    """tsv, csv, jsonl, parquet, json, folder (also in a zip archive), fasttext, label_first or text. Raises
    UsageError for others."""
    if options.format in ("conll", "conllu", "tagged"):
        raise UsageError(
            f"labelled texts cannot be read from data.format={options.format}, which is for words with tags"
        )
    if options.format != "auto":
        return options.format
    if path == "-":
        raise UsageError(
            "the form of standard input must be said: --set data.format=tsv (or csv, jsonl, text, fasttext,"
            " label_first)"
        )
    if os.path.isdir(path) or path.lower().endswith(".zip"):
        return "folder"
    return form_or("text", path, options)


def _of_file(file: DataFile, form: str, schema: TableSchema, answers: bool) -> Iterator[Record]:
    if form in TABLES:
        return read_records(file, form, schema)
    if form == "folder":
        return read_class_files([file])
    options = file.options
    refuse_columns(options)
    may_have_labels = form == "text" and answers and options.format == "auto"
    if form == "fasttext" or (may_have_labels and _begins_with_label(file)):
        return _fasttext(file, answers)
    if form == "label_first":
        return _label_first(file)
    if form == "parallel" or answers:
        next(file.full_lines(), None)  # what is no text at all has another reason
        raise UsageError(
            f"{printable(file.path)}: plain text has no labels: say where they are with --set"
            " data.format=label_first (or fasttext, tsv, csv, folder), or name a second file with a label in"
            " each line"
        )
    return plain_texts(file)


def _begins_with_label(file: DataFile) -> bool:
    refuse_pipe(file.path)  # for the lines are read once more
    with open_binary(file.path) as opened:
        found = opened.read(4096).removeprefix(BOM_UTF8).lstrip().startswith(PREFIX.encode())
    if found:
        file.note(f"lines begin with {PREFIX} and are read as data.format=fasttext")
    return found


def _fasttext(file: DataFile, answers: bool) -> Iterator[Record]:
    for line in file.full_lines():
        labels, text = "", line.text
        while match := _LABEL.match(text):
            labels += match[1] + UNIT
            text = text[match.end() :]
        if answers and not labels and file.options.label_separator is None:
            raise file.error(
                f"the line must begin with {PREFIX}NAME, but is {printable(text[:60])!r}",
                line.number,
            )
        yield from labelled_record(
            {"text": text, "label": labels}, file, line.number, blanks=not answers
        )


def _label_first(file: DataFile) -> Iterator[Record]:
    for line in file.full_lines():
        label, *rest = re.split(r"[ \t]+", line.text.lstrip(" \t"), maxsplit=1)
        yield from labelled_record({"text": "".join(rest), "label": label}, file, line.number)


def _beside(files: Sequence[DataFile]) -> Iterator[Record]:
    """Texts in one file, in the same line of another their labels, whose names a file `mapping.txt` beside it
    may hold."""
    texts, labels = files
    refuse_columns(texts.options)
    names = _names(labels)

    def unequal(shorter: int, fewer: int, more: int) -> str:
        longer = printable(files[1 - shorter].path)
        return f"each text must have one line of labels: {longer} has {counted(more, 'line')}"

    for text, line in paired_lines(files, unequal):
        label = line.text
        if names is not None and label.strip():
            if label.strip() not in names:
                raise labels.error(
                    f"the label must be one of those of {MAPPING} beside it, but is"
                    f" {printable(label)[:40]!r}",
                    line.number,
                )
            label = names[label.strip()]
        blank = texts if label.strip() else labels
        yield from labelled_record({"text": text.text, "label": label}, blank, text.number)


def _names(labels: DataFile) -> dict[str, str] | None:
    path = os.path.join(os.path.dirname(labels.path), MAPPING)
    if not os.path.isfile(path):
        return None
    names: dict[str, str] = {}
    for number, line in read_lines(
        path, ReadReport(), DataConfig(encoding=labels.options.encoding)
    ):
        key, *name = re.split(r"[ \t]+", line.strip(), maxsplit=1)
        if not key:
            continue
        if not name or key in names or name[0] in names.values():
            raise DataError("each line must be a number and its name, each once", path, number)
        names[key] = name[0]
    shown = ", ".join(map(printable, list(names.values())[:5]))
    labels.note(f"labels are named as {MAPPING} beside it has it ({shown})")
    return names


def _example(record: Record, file: DataFile, answers: bool, number: bool) -> LabelledText | None:
    """None if the row is left out, which is counted."""
    fields, line = record.fields, record.line
    labels: tuple[str, ...] | None = ()
    if answers:
        if file.has_no_label(fields["label"], line):
            return None
        labels = (_score if number else _labels)(fields["label"], file, line)
    if labels is None:
        return None
    if _ENTITY.search(fields["text"]):
        file.keep("HTML entities such as &amp; in a text", line)
    group = fields.get("group") or None
    return LabelledText(fields["text"], fields.get("second"), labels, group, record.path, line)


def _score(written: str, file: DataFile, line: int) -> tuple[str, ...] | None:
    if not written.strip():
        file.skip("the score is blank", line)
        return None
    try:
        value = math.nan if "_" in written else float(written)  # Python alone reads 1_5 as 15
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise file.error(
            f"the score must be a number, but is {printable(written)[:40]!r}; if it is another column: --set"
            " data.score=NAME",
            line,
        )
    return (written.strip(),)


def _refuse_other_lists(written: str, labels: list[str], file: DataFile, line: int) -> None:
    """Raises DataError for labels that are written otherwise than by their names."""
    if len(set(labels)) < len(labels) and {*labels} <= {"0", "1"}:
        raise file.error(
            "labels must be given by their names or numbers, but these are a 0 or 1 for each label; write the"
            " names of those with a 1",
            line,
        )
    if file.options.label_separator is not None and written.startswith(("['", '["')):
        raise file.error(
            "labels must be separated by data.label_separator alone, but are written as a list:"
            f" {printable(written)[:40]}; write them without brackets and quotes, or as lists in .jsonl",
            line,
        )


def _labels(written: str, file: DataFile, line: int) -> tuple[str, ...] | None:
    options = file.options
    if written.endswith(UNIT):
        labels = written.split(UNIT)[:-1]
    elif options.label_separator is None:
        labels = [written]
    else:
        parts = [part.strip() for part in written.split(options.label_separator)]
        labels = [part for part in parts if part]
    _refuse_other_lists(written, labels, file, line)
    if len(labels) != 1 and options.label_separator is None:
        raise file.error(
            f"a text must have one label, but has {len(labels)}; where texts may have several: --set"
            " data.label_separator=,",
            line,
        )
    if options.label_until:
        labels = [label.partition(options.label_until)[0] for label in labels]
    if all(label.strip() for label in labels):
        return tuple(dict.fromkeys(labels))
    if options.on_bad_line == "skip":
        file.skip("the label is empty", line)
        return None
    raise file.error(
        "the label is empty; leave such rows out with --set data.on_bad_line=skip, or write it",
        line,
    )
