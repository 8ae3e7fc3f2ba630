"""JSON files that are one value, not one a line: rows, rows by part (train, test, ...), or rows by label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record, Wanted, listed, writable
from seqloom.data.formats.jsonl import json_value, kind_of, object_record
from seqloom.data.formats.lines import scan_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError

MOST_BYTES = 2**28
"""A longer line is an error: all of the file is in memory."""


def read_json_document(
    path: str, options: DataConfig, report: ReadReport, wanted: Wanted
) -> Iterator[Record]:
    """The records of the parts that `data.part` names, of all where there is one or where they are labels;
    `line` is the number of the item in its part.

    An item is an object, as in JSONL, or `[text, label]`. Of labels (`{"Weather": [...]}`) an item is a text,
    or an object whose `data` holds the text in pieces (snips): its key is the label.
    """
    content = read_document(path, options, report)
    parts: dict[str, Any] = content if isinstance(content, dict) else {"": content}
    if options.part is None and all(_is_spoken(value) for value in parts.values()):
        for label, items in parts.items():
            for number, item in enumerate(items, start=1):
                text = (
                    item
                    if isinstance(item, str)
                    else "".join(_piece(one, path, number) for one in item["data"])
                )
                yield from _plain_record(text, label, options, report, path, number, wanted)
        return
    for name in _parts(parts, options, path):
        columns: dict[str, str] | None = None
        for number, item in enumerate(parts[name], start=1):
            if isinstance(item, dict):
                if columns is None:
                    columns = wanted.choose(list(item), options, report, path, number)
                yield from object_record(item, columns, options, report, path, number, wanted)
            elif isinstance(item, list) and len(item) == 2 and all(isinstance(one, str) for one in item):
                yield from _plain_record(item[0], item[1], options, report, path, number, wanted)
            else:
                raise DataError(
                    f"an item must be an object or [text, label], but is {kind_of(item)}", path, number
                )


def read_document(path: str, options: DataConfig, report: ReadReport) -> Any:
    """The value that a whole file holds. Raises DataError for what is no text or no JSON that can be used."""
    if options.on_bad_line == "skip":
        raise UsageError("a JSON file has no lines to skip: take data.on_bad_line=error or replace")
    most = max(options.max_line_bytes, MOST_BYTES)
    lines = scan_lines(
        path, report, encoding=options.encoding, on_bad_line=options.on_bad_line, max_line_bytes=most
    )
    return json_value("\n".join(line.text for line in lines), path)


def _parts(parts: dict[str, Any], options: DataConfig, path: str) -> list[str]:
    usable = [name for name, value in parts.items() if isinstance(value, list)]
    named = [] if options.part is None else [name.strip() for name in options.part.split(",")]
    wrong = next((name for name in named if name not in usable), None)
    if wrong is not None:
        raise DataError(f"there is no part {wrong!r} for data.part (found: {listed(usable)})", path)
    if not named and len(usable) != 1:
        if not usable:
            raise DataError("must hold a list of items, or one for each part, but holds none", path)
        raise DataError(
            f"has several parts ({listed(usable)}); say which to read, such as --set data.part={usable[0]}",
            path,
        )
    return named or usable


def _is_spoken(value: Any) -> bool:
    """Whether these are texts of one label."""
    if not isinstance(value, list):
        return False
    return all(
        isinstance(one, str) or (isinstance(one, dict) and isinstance(one.get("data"), list)) for one in value
    )


def _piece(one: Any, path: str, number: int) -> str:
    if not isinstance(one, dict) or not isinstance(one.get("text"), str):
        raise DataError("each piece of `data` must be an object with a text", path, number)
    return str(one["text"])


def _plain_record(
    text: str, label: str, options: DataConfig, report: ReadReport, path: str, number: int, wanted: Wanted
) -> Iterator[Record]:
    if (kept := writable([text, label], options, report, path, number)) is not None:
        yield from wanted.record({"text": kept[0], "label": kept[1]}, path, number, report)
