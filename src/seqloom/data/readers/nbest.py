"""Lists of hypotheses (n-best lists) from JSONL, tables or Moses' form, and back.

    .jsonl    one list a line: {"id": "a1", "ref": "...", "nbest": [{"text": "...", "score": -3.1}, ...]}
    .tsv      one hypothesis a row below a header with the columns id and text; the rows of a list are
              neighbours
    .nbest    one hypothesis a line, as in Moses and Marian: id ||| text ||| features ||| score

`ref` (or `reference`) may be missing; an empty cell is none. All other fields and columns are kept. A text
may be empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from typing import TypeVar, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Header, TableSchema, full_record
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import ending, form_or, read_rows
from seqloom.data.formats.jsonl import json_objects
from seqloom.data.formats.lines import Line
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.records import refuse_pipe
from seqloom.errors import DataError, UsageError, printable, quoted, shown
from seqloom.files import json_line, open_binary
from seqloom.json_values import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    field_of,
    is_number,
    kind_of,
)

T = TypeVar("T")
REFERENCES = ("ref", "reference")
FIRST_FIELDS = ("id", "nbest", *REFERENCES)
"""Fields of a list that are not just kept."""
BAR, MOSES_ENDING = "|||", ".nbest"
MOSES_FIELDS = ("features", "score", "phrase_alignment", "word_alignment")
"""What follows the text of a hypothesis in Moses' form; from the end some may be missing."""
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
    lines: tuple[int, ...]
    """Where each hypothesis is."""
    text_field: str = "text"
    """The name under which a hypothesis has its text."""

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.lines[0]


def read_nbest(
    path: str, options: DataConfig, report: ReadReport, score: str | None = None
) -> Iterator[NBest]:
    """The lists of a file (`.jsonl`, `.nbest`, or a table, also `.gz`) or of `-`, standard input, which is
    JSONL unless data.format says other.

    `score` names the field of the given score; by default it is `score` where the first hypothesis has that.
    Then all must have it.

    Raises DataError for what is not such a list, naming file and line, or if there is none; with
    `data.on_bad_line=skip` such lists are counted and left out. Raises UsageError for a form that holds none.
    """
    form = _form(path, options)
    file = DataFile(path, options, report)
    reason = "list of hypotheses that is not as it must be"
    first = True
    nothing = f"there are no lists of hypotheses in it; {_WHAT_IS_ONE[form]}: see docs/rescoring.md"
    with report.reading([path], nothing):
        for line, make in _of_json_lines(file) if form == "jsonl" else _of_rows(file, form):
            for nbest in file.usable(make, reason, line):
                if nbest is None:
                    continue
                if first and score is None and "score" in nbest.fields[0]:
                    score = "score"
                first = False
                add_scores = partial(_scored, nbest, score, in_cells=form != "jsonl")
                for scored in file.usable(add_scores, reason, line):
                    report.used += 1 if form == "jsonl" else len(nbest.texts)
                    yield scored


_ROW = "each row below the header must be one hypothesis"
_WHAT_IS_ONE = {
    "jsonl": "one line of JSON must be one list",
    "moses": "each line must be one hypothesis",
    **dict.fromkeys(("tsv", "csv", "parquet"), _ROW),
}
"""Form -> what a line of it is."""


def _form(path: str, options: DataConfig) -> str:
    form = form_or("jsonl" if path == "-" else "unknown", path, options)
    if form == "unknown" and (ending(path) == MOSES_ENDING or _looks_like_moses(path)):
        form = "moses"
    if form not in _WHAT_IS_ONE:
        raise UsageError(
            f"{printable(path)}: n-best lists must be .jsonl, .tsv or .nbest, but the form is {form}; say"
            " which with --set data.format=jsonl (or tsv, moses)"
        )
    return form


def _looks_like_moses(path: str) -> bool:
    refuse_pipe(path)
    with open_binary(path) as opened:
        return f" {BAR} ".encode() in opened.readline(4096)


def _scored(nbest: NBest, field: str | None, *, in_cells: bool) -> NBest:
    """With the score of each hypothesis, if that has a field; in a cell it is a number however it is
    written."""
    if field is None:
        return nbest
    if in_cells:
        nbest = replace(nbest, fields=tuple(_with_number(fields, field) for fields in nbest.fields))
    scores = []
    for number, (fields, line) in enumerate(zip(nbest.fields, nbest.lines, strict=True), start=1):
        value = fields.get(field)
        if not is_number(value) or not abs(value) <= LARGEST:
            is_what = shown(repr(value)) if field in fields else "missing"
            raise DataError(
                f"{field!r} of hypothesis {number} of list {nbest.id!r} must be a finite number of size"
                f" {LARGEST:g} at most, but is {is_what} (found: {quoted([nbest.text_field, *fields])});"
                " correct it, or name another field with --score FIELD",
                nbest.path,
                line,
            )
        scores.append(float(value))
    return replace(nbest, scores=tuple(scores))


