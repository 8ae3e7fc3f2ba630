"""Parquet to records, with pyarrow: one batch of rows in memory at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from seqloom.data.formats.columns import Header, Record, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.json_values import loose_text
from seqloom.errors import MissingExtraError, printable
from seqloom.files import open_binary

BATCH = 1024
"""Rows in memory."""


def read_parquet(file: DataFile, schema: TableSchema) -> Iterator[Record]:
    """The rows of a Parquet file; `line` is the row, from 1. Rows with nothing (null) in a column that is
    read are skipped.

    Raises MissingExtraError where pyarrow is not installed, DataError where the file or a column is not what
    it must be.
    """
    try:
        arrow, parquet = (
            importlib.import_module("pyarrow"),
            importlib.import_module("pyarrow.parquet"),
        )
    except ImportError:
        raise MissingExtraError("reading Parquet", "hub") from None
    with open_binary(file.path) as opened:  # what cannot be opened is reported as it is everywhere
        try:
            table = parquet.ParquetFile(opened)
            columns = schema.choose(Header(list(table.schema_arrow.names), file, None))
            for role, name in columns.items():
                if role not in schema.loose:
                    _check_type(arrow, table.schema_arrow.field(name), file)
            for row, values in enumerate(_rows(table, list(columns.values())), start=1):
                fields = {
                    role: _text(value, role in schema.loose, file, row)
                    for role, value in zip(columns, values, strict=True)
                }
                texts = {role: text for role, text in fields.items() if text is not None}
                if len(texts) < len(fields):
                    file.skip("null", row)
                else:
                    yield from schema.records(texts, file, row)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise file.error(
                f"must be a whole Parquet file, but cannot be read ({reason}); fetch it again"
            ) from None


def _rows(table: Any, names: list[str]) -> Iterator[tuple[object, ...]]:
    for batch in table.iter_batches(BATCH, columns=list(dict.fromkeys(names)), use_threads=False):
        yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def _text(value: object, loose: bool, file: DataFile, row: int) -> str | None:
    if not loose:
        return None if value is None else str(value)
    text = loose_text(value)
    if text is None:
        raise file.error(
            f"a text, a number or a list of such must be here, but there is {printable(repr(value))[:60]}",
            row,
        )
    return text


def _check_type(arrow: Any, field: Any, file: DataFile) -> None:
    kind = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
    types = arrow.types
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise file.error(
            f"the column {field.name!r} must hold texts, but holds {printable(str(field.type))}"
        )
