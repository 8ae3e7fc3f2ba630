"""Parquet to rows, with pyarrow: one batch of rows in memory at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from seqloom.data.formats.columns import Header, Row, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.jsonl import rows_of_objects
from seqloom.errors import MissingExtraError, printable
from seqloom.files import open_binary
from seqloom.json_values import JsonObject

BATCH = 1024
"""Rows in memory."""


def read_parquet(file: DataFile, schema: TableSchema) -> Iterator[Row]:
    """The rows of a Parquet file. Nothing (null) is an empty text, as in a cell of a csv file. Raises as
    `parquet_objects` does."""
    objects = parquet_objects(file, partial(_columns_that_are_read, file, schema))
    yield from rows_of_objects(_with_empty_texts(objects), file, schema)


def _with_empty_texts(
    objects: Iterable[tuple[int, JsonObject]],
) -> Iterator[tuple[int, JsonObject]]:
    """The objects with an empty text in place of nothing."""
    for row, content in objects:
        yield row, {name: "" if value is None else value for name, value in content.items()}


def parquet_objects(
    file: DataFile, choose: Callable[[Sequence[str]], Sequence[str]] = lambda names: names
) -> Iterator[tuple[int, JsonObject]]:
    """Each row, from 1, and its values in the columns that `choose` takes.

    Raises MissingExtraError if pyarrow is not installed, DataError if the file is not what it must be.
    """
    try:
        arrow, parquet = (
            importlib.import_module("pyarrow"),
            importlib.import_module("pyarrow.parquet"),
        )
    except ImportError:
        raise MissingExtraError("reading Parquet", "hub") from None
    row = 0
    # What cannot be opened is reported as it is everywhere.
    with open_binary(file.path) as opened:
        try:
            table = parquet.ParquetFile(opened)
            names = list(choose(list(table.schema_arrow.names)))
            for batch in table.iter_batches(BATCH, columns=names, use_threads=False):
                for content in batch.to_pylist():
                    row += 1
                    yield row, content
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise file.error(
                f"must be a whole Parquet file, but cannot be read ({reason}); fetch it again"
            ) from None


def _columns_that_are_read(
    file: DataFile, schema: TableSchema, names: Sequence[str]
) -> Sequence[str]:
    if schema.inside in names:
        return names
    header = Header(list(names), file, None)
    chosen = schema.columns(header).values()
    return list(dict.fromkeys(part for name in chosen for part in header.parts(name)))