Make = Callable[[], "NBest | None"]
"""Makes a list of what was read, without scores yet; None if it is left out."""


def _of_json_lines(file: DataFile) -> Iterator[tuple[int, Make]]:
    for line, content in json_objects(file):
        yield line, partial(_of_object, content, file, line)


def _of_object(content: JsonObject, file: DataFile, line: int) -> NBest | None:
    name = file.options.text or "text"
    hypotheses, given = as_list(content.get("nbest")), content.get("id", line)
    if not hypotheses:
        found = "empty" if hypotheses == [] else kind_of(content.get("nbest"))
        raise file.error(
            f"'nbest' must be a list of hypotheses, but is {found} (found: {quoted(list(content))}); one"
            ' without words is {"text": ""}',
            line,
        )
    if type(given) is not str and type(given) is not int:
        raise file.error(f"'id' must be a text or a whole number, but is {kind_of(given)}", line)
    # The last text is the reference.
    texts = [as_text(field_of(hypothesis, name)) for hypothesis in hypotheses]
    others = [key for key in REFERENCES if content.get(key) is not None]
    texts += [as_text(content[key]) for key in others[:1]]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        number = texts.index(None)
        wrong = [*hypotheses, *(content[key] for key in others)][number]
        what = f"hypothesis {number + 1} must be an object with a text under {name!r}"
        if number == len(hypotheses):
            what = f"{others[0]!r} must be a text"
        raise file.error(f"{what}, but is {shown(json_line(wrong))}", line)
    kept = file.clean(known, line)
    if kept is None:
        return None
    return NBest(
        id=given,
        texts=tuple(kept[: len(hypotheses)]),
        fields=tuple(_without(as_object(hypothesis) or {}, [name]) for hypothesis in hypotheses),
        scores=None,
        reference=kept[-1] if others else None,
        others=_without(content, FIRST_FIELDS),
        path=file.path,
        lines=(line,) * len(hypotheses),
        text_field=name,
    )


def _without(content: Mapping[str, T], names: Sequence[str | None]) -> dict[str, T]:
    return {key: value for key, value in content.items() if key not in names}


def _of_rows(file: DataFile, form: str) -> Iterator[tuple[int, Make]]:
    """Lists of hypotheses that have a row each: neighbours with the same id."""
    began: dict[str, int] = {}
    rows = _moses_rows(file) if form == "moses" else _table_rows(file, form)
    for name, group in groupby(rows, key=lambda row: row[1]["id"]):
        rows_of_list = list(group)
        line = rows_of_list[0][0]
        yield line, partial(_of_neighbours, rows_of_list, began.setdefault(name, line), file)


def _table_rows(file: DataFile, form: str) -> Iterator[tuple[int, dict[str, str]]]:
    name = file.options.text or "text"

    def every_column(header: Header) -> dict[str, str]:
        missing = [column for column in ("id", name) if column not in header.names]
        if missing:
            found = quoted([column[:60] for column in header.names])
            raise header.error(
                f"the first row must name the columns, with 'id' and {name!r} among them, but lacks"
                f" {quoted(missing)} (found: {found})"
            )
        return {column: column for column in header.names}

    schema = TableSchema(
        choose=every_column, record=full_record, settings=(), known=frozenset(), headerless=()
    )
    with_header = replace(file, options=replace(file.options, header=True))
    for row in read_rows(with_header, form, schema):
        yield row.line, {column: row.text(column, loose=True) for column in row.values}


def _moses_rows(file: DataFile) -> Iterator[tuple[int, dict[str, str]]]:
    for line in file.full_lines():
        yield from file.usable(
            partial(_moses_row, line, file), "line that is no hypothesis", line.number
        )


def _moses_row(line: Line, file: DataFile) -> tuple[int, dict[str, str]]:
    cells = [cell.strip(" ") for cell in line.text.split(BAR)]
    if not 2 <= len(cells) <= 2 + len(MOSES_FIELDS):
        raise file.error(
            f"a hypothesis must be id {BAR} text {BAR} features {BAR} score, but there are {len(cells)}"
            f" fields (the line: {printable(line.text[:80])})",
            line.number,
        )
    name = file.options.text or "text"
    return line.number, dict(zip(("id", name, *MOSES_FIELDS), cells, strict=False))


