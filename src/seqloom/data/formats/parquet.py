"""Parquet to records, with pyarrow: one batch of rows in memory at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from seqloom.config import DataConfig
from seqloom.data.formats.columns import PAIR, Record, Wanted, writable
from seqloom.data.formats.jsonl import loose_text
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, MissingExtraError, printable
from seqloom.files import open_binary

BATCH = 1024
"""Rows in memory."""


def read_parquet(
    path: str, options: DataConfig, report: ReadReport, wanted: Wanted = PAIR
) -> Iterator[Record]:
    """The rows of a Parquet file; `line` is the row, from 1. Rows with nothing (null) in a wanted column are
    skipped.

    Raises MissingExtraError where pyarrow is not installed, DataError where the file or a column is not what
    it must be.
    """
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError("reading Parquet", "hub") from None
    with open_binary(path) as file:  # what cannot be opened is said as it is everywhere
        try:
            table = parquet.ParquetFile(file)
            columns = wanted.choose(list(table.schema_arrow.names), options, report, path, None)
            for role, name in columns.items():
                if role not in wanted.loose:
                    _check_type(arrow, table.schema_arrow.field(name), path)
            row = 0
            for batch in table.iter_batches(
                BATCH, columns=list(dict.fromkeys(columns.values())), use_threads=False
            ):
                for values in zip(
                    *(batch.column(name).to_pylist() for name in columns.values()), strict=True
                ):
                    row += 1
                    texts = [
                        _text(value, role in wanted.loose, path, row)
                        for role, value in zip(columns, values, strict=True)
                    ]
                    if None in texts:
                        report.skip("null", path, row)
                    elif (
                        kept := writable(
                            [text for text in texts if text is not None], options, report, path, row
                        )
                    ) is not None:
                        yield from wanted.record(dict(zip(columns, kept, strict=True)), path, row, report)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise DataError(
                f"must be a whole Parquet file, but cannot be read ({reason}); fetch it again", path
            ) from None


def _text(value: Any, loose: bool, path: str, row: int) -> str | None:
    if not loose:
        return None if value is None else str(value)
    text = loose_text(value)
    if text is None:
        raise DataError(
            f"a text, a number or a list of such must be here, but there is {printable(repr(value))[:60]}",
            path,
            row,
        )
    return text


def _check_type(arrow: Any, field: Any, path: str) -> None:
    kind = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
    if not (
        arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_string_view(kind)
    ):
        raise DataError(
            f"the column {field.name!r} must hold texts, but holds {printable(str(field.type))}", path
        )
