"""New files of rows: csv, tsv, jsonl and parquet, written row by row, and whole or not at all."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from seqloom.errors import MissingExtraError, UsageError, printable
from seqloom.files import atomic_file, json_line
from seqloom.json_values import as_texts

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
"""How the name of a table ends."""
UNWRITTEN = (".json", ".xlsx", ".xls", ".ods", ".arrow", ".feather")
"""How the names of other tables end, which a file of lines must not have."""
CHUNK = 4096
"""Rows of a parquet file that are in memory."""
WriteRow = Callable[[Mapping[str, object]], None]


@contextmanager
def new_table(path: Path, columns: Sequence[str]) -> Iterator[WriteRow]:
    """A function that writes a row, of which a missing column is empty. The file is there once all is
    written. Raises MissingExtraError if pyarrow is needed and not installed."""
    with atomic_file(path) as file:
        match path.suffix.lower():
            case ".jsonl":
                yield lambda row: _write_json(file, row)
            case ".parquet":
                with _parquet_file(file, columns, path) as write:
                    yield write
            case suffix:
                yield _delimited(file, columns, "," if suffix == ".csv" else "\t")


def require_writer(path: Path) -> None:
    """Before the work: raises MissingExtraError if pyarrow is needed and not installed, UsageError for a
    table of another form."""
    if path.suffix.lower() in UNWRITTEN:
        raise UsageError(
            f"{printable(str(path))}: a table must end in {', '.join(TABLES)}, but this ends in"
            f" {path.suffix}; name one of these, or .txt for one answer a line"
        )
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def _write_json(file: BinaryIO, row: Mapping[str, object]) -> None:
    file.write((json_line(dict(row)) + "\n").encode("utf-8", "replace"))


def _delimited(file: BinaryIO, columns: Sequence[str], delimiter: str) -> WriteRow:
    """RFC 4180: a cell with a delimiter, a quote or a line break is in quotes, also in tsv."""
    text = io.TextIOWrapper(file, "utf-8", "replace", newline="", write_through=True)
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)

    def write(row: Mapping[str, object]) -> None:
        writer.writerow([_cell(row.get(name)) for name in columns])
        if not columns:
            text.flush()

    return write


def _cell(value: object) -> str:
    """A cell of text: a list of words with blanks between, other values of JSON as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool() | int() | float():
            return str(value)
    if (texts := as_texts(value)) is not None:
        return " ".join(texts)
    return json.dumps(value, ensure_ascii=False, default=str)


@contextmanager
def _parquet_file(file: BinaryIO, columns: Sequence[str], path: Path) -> Iterator[WriteRow]:
    """The first rows show the type of each column; one that they leave empty is text."""
    arrow, parquet = _pyarrow()
    rows: list[dict[str, object]] = []
    writer: Any = None

    def flush() -> None:
        nonlocal writer
        cells = {name: [row[name] for row in rows] for name in columns}
        try:
            if writer is None:
                first = arrow.table(cells)
                fields = [_typed(arrow, field) for field in first.schema]
                writer = parquet.ParquetWriter(file, arrow.schema(fields))
            writer.write_table(arrow.table(cells, schema=writer.schema))
        except arrow.ArrowException as error:
            raise UsageError(
                f"{printable(str(path))}: a column of a parquet file must hold one kind of values, but does"
                f" not ({printable(str(error))[:120]}); write .jsonl instead"
            ) from None
        rows.clear()

    def write(row: Mapping[str, object]) -> None:
        rows.append({name: row.get(name) for name in columns})
        if len(rows) == CHUNK:
            flush()

    yield write
    if rows or writer is None:
        flush()
    writer.close()


def _typed(arrow: Any, field: Any) -> Any:
    return field.with_type(arrow.string()) if arrow.types.is_null(field.type) else field


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError("writing Parquet", "hub") from None