def _of_neighbours(rows: Sequence[tuple[int, dict[str, str]]], began: int, file: DataFile) -> NBest:
    name = file.options.text or "text"
    first_line, first = rows[0]
    if began != first_line:
        raise file.error(
            f"the rows of a list must stand together, but {printable(first['id'])!r} began in line {began}"
            " already; sort the rows by id",
            first_line,
        )
    column = next((key for key in REFERENCES if key in first), None)
    # An empty cell: there is none.
    reference = None if column is None else first[column]
    fields: list[JsonObject] = []
    for line, cells in rows:
        if column is not None and cells[column] != reference:
            raise file.error(
                f"a list must have one reference, but the {column!r} of this row is another than in line"
                f" {first_line}",
                line,
            )
        others = _without(cells, ("id", name, column))
        fields.append({key: number_in(cell) for key, cell in others.items()})
    return NBest(
        id=first["id"],
        texts=tuple(cells[name] for _, cells in rows),
        fields=tuple(fields),
        scores=None,
        reference=reference or None,
        others={},
        path=file.path,
        lines=tuple(line for line, _ in rows),
        text_field=name,
    )


def number_in(cell: str) -> int | float | str:
    """What a cell of a table holds: a finite number only where that is written again as it stands, so 1.5 but
    not 1.50."""
    number = _finite(cell)
    if number is None:
        return cell
    if re.fullmatch("0|-?[1-9][0-9]*", cell):
        return int(cell)
    return number if str(number) == cell else cell


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


def json_list(nbest: NBest) -> str:
    """The list as a line of JSON, as `read_nbest` reads it."""
    hypotheses = [
        {nbest.text_field: text, **fields}
        for text, fields in zip(nbest.texts, nbest.fields, strict=True)
    ]
    reference = {} if nbest.reference is None else {"ref": nbest.reference}
    return json_line({"id": nbest.id, **reference, **nbest.others, "nbest": hypotheses})


def table(lists: Sequence[NBest]) -> Iterator[str]:
    """The lines of a TSV file, the header first. A hypothesis's own field goes before one of the same name of
    its list.

    Raises DataError if a text holds a tab or a line break, which have no place in it.
    """
    references = ["ref"] if any(nbest.reference is not None for nbest in lists) else []
    others = list(dict.fromkeys(key for nbest in lists for key in nbest.others))
    fields: dict[str, None] = {}
    for nbest in lists:
        fields |= dict.fromkeys(chain.from_iterable(nbest.fields))
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
    for nbest in lists:
        for text, own in zip(nbest.texts, nbest.fields, strict=True):
            values = {**nbest.others, **own, **dict.fromkeys(references, nbest.reference or "")}
            cells = [str(nbest.id), text]
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
                    nbest.path,
                    nbest.line,
                )
            yield "\t".join(cells)


def moses_lines(lists: Sequence[NBest]) -> Iterator[str]:
    """The lines of a file in Moses' form. The last field is the total, else the score; other numbers become
    features.

    Raises DataError for what has no place in it: a reference, a field that is no number, a text with a bar or
    a line break.
    """
    for nbest in lists:
        for text, own in zip(nbest.texts, nbest.fields, strict=True):
            fields = {**nbest.others, **own}
            features = [str(fields.pop("features", ""))]
            after = [str(fields.pop(name)) for name in MOSES_FIELDS[2:] if name in fields]
            name_of_total = "total" if "total" in fields else "score"
            total = fields.pop(name_of_total, "")
            features += [f"{name}= {value}" for name, value in fields.items()]
            shown = " ".join(filter(None, features))
            cells = [str(nbest.id), text, shown, str(total), *after]
            is_plain = not any(mark in cell for cell in cells for mark in (BAR, "\r", "\n"))
            if (
                nbest.reference is not None
                or not all(map(is_number, fields.values()))
                or not is_plain
            ):
                raise DataError(
                    f"a reference, a field that is no number, a {BAR} or a line break stands in this list,"
                    " which a .nbest cannot hold; name an --output .jsonl",
                    nbest.path,
                    nbest.line,
                )
            yield f" {BAR} ".join(cells)


WRITERS: dict[str, Callable[[Sequence[NBest]], Iterable[str]]] = {
    ".jsonl": lambda lists: map(json_list, lists),
    ".tsv": table,
    MOSES_ENDING: moses_lines,
}
"""How the name of a file ends -> what writes its lines."""


def written(lists: Sequence[NBest], suffix: str) -> str:
    """The lists as the content of a file whose name ends so."""
    return "".join(f"{line}\n" for line in WRITERS[suffix](lists))
