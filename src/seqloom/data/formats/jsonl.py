"""JSON, one object a line, to records."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from seqloom.config import DataConfig
from seqloom.data.formats.columns import PAIR, UNIT, Record, Wanted, lines_of, listed, writable
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError


def read_json_lines(
    path: str, options: DataConfig, report: ReadReport, wanted: Wanted = PAIR
) -> Iterator[Record]:
    columns: dict[str, str] | None = None
    for line in lines_of(path, options, report):
        if line.problem is not None or not line.text.strip():
            report.skip(line.problem or "blank", path, line.number)
            continue
        content = json_object(line.text, path, line.number)
        inner = content.get("translation")  # the form of Hugging Face's translation sets
        if wanted is PAIR and isinstance(inner, dict) and options.source not in content:
            content = inner
        if columns is None:
            columns = wanted.choose(list(content), options, report, path, line.number)
        yield from object_record(content, columns, options, report, path, line.number, wanted)


def object_record(
    content: dict[str, Any],
    columns: dict[str, str],
    options: DataConfig,
    report: ReadReport,
    path: str,
    line: int,
    wanted: Wanted,
) -> Iterator[Record]:
    """The record of a JSON object whose columns are known, if it makes one."""
    texts = {role: _text(content, name, path, line, role in wanted.loose) for role, name in columns.items()}
    if (kept := writable(list(texts.values()), options, report, path, line)) is not None:
        yield from wanted.record(dict(zip(texts, kept, strict=True)), path, line, report)


def _text(content: dict[str, Any], name: str, path: str, line: int, loose: bool) -> str:
    if name not in content:
        near = difflib.get_close_matches(name, content, n=1)
        hint = f"; nearest: {near[0]!r}" if near else ""
        raise DataError(
            f"there is no {name!r} in this object (found: {listed(list(content))}{hint})", path, line
        )
    value = content[name]
    if isinstance(value, str):
        return value
    text = loose_text(value) if loose else None
    if text is None:
        raise DataError(f"{name!r} must be a text, but is {kind_of(value)}", path, line)
    return text


def loose_text(value: object) -> str | None:
    """What is no text, as one: `2.5`, `true`, nothing for null, a list of such with UNIT between; None for
    anything else."""
    if isinstance(value, list):
        items = [None if isinstance(item, list) else loose_text(item) for item in value]
        return None if None in items else "".join(f"{item}{UNIT}" for item in items)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int, float)) else None


def kind_of(value: object) -> str:
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return kinds[type(value)]


def json_object(text: str, path: str, line: int) -> dict[str, Any]:
    """The object that a line of JSONL holds. Raises DataError for anything that Python's reader would take
    but should not."""
    try:
        content = _loaded(text)
    except json.JSONDecodeError as error:
        array = line == 1 and text.lstrip().startswith("[")
        if array or text.strip() == "{":
            raise DataError(_several_lines(array), path, line) from None
        raise DataError(
            f"is not JSON at column {error.colno}: {error.msg}; every line must be one whole object",
            path,
            line,
        ) from None
    except RecursionError:
        raise DataError("is JSON nested too deeply to be read", path, line) from None
    except ValueError as error:
        raise DataError(f"is not JSON that can be used: {error}", path, line) from None
    if isinstance(content, list):
        raise DataError(_several_lines(True), path, line)
    if not isinstance(content, dict):
        raise DataError(f"must be a JSON object, but is {kind_of(content)}", path, line)
    return content


def json_value(text: str, path: str) -> Any:
    """The value that a whole file holds. Raises DataError as `json_object` does."""
    try:
        return _loaded(text)
    except json.JSONDecodeError as error:
        hint = "; one object a line is JSONL: --set data.format=jsonl" if error.msg == "Extra data" else ""
        raise DataError(
            f"is not JSON at column {error.colno}: {error.msg}{hint}", path, error.lineno
        ) from None
    except RecursionError:
        raise DataError("is JSON nested too deeply to be read", path) from None
    except ValueError as error:
        raise DataError(f"is not JSON that can be used: {error}", path) from None


def _loaded(text: str) -> Any:
    return json.loads(
        text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer
    )


def _several_lines(array: bool) -> str:
    what, query = ("an array", "'.[]'") if array else ("an object over several lines", ".")
    return f"must be one JSON object a line, but is {what}; convert it with: jq -c {query} FILE"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
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
