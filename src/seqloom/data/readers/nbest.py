"""Lists of hypotheses (n-best lists) from JSONL or tables, and back.

    .jsonl    one list a line: {"id": "a1", "ref": "...", "nbest": [{"text": "...", "score": -3.1}, ...]}
    .tsv      one hypothesis a row below a header with the columns id and text; the rows of a list stand together

`ref` (or `reference`) may be missing; an empty cell is none. All other fields and columns are kept. A text
may be empty.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import lines_of, listed, writable
from seqloom.data.formats.jsonl import json_object, kind_of
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import TableRow, read_rows
from seqloom.data.readers.records import FORMS
from seqloom.errors import DataError, UsageError, printable
from seqloom.files import json_line

REFERENCES = ("ref", "reference")
FIRST_FIELDS = ("id", "nbest", *REFERENCES)
"""Fields of a list that are not just kept."""
LARGEST = 1e100
"""The largest size of a score or a weight: sums of their products, and squares, stay finite."""


@final
@dataclass(frozen=True, kw_only=True)
class NBest:
    """The hypotheses for one input, in the given order; at least one."""

    id: str | int
    texts: tuple[str, ...]
    fields: tuple[dict[str, Any], ...]
    """Of each hypothesis what else was given, without its text."""
    scores: tuple[float, ...] | None
    """Of each hypothesis the given score."""
    reference: str | None
    others: dict[str, Any]
    """What else was given of the list."""
    path: str
    line: int
    """Where it begins."""
    text_field: str = "text"
    """The name under which a hypothesis has its text."""


def read_nbest(
    path: str, options: DataConfig, report: ReadReport, score: str | None = None
) -> Iterator[NBest]:
    """The lists of a file (`.jsonl`, `.tsv`, `.csv`, also `.gz`) or of `-`, standard input, which is JSONL
    unless data.format says other.

    `score` names the field of the given score; by default it is `score` where the first hypothesis has that.
    Then all must have it.

    Raises DataError for what is no such list, naming file and line, or where there is none; UsageError for a
    form that holds none.
    """
    form = _form(path, options)
    lists = (
        _json_lists(path, options, report) if form == "jsonl" else _table_lists(path, form, options, report)
    )
    field = score
    first = True
    try:
        for one, lines in lists:
            if first and field is None and "score" in one.fields[0]:
                field = "score"
            first = False
            if form != "jsonl" and field is not None:
                one = replace(one, fields=tuple(_with_number(fields, field) for fields in one.fields))
            yield replace(one, scores=None if field is None else _scores(one, field, lines))
    except DataError as error:
        report.rejected += error.line is not None
        raise
    if first:
        what = (
            "one line of JSON must be one list"
            if form == "jsonl"
            else "each row below the header must be one hypothesis"
        )
        raise DataError(f"there are no lists of hypotheses in it; {what}: see docs/rescoring.md", path)


def _form(path: str, options: DataConfig) -> str:
    name = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    form = (
        options.format if options.format != "auto" else "jsonl" if path == "-" else FORMS.get(name, "unknown")
    )
    if form not in ("jsonl", "tsv", "csv"):
        shown = printable(name) or "no suffix"
        what = (
            f"its name has {shown}"
            if form == "unknown" or options.format == "auto"
            else f"data.format is {form}"
        )
        raise UsageError(
            f"{printable(path)}: n-best lists must be .jsonl or .tsv, but {what}; say which with --set"
            " data.format=jsonl"
        )
    return form


def _scores(one: NBest, field: str, lines: Sequence[int]) -> tuple[float, ...]:
    for number, (fields, line) in enumerate(zip(one.fields, lines, strict=True), start=1):
        value = fields.get(field)
        if field not in fields:
            raise DataError(
                f"hypothesis {number} of list {one.id!r} has no {field!r} (found:"
                f" {listed([one.text_field, *fields])}); give it to all, or name another field with --score"
                " FIELD",
                one.path,
                line,
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            most = f" of size {LARGEST:g} at most" if type(value) in (int, float) else ""
            shown = repr(value) if isinstance(value, str | int | float) else kind_of(value)
            raise DataError(
                f"{field!r} of hypothesis {number} of list {one.id!r} must be a finite number{most}, but is"
                f" {printable(shown[:40])}; correct it, or name another field with --score FIELD",
                one.path,
                line,
            )
    return tuple(float(fields[field]) for fields in one.fields)


Found = tuple[NBest, Sequence[int]]
"""A list, without scores yet, and the line of each of its hypotheses."""


def _json_lists(path: str, options: DataConfig, report: ReadReport) -> Iterator[Found]:
    name = options.text or "text"
    for line in lines_of(path, options, report):
        if line.problem is not None or not line.text.strip():
            report.skip(line.problem or "blank", path, line.number)
            continue
        content = json_object(line.text, path, line.number)
        hypotheses = _hypotheses(content, name, path, line.number)
        reference = next((content[key] for key in REFERENCES if content.get(key) is not None), None)
        if reference is not None and not isinstance(reference, str):
            raise DataError(f"the reference must be a text, but is {kind_of(reference)}", path, line.number)
        given = content.get("id", line.number)
        if isinstance(given, bool) or not isinstance(given, str | int):
            raise DataError(
                f"'id' must be a text or a whole number, but is {kind_of(given)}", path, line.number
            )
        texts = [one[name] for one in hypotheses]
        kept = writable(
            texts if reference is None else [*texts, reference], options, report, path, line.number
        )
        if kept is None:
            continue
        report.used += 1
        found = NBest(
            id=given,
            texts=tuple(kept[: len(texts)]),
            fields=tuple({key: value for key, value in one.items() if key != name} for one in hypotheses),
            scores=None,
            reference=None if reference is None else kept[-1],
            others={key: value for key, value in content.items() if key not in FIRST_FIELDS},
            path=path,
            line=line.number,
            text_field=name,
        )
        yield found, [line.number] * len(texts)


def _hypotheses(content: dict[str, Any], name: str, path: str, line: int) -> list[dict[str, Any]]:
    if "nbest" not in content:
        raise DataError(
            f"there is no 'nbest', the list of hypotheses, in this object (found: {listed(list(content))})",
            path,
            line,
        )
    found = content["nbest"]
    if not isinstance(found, list):
        raise DataError(f"'nbest' must be a list of hypotheses, but is {kind_of(found)}", path, line)
    if not found:
        raise DataError(
            "'nbest' must hold at least one hypothesis, but is empty; leave the line out, or give it"
            ' {"text": ""}',
            path,
            line,
        )
    for number, one in enumerate(found, start=1):
        if not isinstance(one, dict):
            raise DataError(
                f"hypothesis {number} must be an object with {name!r}, but is {kind_of(one)}", path, line
            )
        if not isinstance(one.get(name), str):
            what = (
                f"its {name!r} is {kind_of(one[name])}"
                if name in one
                else f"it has none (found: {listed(list(one))})"
            )
            raise DataError(
                f"hypothesis {number} must have a text under {name!r}, but {what}; an empty one is written"
                ' as ""',
                path,
                line,
            )
    return found


def _table_lists(path: str, form: str, options: DataConfig, report: ReadReport) -> Iterator[Found]:
    delimiter = (options.delimiter or ("," if form == "csv" else "\t")).replace("\\t", "\t")
    quoting = form == "csv" if options.quoting is None else options.quoting
    rows = read_rows(lines_of(path, options, report), path, delimiter, quoting, options.max_line_bytes)
    head = next(rows)
    name = options.text or "text"
    _check_header(head, name, delimiter, path)
    seen: dict[str, int] = {}
    some: list[tuple[int, dict[str, str]]] = []
    for row in rows:
        if row.problem is not None or (len(row.cells) == 1 and not row.cells[0].strip()):
            report.skip(row.problem or "blank", path, row.line)
            continue
        if len(row.cells) != len(head.cells):
            raise DataError(
                f"the row must have {len(head.cells)} cells like the header, but has {len(row.cells)}",
                path,
                row.line,
            )
        cells = dict(zip(head.cells, row.cells, strict=True))
        if some and some[0][1]["id"] != cells["id"]:
            yield _table_list(some, name, path)
            some = []
        if not some:
            if cells["id"] in seen:
                where = (
                    f"but {printable(cells['id'])!r} began in line {seen[cells['id']]} already; sort the rows"
                    " by id"
                )
                raise DataError(f"the rows of a list must stand together, {where}", path, row.line)
            seen[cells["id"]] = row.line
        report.used += 1
        some.append((row.line, cells))
    if some:
        yield _table_list(some, name, path)


def _check_header(head: TableRow, name: str, delimiter: str, path: str) -> None:
    if head.problem is not None:
        raise DataError(
            f"the first row names the columns, but it has a problem: {head.problem}", path, head.line
        )
    missing = [column for column in ("id", name) if column not in head.cells]
    if missing:
        raise DataError(
            f"the first row must name the columns, divided by {delimiter!r}, with 'id' and {name!r} among"
            f" them, but lacks {listed(missing)} (found: {listed([cell[:60] for cell in head.cells])})",
            path,
            head.line,
        )
    twice = next((cell for cell in head.cells if head.cells.count(cell) > 1), None)
    if twice is not None:
        raise DataError(
            f"each column must have a name of its own, but {twice!r} stands twice; rename one",
            path,
            head.line,
        )


def _table_list(some: Sequence[tuple[int, dict[str, str]]], name: str, path: str) -> Found:
    first = some[0][1]
    column = next((key for key in REFERENCES if key in first), None)
    reference = None if column is None else first[column]  # an empty cell: there is none
    for line, cells in some:
        if column is not None and cells[column] != reference:
            raise DataError(
                f"a list must have one reference, but the {column!r} of this row is another than in line"
                f" {some[0][0]}",
                path,
                line,
            )
    found = NBest(
        id=first["id"],
        texts=tuple(cells[name] for _, cells in some),
        fields=tuple(
            {key: number_in(cell) for key, cell in cells.items() if key not in ("id", name, column)}
            for _, cells in some
        ),
        scores=None,
        reference=reference or None,
        others={},
        path=path,
        line=some[0][0],
        text_field=name,
    )
    return found, [line for line, _ in some]


def number_in(cell: str) -> int | float | str:
    """What a cell of a table holds: a finite number only where that is written again as it stands, so 1.5 but
    not 1.50."""
    number = _finite(cell)
    if number is None:
        return cell
    return int(cell) if re.fullmatch("0|-?[1-9][0-9]*", cell) else number if str(number) == cell else cell


def _with_number(fields: dict[str, Any], field: str) -> dict[str, Any]:
    """The fields of a table's row, the score a number however it is written."""
    value = fields.get(field)
    number = _finite(value) if isinstance(value, str) else None
    return fields if number is None else fields | {field: number}


