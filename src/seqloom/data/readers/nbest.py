"""Lists of hypotheses (n-best lists) from JSONL or tables, and back.

    .jsonl    one list a line: {"id": "a1", "ref": "...", "nbest": [{"text": "...", "score": -3.1}, ...]}
    .tsv      one hypothesis a row below a header with the columns id and text; the rows of a list are
              neighbours

`ref` (or `reference`) may be missing; an empty cell is none. All other fields and columns are kept. A text
may be empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import listed
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import ending, form_or
from seqloom.data.formats.json_values import as_list, as_object, as_text, is_number, kind_of
from seqloom.data.formats.jsonl import json_objects
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import DelimitedText, TableRow, refuse_repeated_names
from seqloom.errors import DataError, UsageError, printable
from seqloom.files import JsonObject, json_line

T = TypeVar("T")
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
    fields: tuple[JsonObject, ...]
    """Of each hypothesis what else was given, without its text."""
    scores: tuple[float, ...] | None
    """Of each hypothesis the given score."""
    reference: str | None
    others: JsonObject
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

    Raises DataError for what is not such a list, naming file and line, or where there is none; UsageError for
    a form that holds none.
    """
    form = _form(path, options)
    file = DataFile(path, options, report)
    lists = _of_json_lines(file) if form == "jsonl" else _of_table(file, form)
    what = "one line of JSON must be one list"
    if form != "jsonl":
        what = "each row below the header must be one hypothesis"
    first = True
    with report.reading(
        [path], f"there are no lists of hypotheses in it; {what}: see docs/rescoring.md"
    ):
        for one, lines in lists:
            if first and score is None and "score" in one.fields[0]:
                score = "score"
            first = False
            if score is None:
                yield one
                continue
            if form != "jsonl":
                one = replace(
                    one, fields=tuple(_with_number(fields, score) for fields in one.fields)
                )
            yield replace(one, scores=_scores(one, score, lines))


def _form(path: str, options: DataConfig) -> str:
    otherwise = "jsonl" if path == "-" else "unknown"
    form = form_or(otherwise, path, options)
    if form not in ("jsonl", "tsv", "csv"):
        what = f"data.format is {form}"
        if options.format == "auto":
            what = f"its name has {printable(ending(path)) or 'no suffix'}"
        raise UsageError(
            f"{printable(path)}: n-best lists must be .jsonl or .tsv, but {what}; say which with --set"
            " data.format=jsonl"
        )
    return form


def _scores(one: NBest, field: str, lines: Sequence[int]) -> tuple[float, ...]:
    scores = []
    for number, (fields, line) in enumerate(zip(one.fields, lines, strict=True), start=1):
        where = f"hypothesis {number} of list {one.id!r}"
        if field not in fields:
            raise DataError(
                f"{where} has no {field!r} (found: {listed([one.text_field, *fields])}); give it to all, or"
                " name another field with --score FIELD",
                one.path,
                line,
            )
        value = fields[field]
        if not is_number(value) or not abs(value) <= LARGEST:
            most = f" of size {LARGEST:g} at most" if is_number(value) else ""
            shown = repr(value) if type(value) in (str, bool, int, float) else kind_of(value)
            raise DataError(
                f"{field!r} of {where} must be a finite number{most}, but is {printable(shown[:40])}; correct"
                " it, or name another field with --score FIELD",
                one.path,
                line,
            )
        scores.append(float(value))
    return tuple(scores)


ListAndLines = tuple[NBest, Sequence[int]]
"""A list, without scores yet, and the line of each of its hypotheses."""


def _of_json_lines(file: DataFile) -> Iterator[ListAndLines]:
    name = file.options.text or "text"
    for line, content in json_objects(file):
        hypotheses = _hypotheses(content, name, file, line)
        references = _reference(content, file, line)
        given = content.get("id", line)
        if type(given) is not str and type(given) is not int:
            raise file.error(
                f"'id' must be a text or a whole number, but is {kind_of(given)}", line
            )
        texts = [text for text, _ in hypotheses]
        kept = file.clean([*texts, *references], line)
        if kept is None:
            continue
        file.report.used += 1
        reference = kept[-1] if references else None
        one = NBest(
            id=given,
            texts=tuple(kept[: len(texts)]),
            fields=tuple(fields for _, fields in hypotheses),
            scores=None,
            reference=reference,
            others=_without(content, FIRST_FIELDS),
            path=file.path,
            line=line,
            text_field=name,
        )
        yield one, [line] * len(texts)


def _reference(content: JsonObject, file: DataFile, line: int) -> list[str]:
    """The reference, if there is one."""
    for value in (content[key] for key in REFERENCES if content.get(key) is not None):
        text = as_text(value)
        if text is None:
            raise file.error(f"the reference must be a text, but is {kind_of(value)}", line)
        return [text]
    return []


def _without(content: Mapping[str, T], names: Sequence[str | None]) -> dict[str, T]:
    return {key: value for key, value in content.items() if key not in names}


