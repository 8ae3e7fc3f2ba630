"""Every row of a file of inputs with all of its columns, those too that no task reads or that are skipped:
what answers are written beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.columns import TableSchema, full_record
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.jsonl import json_objects
from seqloom.data.formats.lines import read_lines
from seqloom.data.formats.parquet import parquet_objects
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import read_table

FORMS = ("text", "csv", "tsv", "jsonl", "parquet")
"""Forms in which a row, or a line, is an input."""
EVERY_COLUMN = TableSchema(
    choose=lambda header: {name: name for name in header.names},
    record=full_record,
    settings=(),
    known=frozenset(),
    headerless=(),
    every=True,
)


class InputRow(NamedTuple):
    """A row of a file, or a line of text."""

    line: int
    """Its first line, or the number of the row."""
    values: dict[str, object]
    """Column -> what it holds; empty if the row cannot be read."""
    reason: str = ""
    """Why it cannot be read."""


def read_input_rows(
    path: str, form: str, data: DataConfig, first_answered: int
) -> Iterator[InputRow]:
    """The rows below the header, in order. `first_answered`: the first line that is an input, which shows
    whether the first row of a table is one."""
    report = ReadReport(left_out={})
    file = DataFile(path, data, report)
    rows: Iterator[InputRow]
    match form:
        case "text":
            lines = read_lines(path, report, data, every_line=True)
            rows = (InputRow(number, {"text": text}) for number, text in lines)
        case "jsonl":
            rows = (InputRow(line, dict(content)) for line, content in json_objects(file))
        case "parquet":
            rows = (InputRow(row, dict(content)) for row, content in parquet_objects(file))
        case _:
            rows = _table_rows(file, form, first_answered)
    yield from _with_skipped(rows, report)


def _with_skipped(rows: Iterator[InputRow], report: ReadReport) -> Iterator[InputRow]:
    """The rows, and in their places those that the reading left out, with the reason."""
    skipped = report.left_out
    assert skipped is not None
    for row in rows:
        for line in sorted(line for line in skipped if line < row.line):
            yield InputRow(line, {}, skipped.pop(line))
        yield row._replace(reason=skipped.pop(row.line, ""))
    for line in sorted(skipped):
        yield InputRow(line, {}, skipped[line])


def _table_rows(file: DataFile, form: str, first_answered: int) -> Iterator[InputRow]:
    whole = replace(file, options=replace(file.options, header=False))
    rows = read_table(whole, form, EVERY_COLUMN)
    head = next(rows, None)
    if head is None:
        return
    names = list(head.values)
    if file.options.header is True or (
        file.options.header == "auto" and head.line != first_answered
    ):
        names = [str(value) for value in head.values.values()]
    else:
        rows = chain([head], rows)
    for row in rows:
        yield InputRow(row.line, dict(zip(names, row.values.values(), strict=True)))
