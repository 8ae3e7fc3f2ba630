"""Parquet to rows, with pyarrow: one batch of rows in memory at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from seqloom.data.formats.columns import Header, Row, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.jsonl import rows_of_objects
from seqloom.errors import MissingExtraError, printable
from seqloom.files import JsonObject, open_binary

BATCH = 1024
"""Rows in memory."""


def read_parquet(file: DataFile, schema: TableSchema) -> Iterator[Row]:
    """The rows of a Parquet file; `line` is the row, from 1. Nothing (null) is an empty text, as in a cell of
    a csv file.

    Raises MissingExtraError where pyarrow is not installed, DataError where the file is not what it must be.
    """
    try:
        arrow, parquet = (
            importlib.import_module("pyarrow"),
            importlib.import_module("pyarrow.parquet"),
        )
    except ImportError:
        raise MissingExtraError("reading Parquet", "hub") from None
    # What cannot be opened is reported as it is everywhere.
    with open_binary(file.path) as opened:
        try:
            table = parquet.ParquetFile(opened)
            yield from rows_of_objects(_objects(table, file, schema), file, schema)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise file.error(
                f"must be a whole Parquet file, but cannot be read ({reason}); fetch it again"
            ) from None


def _objects(table: Any, file: DataFile, schema: TableSchema) -> Iterator[tuple[int, JsonObject]]:
    """The columns that are read of each row."""
    names = list(table.schema_arrow.names)
    if schema.inside not in names:
        header = Header(names, file, None)
        chosen = schema.columns(header).values()
        names = list(dict.fromkeys(part for name in chosen for part in header.parts(name)))
    row = 0
    for batch in table.iter_batches(BATCH, columns=names, use_threads=False):
        for content in batch.to_pylist():
            row += 1
            yield row, {name: "" if value is None else value for name, value in content.items()}
