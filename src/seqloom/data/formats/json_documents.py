"""JSON files that are one value, not one a line: rows, rows by part (train, test, ...), or rows by label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seqloom.data.formats.columns import Header, Record, TableSchema, listed
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.json_values import as_list, as_object, as_text, field_of, kind_of
from seqloom.data.formats.jsonl import json_value, object_record
from seqloom.errors import UsageError

MOST_BYTES = 2**28
"""A longer line is an error: the whole file is in memory."""


def read_json_document(file: DataFile, schema: TableSchema) -> Iterator[Record]:
    """The records of the parts that `data.part` names, of all where there is one or where they are labels;
    `line` is the number of the item in its part.

    An item is an object, as in JSONL, or `[text, label]`. Of labels (`{"Weather": [...]}`) an item is a text,
    or an object whose `data` holds the text in pieces (snips): its key is the label.
    """
    content = read_document(file)
    whole = as_object(content)
    parts = {"": content} if whole is None else whole
    lists = {name: items for name, value in parts.items() if (items := as_list(value)) is not None}
    by_label = len(lists) == len(parts) and all(map(_has_one_label, lists.values()))
    if by_label and file.options.part is None:
        for label, items in lists.items():
            for number, item in enumerate(items, start=1):
                fields = {"text": _joined_text(item, file, number), "label": label}
                yield from schema.records(fields, file, number)
        return
    for name in _parts(list(lists), file):
        columns: dict[str, str] | None = None
        for number, item in enumerate(lists[name], start=1):
            match item:
                case dict():
                    if columns is None:
                        columns = schema.choose(Header(list(item), file, number))
                    yield from object_record(item, columns, file, number, schema)
                case [str() as text, str() as label]:
                    yield from schema.records({"text": text, "label": label}, file, number)
                case _:
                    raise file.error(
                        f"an item must be an object or [text, label], but is {kind_of(item)}",
                        number,
                    )


def read_document(file: DataFile) -> object:
    """The value that a whole file holds. Raises DataError for what is not text or not JSON that can be
    used."""
    if file.options.on_bad_line == "skip":
        raise UsageError("a JSON file has no lines to skip: take data.on_bad_line=error or replace")
    options = replace(file.options, max_line_bytes=max(file.options.max_line_bytes, MOST_BYTES))
    lines = replace(file, options=options).lines()
    return json_value("\n".join(line.text for line in lines), file)


def _parts(usable: list[str], file: DataFile) -> list[str]:
    """The names of the parts to read, out of those that are lists."""
    if file.options.part is not None:
        named = [name.strip() for name in file.options.part.split(",")]
        for name in named:
            if name not in usable:
                raise file.error(
                    f"there is no part {name!r} for data.part (found: {listed(usable)})"
                )
        return named
    if not usable:
        raise file.error("must hold a list of items, or one for each part, but holds none")
    if len(usable) > 1:
        raise file.error(
            f"has several parts ({listed(usable)}); say which to read, such as --set data.part={usable[0]}"
        )
    return usable


def _has_one_label(items: list[object]) -> bool:
    """Whether these are texts, or objects with a text in pieces."""
    return all(
        as_text(item) is not None or as_list(field_of(item, "data")) is not None for item in items
    )


def _joined_text(item: object, file: DataFile, number: int) -> str:
    text = as_text(item)
    if text is not None:
        return text
    pieces = [as_text(field_of(piece, "text")) for piece in as_list(field_of(item, "data")) or ()]
    if None in pieces:
        raise file.error("each piece of `data` must be an object with a text", number)
    return "".join(filter(None, pieces))