def _hypotheses(
    content: JsonObject, name: str, file: DataFile, line: int
) -> list[tuple[str, JsonObject]]:
    """The text of each hypothesis, and its other fields."""
    if "nbest" not in content:
        raise file.error(
            f"there is no 'nbest', the list of hypotheses, in this object (found: {listed(list(content))})",
            line,
        )
    hypotheses = as_list(content["nbest"])
    if hypotheses is None:
        kind = kind_of(content["nbest"])
        raise file.error(f"'nbest' must be a list of hypotheses, but is {kind}", line)
    if not hypotheses:
        raise file.error(
            "'nbest' must hold at least one hypothesis, but is empty; leave the line out, or give it"
            ' {"text": ""}',
            line,
        )
    found: list[tuple[str, JsonObject]] = []
    for number, one in enumerate(hypotheses, start=1):
        fields = as_object(one)
        if fields is None:
            raise file.error(
                f"hypothesis {number} must be an object with {name!r}, but is {kind_of(one)}", line
            )
        text = as_text(fields.get(name))
        if text is None:
            what = f"it has none (found: {listed(list(fields))})"
            if name in fields:
                what = f"its {name!r} is {kind_of(fields[name])}"
            raise file.error(
                f"hypothesis {number} must have a text under {name!r}, but {what}; an empty one is written"
                ' as ""',
                line,
            )
        found.append((text, _without(fields, [name])))
    return found


def _of_table(file: DataFile, form: str) -> Iterator[ListAndLines]:
    text = DelimitedText.of(file, form)
    rows = text.rows(file.lines())
    head = next(rows)
    name = file.options.text or "text"
    _check_header(head, name, text)
    began: dict[str, int] = {}
    some: list[tuple[int, dict[str, str]]] = []
    for row in rows:
        if row.problem is not None or row.blank:
            file.skip(row.problem or "blank", row.line)
            continue
        if len(row.cells) != len(head.cells):
            raise file.error(
                f"the row must have {len(head.cells)} cells like the header, but has {len(row.cells)}",
                row.line,
            )
        cells = dict(zip(head.cells, row.cells, strict=True))
        if some and some[0][1]["id"] != cells["id"]:
            yield _list_of_rows(some, name, file)
            some = []
        if not some:
            first = began.setdefault(cells["id"], row.line)
            if first != row.line:
                raise file.error(
                    f"the rows of a list must stand together, but {printable(cells['id'])!r} began in line"
                    f" {first} already; sort the rows by id",
                    row.line,
                )
        file.report.used += 1
        some.append((row.line, cells))
    if some:
        yield _list_of_rows(some, name, file)


def _check_header(head: TableRow, name: str, text: DelimitedText) -> None:
    if head.problem is not None:
        raise text.file.error(
            f"the first row names the columns, but it has a problem: {head.problem}", head.line
        )
    missing = [column for column in ("id", name) if column not in head.cells]
    if missing:
        found = listed([cell[:60] for cell in head.cells])
        raise text.file.error(
            f"the first row must name the columns, divided by {text.delimiter!r}, with 'id' and {name!r}"
            f" among them, but lacks {listed(missing)} (found: {found})",
            head.line,
        )
    refuse_repeated_names(head, text.file)


def _list_of_rows(
    rows: Sequence[tuple[int, dict[str, str]]], name: str, file: DataFile
) -> ListAndLines:
    first_line, first = rows[0]
    column = next((key for key in REFERENCES if key in first), None)
    reference = None if column is None else first[column]  # an empty cell: there is none
    for line, cells in rows:
        if column is not None and cells[column] != reference:
            raise file.error(
                f"a list must have one reference, but the {column!r} of this row is another than in line"
                f" {first_line}",
                line,
            )
    fields: list[JsonObject] = []
    for _, cells in rows:
        others = _without(cells, ("id", name, column))
        fields.append({key: number_in(cell) for key, cell in others.items()})
    one = NBest(
        id=first["id"],
        texts=tuple(cells[name] for _, cells in rows),
        fields=tuple(fields),
        scores=None,
        reference=reference or None,
        others={},
        path=file.path,
        line=first_line,
        text_field=name,
    )
    return one, [line for line, _ in rows]


def number_in(cell: str) -> int | float | str:
    """What a cell of a table holds: a finite number only where that is written again as it stands, so 1.5 but
    not 1.50."""
    number = _finite(cell)
    if number is None:
        return cell
    return (
        int(cell)
        if re.fullmatch("0|-?[1-9][0-9]*", cell)
        else number
        if str(number) == cell
        else cell
    )


def _with_number(fields: JsonObject, field: str) -> JsonObject:
    """The fields of a table's row, the score a number however it is written."""
    number = _finite(as_text(fields.get(field)) or "")
    return fields if number is None else {**fields, field: number}


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
    references = ["ref"] if any(one.reference is not None for one in lists) else []
    others = list(dict.fromkeys(key for one in lists for key in one.others))
    fields = dict.fromkeys(key for one in lists for fields in one.fields for key in fields)
    names = [key for key in fields if key not in others]
    header = ["id", lists[0].text_field, *names, *others, *references]
    for name in header:
        if header.count(name) > 1:
            raise DataError(
                f"a hypothesis has a field {name!r} of its own, which a .tsv cannot hold; name an --output"
                " .jsonl",
                lists[0].path,
            )
    yield "\t".join(header)
    for one in lists:
        for text, own in zip(one.texts, one.fields, strict=True):
            values = {**one.others, **own, **dict.fromkeys(references, one.reference or "")}
            cells = [str(one.id), text]
            for key in (*names, *others, *references):
                value = values.get(key, "")
                cell = as_text(value)
                if cell is None:
                    cell = json_line(value)
                cells.append(cell)
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
