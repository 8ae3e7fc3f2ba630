"""Rows that prompts are made of: the columns of a table as they are, or the examples of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import TABLES, read_rows
from seqloom.data.formats.json_documents import read_document
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.input_rows import EVERY_COLUMN
from seqloom.data.readers.labelled import form_of, read_labelled
from seqloom.data.readers.multiple_choice import LABEL_ENDINGS, read_choices
from seqloom.data.readers.nbest import number_in
from seqloom.data.readers.records import refuse_pipe
from seqloom.data.readers.squad import read_questions
from seqloom.errors import DataError, UsageError, counted
from seqloom.json_values import as_list, as_text, field_of, is_number


class PromptRow(NamedTuple):
    """The fields of a row, by the names that templates read, and where it is."""

    fields: dict[str, Any]
    path: str
    line: int | None


def read_prompt_rows(
    paths: Sequence[str], options: DataConfig, report: ReadReport, task: str | None = None
) -> list[PromptRow]:
    """The rows of files, one after the other.

    Tables give their columns as they are, with the labels of a second file (`valid.jsonl valid-labels.lst`)
    as `label`. Other forms are read as text classification does (`text`, `second`, `label`), and the JSON of
    SQuAD as question answering (`question`, `context`, `answers`); so are all files where a `task` is named.

    Raises DataError and UsageError as the readers do.
    """
    if task is not None and task not in READERS:
        raise UsageError(f"a template reads files as {', '.join(READERS)}, but not as {task!r}")
    if task is None:
        if form_of(paths[0], options) in TABLES:
            return list(_table_rows(paths, options, report))
        task = "text-classification"
    return list(READERS[task](paths, options, report))


def _labelled(paths: Sequence[str], options: DataConfig, report: ReadReport) -> Iterator[PromptRow]:
    for example in read_labelled(paths, options, report):
        fields = {"text": example.text, "label": example.labels[0]}
        if example.second is not None:
            fields["second"] = example.second
        yield PromptRow(fields, example.path, example.line)


def _choices(paths: Sequence[str], options: DataConfig, report: ReadReport) -> Iterator[PromptRow]:
    for example in read_choices(paths, options, report):
        fields = {"text": example.text, "options": list(example.options), "label": example.answer}
        yield PromptRow(fields, example.path, example.line)


def _questions(
    paths: Sequence[str], options: DataConfig, report: ReadReport
) -> Iterator[PromptRow]:
    for example in read_questions(paths, options, report):
        answers = {
            "text": [answer.text for answer in example.answers],
            "answer_start": [answer.start for answer in example.answers],
        }
        about = {"id": example.name, "title": example.group, "context": example.context}
        fields = {**about, "question": example.question, "answers": answers}
        yield PromptRow(fields, example.path, example.line)


READERS: dict[str, Callable[[Sequence[str], DataConfig, ReadReport], Iterator[PromptRow]]] = {
    "text-classification": _labelled,
    "multiple-choice": _choices,
    "question-answering": _questions,
}
"""Task -> the rows that its files give."""


def _table_rows(
    paths: Sequence[str], options: DataConfig, report: ReadReport
) -> Iterator[PromptRow]:
    labels: str | None = None
    if len(paths) == 2 and paths[1].removesuffix(".gz").endswith(LABEL_ENDINGS):
        paths, labels = paths[:1], paths[1]
    for path in paths:
        file = DataFile(path, options, report)
        form = form_of(path, options)
        if form == "json" and _is_squad(file):
            yield from _questions([path], options, report)
            continue
        rows = report.counted(_columns(file, form), [path], "there are no rows in it")
        found = list(rows)
        if labels is not None:
            found = _with_labels(found, labels, file)
        yield from _with_numbers(found) if form in ("csv", "tsv") or labels else found


def _is_squad(file: DataFile) -> bool:
    refuse_pipe(file.path)  # for it is read once more
    articles = as_list(field_of(read_document(replace(file, report=ReadReport())), "data")) or []
    return any(as_list(field_of(article, "paragraphs")) for article in articles)


def _columns(file: DataFile, form: str) -> Iterator[PromptRow]:
    """The cells of each row. The first row names the columns, unless there is no header: then they have
    numbers."""
    if file.options.header == "auto":
        file = replace(file, options=replace(file.options, header=True))
    for row in read_rows(file, form, EVERY_COLUMN):
        names = [name for name, value in row.values.items() if as_text(value) is not None]
        texts = file.clean([str(row.values[name]) for name in names], row.line)
        if texts is not None:
            yield PromptRow(
                {**row.values, **dict(zip(names, texts, strict=True))}, file.path, row.line
            )


def _with_labels(rows: list[PromptRow], labels: str, file: DataFile) -> list[PromptRow]:
    """With the line of another file as `label`."""
    lines = list(read_lines(labels, ReadReport(), DataConfig(encoding=file.options.encoding)))
    if len(lines) != len(rows):
        raise DataError(
            f"must have a label for each of the {counted(len(rows), 'row')}, but has {len(lines)} lines",
            labels,
            len(lines),
        )
    return [
        row._replace(fields={**row.fields, "label": text.strip()})
        for row, (_, text) in zip(rows, lines, strict=True)
    ]


def _with_numbers(rows: list[PromptRow]) -> list[PromptRow]:
    """With numbers in place of texts where a column has nothing else: a template may index by them. A score
    such as 5.000 is a number in the column `label` alone: elsewhere it would be written in another way."""
    names = list(rows[0].fields) if rows else []
    numeric: dict[str, list[Any]] = {}
    for name in names:
        cells = [row.fields.get(name) for row in rows]
        values = [_number(cell, loose=name == "label") for cell in cells]
        if None not in values:
            numeric[name] = values
    changed = []
    for index, row in enumerate(rows):
        numbers = {name: values[index] for name, values in numeric.items()}
        changed.append(row._replace(fields=row.fields | numbers))
    return changed


def _number(cell: object, *, loose: bool) -> int | float | None:
    text = as_text(cell)
    if text is None:
        return None
    found = number_in(text)
    if loose and not is_number(found):
        try:
            found = number_in(str(float(found)))
        except ValueError:
            return None
    return found if is_number(found) else None
