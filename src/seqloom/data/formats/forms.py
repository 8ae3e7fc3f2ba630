"""In which form a file is, and how a table of each form is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record, Row, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.json_documents import read_json_document
from seqloom.data.formats.jsonl import read_json_lines
from seqloom.data.formats.parquet import read_parquet
from seqloom.data.formats.tables import read_table
from seqloom.errors import UsageError, place

FORMS: dict[str, str] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".json": "json",
}
"""The form of a table by how its name ends (before `.gz`)."""
TABLES = ("tsv", "csv", "jsonl", "parquet", "json")
_READERS = {
    "jsonl": read_json_lines,
    "parquet": read_parquet,
    "json": read_json_document,
}


def ending(path: str) -> str:
    """How a name ends before `.gz`, in small letters."""
    return os.path.splitext(path.removesuffix(".gz"))[1].lower()


def form_or(otherwise: str, path: str, options: DataConfig) -> str:
    """The form that `data.format` says or the name of the file shows; `otherwise` where neither does."""
    return FORMS.get(ending(path), otherwise) if options.format == "auto" else options.format


def read_rows(file: DataFile, form: str, schema: TableSchema) -> Iterator[Row]:
    """The rows of a table. Raises UsageError if the form is that of no table."""
    if form not in TABLES:
        raise UsageError(
            f"{place(file.path)}: a table must be in one of the forms {', '.join(TABLES)}, but the form is"
            f" {form}"
        )
    read = _READERS.get(form)
    return read_table(file, form, schema) if read is None else read(file, schema)


def read_records(file: DataFile, form: str, schema: TableSchema) -> Iterator[Record]:
    """The records of the rows of a table; a row that is not as it must be is left out where it may be."""
    for row in read_rows(file, form, schema):
        make = partial(_made, schema, row)
        for records in file.usable(make, "a field is not as it must be", row.line):
            yield from records


def _made(schema: TableSchema, row: Row) -> list[Record]:
    return list(schema.records(row))
