"""CSV and TSV to records: an RFC 4180 reader that knows the physical line of every row."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.columns import (
    LANGUAGES,
    PAIR,
    SOURCES,
    TARGETS,
    TEXT,
    TEXTS,
    Record,
    Wanted,
    lines_of,
    numbers_of,
)
from seqloom.data.formats.lines import Line
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError, place, printable


class TableRow(NamedTuple):
    """A row of a table: its first and last line, its cells, and the problem of a line in it (see `Line`)."""

    line: int
    last: int
    cells: list[str]
    problem: str | None


def read_rows(
    lines: Iterator[Line], path: str, delimiter: str, quoting: bool, most: int
) -> Iterator[TableRow]:
    """Rows of cells. With `quoting`, a cell that begins with `"` ends at the next single `"` (`""` is a quote
    in it), also lines later (RFC 4180); line ends in it become `\\n`. A quote elsewhere in a cell is text.

    Raises DataError, with the line where the quote opened, where it is never closed, text follows the closing
    quote, or the row grows over `most` characters.
    """
    for line in lines:
        if quoting and '"' in line.text:
            yield _quoted_row(line, lines, path, delimiter, most)
        else:
            yield TableRow(line.number, line.number, line.text.split(delimiter), line.problem)


def _quoted_row(line: Line, lines: Iterator[Line], path: str, delimiter: str, most: int) -> TableRow:
    first, at, cells, size, problem = line.number, 0, [], len(line.text), line.problem
    while True:
        if not line.text.startswith('"', at):
            end = line.text.find(delimiter, at)
            end = len(line.text) if end < 0 else end
            cells.append(line.text[at:end])
        else:
            opened, parts, end = line.number, [], at + 1
            while True:
                at, end = end, line.text.find('"', end)
                if end < 0:
                    parts += [line.text[at:], "\n"]
                    following = next(lines, None)
                    size += 0 if following is None else len(following.text) + 1
                    if following is None or size > most:
                        how = (
                            "is never closed"
                            if following is None
                            else f"is not closed within {most} characters"
                        )
                        raise DataError(f"the quote opened here {how}; {_QUOTES}", path, opened)
                    line, end, problem = following, 0, problem or following.problem
                elif line.text.startswith('""', end):
                    parts.append(line.text[at : end + 1])
                    end += 2
                else:
                    parts.append(line.text[at:end])
                    end += 1
                    break
            if end < len(line.text) and not line.text.startswith(delimiter, end):
                where = "" if opened == line.number else f" in line {line.number}"
                after = printable(line.text[end : end + 20])
                raise DataError(
                    f"the quote opened here closes{where} before {after!r}, where the cell must end;"
                    f" {_QUOTES}",
                    path,
                    opened,
                )
            cells.append("".join(parts))
        if end >= len(line.text):
            return TableRow(first, line.number, cells, problem)
        at = end + len(delimiter)


_QUOTES = 'write a quote inside a cell as "", or, where quotes are plain text, use --set data.quoting=false'


def read_table(
    path: str, form: str, options: DataConfig, report: ReadReport, wanted: Wanted = PAIR
) -> Iterator[Record]:
    lines = lines_of(path, options, report)
    delimiter = options.delimiter or ("," if form == "csv" else "\t")
    if any(c in delimiter for c in '"\n\r'):
        raise UsageError(f"data.delimiter must hold no quote and no line end, but is {delimiter!r}")
    first = next(lines)
    marked = re.fullmatch(r'"?sep=(.)"?', first.text) if form == "csv" else None
    if marked is not None:  # Excel's own line
        delimiter = options.delimiter or marked[1]
        report.note(
            f"{place(path, 1)}: sep={printable(marked[1])} is taken as Excel's mark of the delimiter, not as"
            " data"
        )
        lines = chain(lines)
    else:
        lines = chain([first], lines)
    quoting = form == "csv" if options.quoting is None else options.quoting
    rows = _filled(read_rows(lines, path, delimiter, quoting, options.max_line_bytes), options, path, report)
    head = next(rows, None)
    if head is None:
        return
    numbered = False
    if _is_header(head.cells, options, wanted):
        _refuse_columns(head, delimiter, path, wanted)
        columns = {
            role: head.cells.index(name)
            for role, name in wanted.choose(head.cells, options, report, path, head.line).items()
        }
    else:
        rows = chain([head], rows)
        numbered = _by_number(options, wanted)
        if numbered:
            if options.header == "auto":
                report.note(
                    f"{place(path, head.line)}: no header; columns are counted from 1, and the first row is"
                    f" read as data (if it is a header, name its columns): {_shown(head)}"
                )
            names = [str(at) for at in range(1, len(head.cells) + 1)]
            columns = {
                role: int(name) - 1
                for role, name in wanted.choose(names, options, report, path, head.line).items()
            }
        else:
            _accept_headerless(head, delimiter, report, path, wanted)
            columns = {role: at for at, role in enumerate(_alone(wanted))}
    last = max(columns.values())
    for row in rows:
        if numbered and len(row.cells) != len(head.cells) and len(row.cells) > last:
            report.keep("the row has other cells than the first, but those that are read", path, row.line)
        elif len(row.cells) != len(head.cells):
            if options.on_bad_line != "skip":
                raise DataError(_wrong_width(row, len(head.cells), delimiter), path, row.line)
            report.skip("wrong number of cells", path, row.line)
            continue
        texts = {role: row.cells[column] for role, column in columns.items()}
        for cell in texts.values():
            if cell in SPREADSHEET_ERRORS:
                report.keep(f"the cell is {cell}, an error of a spreadsheet", path, row.line)
        yield from wanted.record(texts, path, row.line, report)


SPREADSHEET_ERRORS = frozenset({"#N/A", "#NAME?", "#REF!", "#VALUE!", "#DIV/0!", "#NUM!", "#NULL!"})


def _filled(
    rows: Iterator[TableRow], options: DataConfig, path: str, report: ReadReport
) -> Iterator[TableRow]:
    """The rows without blank lines and those with a problem, which are counted; the first row must be good,
    it may name the columns."""
    first = options.header is not False
    for row in rows:
        if row.problem is not None and first:
            raise DataError(
                "the first row cannot be skipped, for it may name the columns, but it has a problem:"
                f" {row.problem}",
                path,
                row.line,
            )
        if row.problem is not None:
            report.skip(row.problem, path, row.line)
        elif len(row.cells) == 1 and not row.cells[0].strip():
            report.skip("blank", path, row.line)
        else:
            first = False
            yield row


def _is_header(cells: list[str], options: DataConfig, wanted: Wanted) -> bool:
    if options.header != "auto":
        return options.header
    if not all(name.isdecimal() for names in numbers_of(options, wanted.roles).values() for name in names):
        return True
    names = [cell.strip().casefold() for cell in cells]
    if wanted is TEXT:
        return any(name in TEXTS for name in names)
    if wanted is not PAIR:
        return any(name in wanted.known for name in names)
    known = [name in SOURCES or name in TARGETS or name in LANGUAGES.split() for name in names]
    return len(cells) > 1 and (all(known) if len(cells) == 2 else sum(known) >= 2)


def _refuse_columns(head: TableRow, delimiter: str, path: str, wanted: Wanted) -> None:
    """Raises DataError where a header has one column of a pair, or two of the same name."""
    if len(_alone(wanted)) != 1:
        _refuse_one_column(head, delimiter, path, wanted)
    twice = next((name for name in head.cells if head.cells.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"each column must have a name of its own, but {twice!r} stands twice; rename one",
            path,
            head.line,
        )


def _alone(wanted: Wanted) -> tuple[str, ...]:
    return wanted.roles if wanted.alone is None else wanted.alone


def _refuse_one_column(head: TableRow, delimiter: str, path: str, wanted: Wanted) -> None:
    if len(head.cells) > 1:
        return
    other = next((c for c in (";", "\t", ",", "|") if c != delimiter and c in head.cells[0]), None)
    if other is None:
        advice = (
            f"{'pairs need two' if wanted is PAIR else 'more are needed'}, with {delimiter!r} between them"
        )
    else:
        setting = "data.delimiter=" + other.replace("\t", "\\t")
        advice = f"did you mean --set {shlex.quote(setting)} ?"
    raise DataError(f"one column found; {advice} (the row: {_shown(head)})", path, head.line)


def _by_number(options: DataConfig, wanted: Wanted) -> bool:
    """Whether the columns of a table without a header are named by their numbers. Raises UsageError where
    they have other names."""
    asked = numbers_of(options, wanted.roles)
    if worded := [role for role, names in asked.items() if not all(name.isdecimal() for name in names)]:
        raise UsageError(
            f"data.{worded[0]} names a column, so there must be a header; leave out data.header=false, or"
            " give the column's number, from 1"
        )
    return bool(asked)


def _accept_headerless(head: TableRow, delimiter: str, report: ReadReport, path: str, wanted: Wanted) -> None:
    """A table without a header, whose columns nobody named, has as many as are wanted. Raises DataError where
    it has others."""
    alone = _alone(wanted)
    number, columns = len(alone), "column" if len(alone) == 1 else "columns"
    if number != 1:
        _refuse_one_column(head, delimiter, path, wanted)
    if not alone:
        raise DataError(
            "the table has no header, or one without a name that is known; say which columns are which by"
            f" name or, where there is no header, by number{_likely(head)} (the row: {_shown(head)})",
            path,
            head.line,
        )
    if len(head.cells) != number:
        names = " ".join(f"--set data.{role}=NAME" for role in wanted.roles)
        raise DataError(
            f"a table {'of texts ' if number == 1 else ''}without a header must have {number} {columns}, but"
            f" has {len(head.cells)}; put a header above the first row, or name {columns} of the one it has"
            f" with {names} (without one, by number: --set data.header=false --set data.{wanted.roles[0]}=1)"
            f" (the row: {_shown(head)})",
            path,
            head.line,
        )
    taken = ""
    if number != 1:
        known = any(cell.strip().casefold() in (*SOURCES, *TARGETS, *wanted.known) for cell in head.cells)
        places = (
            f"the {nth} column as {role}"
            for nth, role in zip(("first", "second", "third"), alone, strict=False)
        )
        taken = f"{', though it looks like a header' if known else ''}, {', '.join(places)}"
    report.note(
        f"{place(path, head.line)}: no header; the first row is read as data{taken} (if it is a header: --set"
        f" data.header=true): {_shown(head)}"
    )


def _likely(head: TableRow) -> str:
    """Settings that may fit a row: its longest cell as the text, its shortest as the label."""
    sizes = [
        (len(cell.split()), len(cell), at) for at, cell in enumerate(head.cells, start=1) if cell.strip()
    ]
    if len(sizes) < 2:
        return ", such as --set data.text=2 --set data.label=1"
    return f", such as --set data.text={max(sizes)[2]} --set data.label={min(sizes)[2]}"


def _wrong_width(row: TableRow, width: int, delimiter: str) -> str:
    quoted = ""
    if row.last > row.line:
        quoted = (
            f"; a quote makes it go on to line {row.last}: if quotes are plain text, use --set"
            " data.quoting=false"
        )
    elif any(delimiter in cell for cell in row.cells):
        quoted = f"; {delimiter!r} stands in quotes: if quotes are plain text, use --set data.quoting=false"
    return (
        f"the row must have {width} cells like the first, but has {len(row.cells)}{quoted}; "
        f"leave such rows out with --set data.on_bad_line=skip (the row: {_shown(row)})"
    )


def _shown(row: TableRow) -> str:
    text = " | ".join(cell[:60] for cell in row.cells[:20])
    return printable(text if len(text) <= 80 else text[:80] + "…")