def _finite(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in cell else None


def json_list(one: NBest) -> str:
    """The list as a line of JSON, as `read_nbest` reads it."""
    hypotheses = [
        {one.text_field: text, **fields} for text, fields in zip(one.texts, one.fields, strict=True)
    ]
    reference = {} if one.reference is None else {"ref": one.reference}
    return json_line({"id": one.id, **reference, **one.others, "nbest": hypotheses})


def table(lists: Sequence[NBest]) -> Iterator[str]:
    """The lines of a TSV file, the header first. A hypothesis's own field goes before one of the same name of
    its list.

    Raises DataError where a text holds a tab or a line break, which have no place in it.
    """
    referenced = any(one.reference is not None for one in lists)
    others = list(dict.fromkeys(key for one in lists for key in one.others))
    names = list(
        dict.fromkeys(key for one in lists for fields in one.fields for key in fields if key not in others)
    )
    header = ["id", lists[0].text_field, *names, *others, *(["ref"] if referenced else [])]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(
            f"a hypothesis has a field {twice!r} of its own, which a .tsv cannot hold; name an --output"
            " .jsonl",
            lists[0].path,
        )
    yield "\t".join(header)
    for one in lists:
        for text, fields in zip(one.texts, one.fields, strict=True):
            kept = [
                *(fields.get(key, "") for key in names),
                *(fields.get(key, one.others.get(key, "")) for key in others),
            ]
            cells = [
                str(one.id),
                text,
                *(cell if isinstance(cell, str) else json_line(cell) for cell in kept),
            ]
            cells += [one.reference or ""] if referenced else []
            if any(character in cell for cell in cells for character in "\t\r\n"):
                raise DataError(
                    "a tab or a line break stands in this list, which a .tsv cannot hold; name an --output"
                    " .jsonl",
                    one.path,
                    one.line,
                )
            yield "\t".join(cells)


Form = Literal["jsonl", "tsv"]


def written(lists: Sequence[NBest], form: Form) -> str:
    """The lists as the content of a file."""
    lines = table(lists) if form == "tsv" else map(json_list, lists)
    return "".join(f"{line}\n" for line in lines)
