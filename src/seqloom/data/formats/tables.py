"""CSV and TSV (RFC 4180) to rows that know the physical line of their row.

The standard library's `csv` is not used: it ends a line at a lone carriage return, which is text here, cannot
tell where an open quote began, limits cells by a setting of the whole process, and takes one-character
delimiters only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, NoReturn, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import (
    LANGUAGES,
    SOURCES,
    TARGETS,
    Header,
    Row,
    TableSchema,
    folded,
)
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.lines import Line
from seqloom.errors import UsageError, printable

SPREADSHEET_ERRORS = frozenset({"#N/A", "#NAME?", "#REF!", "#VALUE!", "#DIV/0!", "#NUM!", "#NULL!"})
_TO_CLOSING_QUOTE = re.compile('([^"]*+(?:""[^"]*+)*+)"')
_QUOTES = 'write a quote inside a cell as "", or, where quotes are plain text, use --set data.quoting=false'


class TableRow(NamedTuple):
    """A row of a table: its first and last line, its cells, and the problem of a line in it (see `Line`)."""

    line: int
    last: int
    cells: list[str]
    problem: str | None

    @property
    def blank(self) -> bool:
        return len(self.cells) == 1 and not self.cells[0].strip()

    def __str__(self) -> str:
        """The row as messages show it."""
        text = " | ".join(cell[:60] for cell in self.cells[:20])
        if len(text) > 80:
            text = text[:80] + "…"
        return printable(text)


@final
@dataclass(frozen=True)
class DelimitedText:
    """How the rows of a file are divided into cells."""

    file: DataFile
    delimiter: str
    quoting: bool
    skip_initial_space: bool = False
    """Whether blanks at the beginning of a cell, before a quote too, are no text."""

    @classmethod
    def of(cls, file: DataFile, form: str) -> DelimitedText:
        """By settings, else by the form of the file, csv or tsv."""
        options = file.options
        delimiter = options.delimiter or ("," if form == "csv" else "\t")
        quoting = form == "csv" if options.quoting is None else options.quoting
        return cls(file, delimiter, quoting, bool(options.skip_initial_space))

    def for_file(self, first: str) -> DelimitedText:
        """With what the first line shows: whether a blank follows each delimiter."""
        cells = first.split(self.delimiter)[1:]
        unsaid = self.file.options.skip_initial_space is None and self.delimiter in ",;"
        if not (unsaid and cells and all(cell[:1] == " " and cell.strip() for cell in cells)):
            return self
        self.file.note(
            "a blank follows each delimiter of the first line; blanks there are left out (if they are text:"
            " --set data.skip_initial_space=false)"
        )
        return replace(self, skip_initial_space=True)

    def rows(self, lines: Iterator[Line]) -> Iterator[TableRow]:
        """With `quoting`, a cell that begins with `"` ends at the next single `"` (`""` is a quote in it),
        also lines later; line ends in it become `\\n`. A quote elsewhere in a cell is text.

        Raises DataError, with the line where the quote opened, where it is never closed, text follows the
        closing quote, or the row exceeds `max_line_bytes` characters.
        """
        for line in lines:
            if self.quoting and '"' in line.text:
                yield self._quoted_row(line, lines)
            else:
                cells = line.text.split(self.delimiter)
                if self.skip_initial_space:
                    cells = [cell.lstrip(" ") for cell in cells]
                yield TableRow(line.number, line.number, cells, line.problem)

    def _quoted_row(self, line: Line, lines: Iterator[Line]) -> TableRow:
        first, cells, start = line.number, [], 0
        size, problem = len(line.text), line.problem
        while True:
            opened = line.number
            while self.skip_initial_space and line.text.startswith(" ", start):
                start += 1
            if not line.text.startswith('"', start):
                end = line.text.find(self.delimiter, start)
                end = len(line.text) if end < 0 else end
                cells.append(line.text[start:end])
            else:
                start += 1
                cell = ""
                while (closed := _TO_CLOSING_QUOTE.match(line.text, start)) is None:
                    cell += line.text[start:] + "\n"
                    following = next(lines, None)
                    if following is None:
                        self._refuse_quote("is never closed", opened)
                    size += len(following.text) + 1
                    if size > self.file.options.max_line_bytes:
                        self._refuse_quote(
                            f"is not closed within {self.file.options.max_line_bytes} characters",
                            opened,
                        )
                    line, start, problem = following, 0, problem or following.problem
                end = closed.end()
                if end < len(line.text) and not line.text.startswith(self.delimiter, end):
                    where = "" if opened == line.number else f" in line {line.number}"
                    after = printable(line.text[end : end + 20])
                    self._refuse_quote(
                        f"closes{where} before {after!r}, where the cell must end", opened
                    )
                cells.append((cell + closed[1]).replace('""', '"'))
            if end >= len(line.text):
                return TableRow(first, line.number, cells, problem)
            start = end + len(self.delimiter)

    def _refuse_quote(self, problem: str, opened: int) -> NoReturn:
        raise self.file.error(f"the quote opened here {problem}; {_QUOTES}", opened)


def read_table(file: DataFile, form: str, schema: TableSchema) -> Iterator[Row]:
    """The rows of a csv or tsv file below its header."""
    text, lines = _opened(file, form)
    rows = _full_rows(text.rows(lines), file)
    head = next(rows, None)
    if head is None:
        return
    has_header = _is_header(head.cells, file.options, schema)
    numbered = not has_header and (schema.every or _are_numbered(file.options, schema))
    if has_header:
        _check_header(head, text, schema)
        header = Header(head.cells, file, head.line)
        columns = schema.columns(header)
    elif numbered:
        header = _numbered_columns(head, file)
        columns = schema.columns(header)
    else:
        _check_headerless(head, text, schema)
        header = Header(list(schema.headerless), file, head.line)
        columns = {role: role for role in schema.headerless}
    if not has_header:
        rows = chain([head], rows)
    places: dict[str, list[int]] = {}
    for role, name in columns.items():
        places[role] = list(map(header.names.index, header.parts(name)))
    last = max(map(max, places.values()))
    for row in rows:
        if len(row.cells) != len(head.cells):
            if numbered and len(row.cells) > last:
                file.keep(
                    "the row has other cells than the first, but those that are read", row.line
                )
            elif file.options.on_bad_line != "skip":
                raise file.error(_wrong_width(row, len(head.cells), text), row.line)
            else:
                file.skip("wrong number of cells", row.line)
                continue
        values = {role: _cells(row, indices, file) for role, indices in places.items()}
        yield Row(values, columns, file, row.line)


def _numbered_columns(head: TableRow, file: DataFile) -> Header:
    """The columns of a table without a header have numbers."""
    if file.options.header == "auto":
        file.note(
            "no header; columns are counted from 1, and the first row is read as data (if it is a header,"
            f" name its columns): {head}",
            head.line,
        )
    names = [str(number + 1) for number in range(len(head.cells))]
    return Header(names, file, head.line)


def _cells(row: TableRow, indices: Sequence[int], file: DataFile) -> object:
    """The cell of a column, or those of several."""
    cells = tuple(row.cells[index] for index in indices)
    for cell in cells:
        if cell in SPREADSHEET_ERRORS:
            file.keep(f"the cell is {cell}, an error of a spreadsheet", row.line)
    return cells[0] if len(cells) == 1 else cells


def _opened(file: DataFile, form: str) -> tuple[DelimitedText, Iterator[Line]]:
    """How a file is divided, and its lines, without the one in which Excel says so."""
    text = DelimitedText.of(file, form)
    if any(character in text.delimiter for character in '"\n\r'):
        raise UsageError(
            f"data.delimiter must hold no quote and no line end, but is {text.delimiter!r}"
        )
    lines = file.lines()
    first = next(lines)
    excel = re.fullmatch(r'"?sep=(.)"?', first.text) if form == "csv" else None
    if excel is None:
        return text.for_file(first.text), chain([first], lines)
    file.note(
        f"sep={printable(excel[1])} is taken as Excel's mark of the delimiter, not as data", 1
    )
    return replace(text, delimiter=file.options.delimiter or excel[1]), lines


def _full_rows(rows: Iterator[TableRow], file: DataFile) -> Iterator[TableRow]:
    """The rows without blank ones and those with a problem, which are counted. The first row must be good,
    for it may name the columns."""
    first = file.options.header is not False
    for row in rows:
        if row.problem is not None and first:
            raise file.error(
                "the first row cannot be skipped, for it may name the columns, but it has a problem:"
                f" {row.problem}",
                row.line,
            )
        if row.problem is not None or row.blank:
            file.skip(row.problem or "blank", row.line)
        else:
            first = False
            yield row


def _named_columns(options: DataConfig, schema: TableSchema) -> dict[str, tuple[str, ...]]:
    """Setting -> the columns that it names; several numbers such as 2,3 are columns of their own."""
    named: dict[str, tuple[str, ...]] = {}
    for setting in schema.settings:
        match vars(options)[setting]:
            case str() as name:
                parts = tuple(name.split(","))
                named[setting] = parts if all(part.isdecimal() for part in parts) else (name,)
            case tuple() as names if names:
                named[setting] = names
    return named


def _is_header(cells: list[str], options: DataConfig, schema: TableSchema) -> bool:
    if options.header != "auto":
        return options.header
    if not all(
        name.isdecimal() for names in _named_columns(options, schema).values() for name in names
    ):
        return True
    known = [folded(cell) in schema.known for cell in cells]
    if not schema.of_pairs:
        return any(known)
    known = [
        is_known or folded(cell) in LANGUAGES for is_known, cell in zip(known, cells, strict=True)
    ]
    return len(cells) > 1 and sum(known) >= 2


def _are_numbered(options: DataConfig, schema: TableSchema) -> bool:
    """Whether settings name the columns of a table without a header by number. Raises UsageError if they
    name them otherwise."""
    named = _named_columns(options, schema)
    for setting, names in named.items():
        if not all(name.isdecimal() for name in names):
            raise UsageError(
                f"data.{setting} names a column, so there must be a header; leave out data.header=false, or"
                " give the column's number, from 1"
            )
    return bool(named)


def _check_header(head: TableRow, text: DelimitedText, schema: TableSchema) -> None:
    """Raises DataError if a header has one column and more are read, or two of the same name."""
    if len(schema.headerless) != 1:
        _refuse_one_column(head, text, schema)
    refuse_repeated_names(head, text.file)


def refuse_repeated_names(head: TableRow, file: DataFile) -> None:
    for name in head.cells:
        if head.cells.count(name) > 1:
            raise file.error(
                f"each column must have a name of its own, but {name!r} stands twice; rename one",
                head.line,
            )


def _refuse_one_column(head: TableRow, text: DelimitedText, schema: TableSchema) -> None:
    if len(head.cells) > 1:
        return
    others = (
        mark for mark in (";", "\t", ",", "|") if mark != text.delimiter and mark in head.cells[0]
    )
    other = next(others, None)
    if other is None:
        need = "pairs need two" if schema.of_pairs else "more are needed"
        advice = f"{need}, with {text.delimiter!r} between them"
    else:
        setting = "data.delimiter=" + other.replace("\t", "\\t")
        advice = f"did you mean --set {shlex.quote(setting)} ?"
    raise text.file.error(f"one column found; {advice} (the row: {head})", head.line)


def _check_headerless(head: TableRow, text: DelimitedText, schema: TableSchema) -> None:
    """Notes how a table without a header is read whose columns no setting names. Raises DataError if it
    does not have as many as the schema."""
    roles, file = schema.headerless, text.file
    if len(roles) != 1:
        _refuse_one_column(head, text, schema)
    if not roles:
        second = "label" if "label" in schema.settings else schema.settings[1]
        by_number = f"--set data.{schema.settings[0]}=1 --set data.{second}=2"
        raise file.error(
            "the table has no header, or one without a name that is known; say which columns are which by"
            f" name or, where there is no header, by number, such as {by_number} (the row: {head})",
            head.line,
        )
    columns = "column" if len(roles) == 1 else "columns"
    if len(head.cells) != len(roles):
        of_texts = "of texts " if len(roles) == 1 else ""
        names = " ".join(f"--set data.{setting}=NAME" for setting in schema.settings)
        raise file.error(
            f"a table {of_texts}without a header must have {len(roles)} {columns}, but"
            f" has {len(head.cells)}; put a header above the first row, or name {columns} of the one it has"
            f" with {names} (without one, by number: --set data.header=false --set"
            f" data.{schema.settings[0]}=1) (the row: {head})",
            head.line,
        )
    taken = ""
    if len(roles) != 1:
        if any(folded(cell) in schema.known.union(SOURCES, TARGETS) for cell in head.cells):
            taken = ", though it looks like a header"
        for nth, role in zip(("first", "second", "third"), roles, strict=False):
            taken += f", the {nth} column as {role}"
    file.note(
        f"no header; the first row is read as data{taken} (if it is a header: --set data.header=true):"
        f" {head}",
        head.line,
    )


def _wrong_width(row: TableRow, width: int, text: DelimitedText) -> str:
    quoted = ""
    if text.quoting and any(cell.startswith(' "') for cell in row.cells):
        quoted = (
            "; a quote stands after a blank: if blanks after a delimiter are no text, use --set"
        )
        quoted += " data.skip_initial_space=true"
    elif row.last > row.line:
        quoted = f"; a quote makes it go on to line {row.last}"
    elif any(text.delimiter in cell for cell in row.cells):
        quoted = f"; {text.delimiter!r} stands in quotes"
    if quoted and "blank" not in quoted:
        quoted += ": if quotes are plain text, use --set data.quoting=false"
    return (
        f"the row must have {width} cells like the first, but has {len(row.cells)}{quoted}; "
        f"leave such rows out with --set data.on_bad_line=skip (the row: {row})"
    )
