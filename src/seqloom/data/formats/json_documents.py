"""JSON files that are one value, not one a line: rows, columns, rows by part (train), or by label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from seqloom.data.formats.columns import Row, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.jsonl import json_value, rows_of_objects
from seqloom.errors import quoted
from seqloom.json_values import JsonObject, as_list, as_object, as_text, field_of, kind_of

MOST_BYTES = 2**28
"""A longer line is an error: the whole file is in memory."""


def read_json_document(file: DataFile, schema: TableSchema) -> Iterator[Row]:
    """The rows of the parts that `data.part` names, of all where there is one or where they are labels;
    `line` is the number of the item in its part.

    An item is an object, as in JSONL, or a list of what the schema's `items` say, such as `[text, label]`. Of
    labels (`{"Weather": [...]}`) an item is a text, or an object whose `data` holds the text in pieces
    (snips): its key is the label.
    """
    return rows_of_document(read_document(file), file, schema)


def rows_of_document(content: object, file: DataFile, schema: TableSchema) -> Iterator[Row]:
    whole = as_object(content)
    parts = {"": content} if whole is None else whole
    lists = {name: items for name, value in parts.items() if (items := as_list(value)) is not None}
    if file.options.part is None and len(schema.known & lists.keys()) > 1:
        yield from rows_of_objects(
            _objects(_items_of_columns(lists, file), file, schema), file, schema
        )
        return
    by_label = len(lists) == len(parts) and all(map(_has_one_label, lists.values()))
    if by_label and file.options.part is None and schema.items == ("text", "label"):
        for label, items in lists.items():
            for number, item in enumerate(items, start=1):
                read = partial(_joined_text, item, file, number)
                for text in file.usable(read, "a piece without a text", number):
                    yield Row({"text": text, "label": label}, {}, file, number)
        return
    for name in _parts(list(lists), file):
        yield from rows_of_objects(_objects(lists[name], file, schema), file, schema)


def _items_of_columns(columns: dict[str, list[object]], file: DataFile) -> list[object]:
    """The rows of a table that is written as a list for each column, such as pandas' to_dict("list")."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r}: {length:,}" for name, length in list(lengths.items())[:5])
        raise file.error(f"the lists of a table's columns must have one length, but have {shown}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _objects(
    items: list[object], file: DataFile, schema: TableSchema
) -> Iterator[tuple[int, JsonObject]]:
    """The items of a part with their numbers; a list becomes an object."""
    for number, item in enumerate(items, start=1):
        for content in file.usable(partial(_object, item, file, number, schema), "no item", number):
            yield number, content


def _object(item: object, file: DataFile, number: int, schema: TableSchema) -> JsonObject:
    match item:
        case dict():
            return item
        case list() if len(item) == len(schema.items):
            return dict(zip(schema.items, item, strict=True))
        case str() if len(schema.items) == 1:
            return {schema.items[0]: item}
    or_list = f" or [{', '.join(schema.items)}]" if schema.items else ""
    raise file.error(f"an item must be an object{or_list}, but is {kind_of(item)}", number)


def read_document(file: DataFile) -> object:
    """The value that a whole file holds. Raises DataError for what is not text or not JSON that can be
    used: its items may be skipped, but no line of it."""
    options = replace(file.options, max_line_bytes=max(file.options.max_line_bytes, MOST_BYTES))
    if options.on_bad_line == "skip":
        options = replace(options, on_bad_line="error")
    lines = replace(file, options=options).lines()
    return json_value("\n".join(line.text for line in lines), file)


def _parts(usable: list[str], file: DataFile) -> list[str]:
    """The names of the parts to read, out of those that are lists."""
    if file.options.part is not None:
        named = [name.strip() for name in file.options.part.split(",")]
        for name in named:
            if name not in usable:
                raise file.error(
                    f"there is no part {name!r} for data.part (found: {quoted(usable)})"
                )
        return named
    if not usable:
        raise file.error("must hold a list of items, or one for each part, but holds none")
    if len(usable) > 1:
        raise file.error(
            f"has several parts ({quoted(usable)}); say which to read, such as --set data.part={usable[0]}"
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
