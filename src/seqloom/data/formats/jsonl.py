"""JSON, one object a line, to rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial

from seqloom.data.formats.columns import Header, Row, TableSchema
from seqloom.data.formats.data_file import DataFile
from seqloom.json_values import JsonObject, as_object, kind_of


def read_json_lines(file: DataFile, schema: TableSchema) -> Iterator[Row]:
    return rows_of_objects(json_objects(file), file, schema)


def json_objects(file: DataFile) -> Iterator[tuple[int, JsonObject]]:
    """The objects of a file with their lines."""
    for line in file.full_lines():
        read = partial(json_object, line.text, file, line.number)
        for content in file.usable(read, "not a JSON object", line.number):
            yield line.number, content


def rows_of_objects(
    objects: Iterable[tuple[int, JsonObject]], file: DataFile, schema: TableSchema
) -> Iterator[Row]:
    """A row for each object. The first one that has the columns shows which they are."""
    columns: dict[str, str] | None = None
    for line, content in objects:
        content = _unwrapped(content, file, schema)
        header = Header(list(content), file, line)
        if columns is None:
            columns = schema.choose(header)
        chosen = {**columns, **schema.optional_columns(header)}
        yield from file.usable(partial(_row, content, chosen, header), "a field is missing", line)


def _unwrapped(content: JsonObject, file: DataFile, schema: TableSchema) -> JsonObject:
    """With the fields of the inner object in place of it."""
    inner = as_object(content.get(schema.inside))
    if inner is None or file.options.source in content:
        return content
    others = {name: value for name, value in content.items() if name != schema.inside}
    return inner if schema.of_pairs else {**others, **inner}


def _row(content: JsonObject, columns: dict[str, str], header: Header) -> Row:
    assert header.line is not None
    values: dict[str, object] = {}
    for role, name in columns.items():
        parts = [name] if name in content else [part.strip() for part in name.split(",")]
        for part in parts:
            if part not in content and header.file.options.on_bad_line != "skip":
                raise header.missing(part, f"{part!r} in this object")
        found = tuple(content.get(part) for part in parts)
        values[role] = found[0] if len(found) == 1 else found
    return Row(values, columns, header.file, header.line)


def json_object(text: str, file: DataFile, line: int) -> JsonObject:
    """The object that a line of JSONL holds. Raises DataError for anything that Python's parser would accept
    but should not."""
    match json_value(text, file, line):
        case dict() as content:
            return content
        case list():
            raise file.error(_several_lines(True), line)
        case other:
            raise file.error(f"must be a JSON object, but is {kind_of(other)}", line)


def json_value(text: str, file: DataFile, line: int | None = None) -> object:
    """The value that a line holds, or a whole file. Raises DataError as `json_object` does."""
    try:
        content: object = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise file.error(_syntax_message(error, text, line), line or error.lineno) from None
    except RecursionError:
        raise file.error("is JSON nested too deeply to be read", line) from None
    except ValueError as error:
        raise file.error(f"is not JSON that can be used: {error}", line) from None
    return content


def _syntax_message(error: json.JSONDecodeError, text: str, line: int | None) -> str:
    hint = ""
    if line is not None:
        array = line == 1 and text.lstrip().startswith("[")
        if array or text.strip() == "{":
            return _several_lines(array)
        hint = "; every line must be one whole object"
    elif error.msg == "Extra data":
        hint = "; one object a line is JSONL: --set data.format=jsonl"
    return f"is not JSON at column {error.colno}: {error.msg}{hint}"


def _several_lines(array: bool) -> str:
    what, query = ("an array", "'.[]'") if array else ("an object over several lines", ".")
    return f"must be one JSON object a line, but is {what}; convert it with: jq -c {query} FILE"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice"
        )
    return content


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:30]} is too large")
    return number


def _integer(digits: str) -> int:
    if len(digits) > 4000:  # Python's own limit guards against quadratic time
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)
