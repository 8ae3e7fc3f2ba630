"""In which form a file is, and how a table of each form is read."""

from __future__ import annotations

import os
from collections.abc import Iterator

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.jsonl import read_json_lines
from seqloom.data.formats.parquet import read_parquet
from seqloom.data.formats.tables import read_table

FORMS: dict[str, str] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
"""The form of a table by how its name ends (before `.gz`)."""
TABLES = ("tsv", "csv", "jsonl", "parquet", "json")


def ending(path: str) -> str:
    """How a name ends before `.gz`, in small letters."""
    return os.path.splitext(path.removesuffix(".gz"))[1].lower()


def form_or(otherwise: str, path: str, options: DataConfig) -> str:
    """The form that `data.format` says or the name of the file shows; `otherwise` where neither does."""
    return FORMS.get(ending(path), otherwise) if options.format == "auto" else options.format


def read_rows(file: DataFile, form: str, schema: TableSchema) -> Iterator[Record]:
    """The records of a table: jsonl, parquet, csv, else tsv."""
    if form == "jsonl":
        return read_json_lines(file, schema)
    if form == "parquet":
        return read_parquet(file, schema)
    return read_table(file, form, schema)
