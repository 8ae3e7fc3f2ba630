"""JSON, one object a line, to records."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator

from seqloom.data.formats.columns import Header, Record, TableSchema, listed
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.json_values import as_object, as_text, kind_of, loose_text
from seqloom.files import JsonObject


def read_json_lines(file: DataFile, schema: TableSchema) -> Iterator[Record]:
    columns: dict[str, str] | None = None
    for line, content in json_objects(file):
        inner = as_object(content.get("translation"))  # the form of Hugging Face's translation sets
        if schema.of_pairs and inner is not None and file.options.source not in content:
            content = inner
        if columns is None:
            columns = schema.choose(Header(list(content), file, line))
        yield from object_record(content, columns, file, line, schema)


def json_objects(file: DataFile) -> Iterator[tuple[int, JsonObject]]:
    """The objects of a file with their lines."""
    for line in file.full_lines():
        yield line.number, json_object(line.text, file, line.number)


def object_record(
    content: JsonObject, columns: dict[str, str], file: DataFile, line: int, schema: TableSchema
) -> Iterator[Record]:
    """The record of a JSON object whose columns are known, if it makes one."""
    fields = {}
    for role, name in columns.items():
        if name not in content:
            near = difflib.get_close_matches(name, content, n=1)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise file.error(
                f"there is no {name!r} in this object (found: {listed(list(content))}{hint})", line
            )
        value = content[name]
        text = loose_text(value) if role in schema.loose else as_text(value)
        if text is None:
            raise file.error(f"{name!r} must be a text, but is {kind_of(value)}", line)
        fields[role] = text
    return schema.records(fields, file, line)


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
