"""Users' text files to records that know their file and line.

Parallel text, TSV, CSV and JSONL give pairs; plain text gives one text a line. What had to be guessed is said in
the tally; a row that cannot be used is an error, or left out and counted.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple

from seqloom.data.lines import MAX_LINE_BYTES, REPLACEMENT, Line, Policy, Tally, read_lines, scan_lines
from seqloom.errors import DataError, UsageError, place, printable
from seqloom.files import open_binary

Form = Literal["auto", "parallel", "tsv", "csv", "jsonl"]

FORMS: dict[str, Form] = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""What the end of a file's name says about its form (before `.gz`)."""

SOURCES = ("source", "src", "input", "text", "document", "article", "dialogue", "question", "mr")
TARGETS = ("target", "tgt", "trg", "output", "summary", "translation", "highlights", "answer", "reference", "ref")
LANGUAGES = (
    "af ar az be bg bn bs ca cmn cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy is it ja ka kk kn ko lt lv "
    "mk ml mn mr ms mt nb ne nl nn no pa pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh zu"
)
"""Names of columns and suffixes that are known without being told; where two are languages, English is the source."""


@dataclass(frozen=True, slots=True)
class Record:
    """Named texts, and where they stood (`line` from 1; the first line of a row that spans several)."""

    fields: dict[str, str]
    path: str
    line: int


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How data files are read; `data.*` in run files."""

    encoding: str = "utf-8"
    on_bad_line: Policy = "error"
    """For lines that are not in the encoding or hold a NUL, and rows with too many or too few cells. `replace` repairs
    characters; what it cannot repair is an error."""
    format: Form = "auto"
    source: str | None = None
    """Column (or language suffix of files such as train.en) that is read."""
    target: str | None = None
    """Column (or language suffix) that is to be written."""
    delimiter: str | None = None
    """Between cells; None is a comma in CSV and a tab in TSV."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first row names the columns; auto: it does where columns are named by option or the names are known."""
    quoting: bool | None = None
    """Whether a cell may stand in double quotes; None is yes in CSV and no in TSV, where quotes are text."""
    max_line_bytes: int = MAX_LINE_BYTES


def read_texts(path: str, options: ReadOptions, tally: Tally) -> Iterator[Record]:
    """One record `{"text"}` for each line of a file, blank ones too. Raises what `read_lines` raises."""
    lines = read_lines(path, tally, encoding=options.encoding, on_bad_line=options.on_bad_line, max_line_bytes=options.max_line_bytes)
    for number, text in lines:
        yield Record({"text": text}, path, number)


def read_pairs(paths: Sequence[str], options: ReadOptions, tally: Tally) -> Iterator[Record]:
    """One record `{"source", "target"}` for each pair; a generator that holds one row at a time.

    `paths` is two files of parallel text; a prefix such as `data/train` beside which `data/train.en` and `data/train.de`
    stand (`.gz` or not); or one table: `.tsv`, `.csv`, `.jsonl`, or any name (`-` too) with `options.format`.
    Pairs with a blank side are skipped, both sides together. Texts are kept as they are, white space included.

    Raises DataError for data that is wrong, also when that shows only at the end (sides of unequal length, no usable
    pair), and UsageError for paths or options that fit together in no way; both when the first record is asked for.
    """
    before, used = tally.read, 0
    try:
        for record in _pairs(list(paths), options, tally):
            used += 1
            tally.used += 1
            yield record
    except DataError as error:
        tally.rejected += error.line is not None
        raise
    if not used:
        raise DataError(f"there are no usable pairs in it (rows read: {tally.read - before}, all blank on a side or skipped)", paths[0])


def _pairs(paths: list[str], options: ReadOptions, tally: Tally) -> Iterator[Record]:
    if not 1 <= len(paths) <= 2:
        raise UsageError(f"pairs need one table, two parallel files or their prefix, but {len(paths)} files are given")
    form = options.format
    if form == "auto" and paths != ["-"]:
        form = _form_of_name(paths)
    if form == "auto":
        raise UsageError("the form of standard input must be said: --set data.format=tsv (or csv, jsonl)")
    if form == "parallel":
        return _parallel(paths if len(paths) == 2 else _sides(paths[0], options, tally), options, tally)
    if len(paths) == 2:
        raise UsageError(f"two files can only be parallel text, but the form is {form}; name one {form} file")
    return _json_lines(paths[0], options, tally) if form == "jsonl" else _table(paths[0], form, options, tally)


def _form_of_name(paths: list[str]) -> Form:
    form = FORMS.get(os.path.splitext(paths[0].removesuffix(".gz"))[1].lower())
    if form is not None and (len(paths) == 1 or FORMS.get(os.path.splitext(paths[1].removesuffix(".gz"))[1].lower()) == form):
        return form
    if len(paths) == 1 and os.path.exists(paths[0]) and not os.path.isdir(paths[0]):
        raise DataError("its name does not say in which form the pairs are; say it with --set data.format=tsv (or csv, jsonl)", paths[0])
    return "parallel"


def _scan(path: str, options: ReadOptions, tally: Tally) -> Iterator[Line]:
    return scan_lines(path, tally, encoding=options.encoding, on_bad_line=options.on_bad_line, max_line_bytes=options.max_line_bytes)


def _pair(source: str, target: str, path: str, line: int, tally: Tally) -> Iterator[Record]:
    """The record of a pair, or none where a side is blank."""
    if source.strip() and target.strip():
        yield Record({"source": source, "target": target}, path, line)
    elif source.strip() or target.strip():
        tally.skip("one side of the pair is blank", path, line)
    else:
        tally.skip("blank", path, line)


# Parallel text


def _sides(prefix: str, options: ReadOptions, tally: Tally) -> list[str]:
    """The two files `prefix.SUFFIX` or `prefix.SUFFIX.gz`, source first."""
    folder, stem = os.path.split(prefix)
    found: dict[str, list[str]] = {}
    if os.path.isdir(folder or "."):
        for name in sorted(os.listdir(folder or ".")):
            suffix = name[len(stem) + 1 :].removesuffix(".gz")
            path = os.path.join(folder, name)
            if name.startswith(f"{stem}.") and suffix and "." not in suffix and f".{suffix}" not in FORMS and not os.path.isdir(path):
                found.setdefault(suffix, []).append(path)
    if not found:
        raise _no_sides(prefix, folder, stem)
    names = list(found)
    pair = _choose(names, options, tally, prefix, None, "file")
    if pair is None and len(names) == 2 and options.source is None and options.target is None:
        pair = _taken(names[0], names[1], tally, prefix)
    if pair is None:
        raise DataError(
            f"beside it stand {_listed(names)}; two must be taken: say which with --set data.source=NAME --set data.target=NAME", prefix
        )
    for side in pair:
        if len(found[side]) > 1:
            other = printable(os.path.basename(found[side][1]))
            raise DataError(f"stands beside {other}; name the two files that are meant", found[side][0])
    return [found[side][0] for side in pair]


def _no_sides(prefix: str, folder: str, stem: str) -> DataError:
    if os.path.lexists(prefix):
        open_binary(prefix).close()  # a folder or a loop of links says so itself
        return DataError(
            "parallel text must be two files, or a prefix beside which two files such as PREFIX.en and PREFIX.de stand", prefix
        )
    names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    near = difflib.get_close_matches(stem, {name.split(".")[0] for name in names} | set(names), n=3)
    hint = f"; near it: {', '.join(printable(name) for name in near)}" if near else ""
    return DataError(f"there is no such file, nor two files such as {printable(stem)}.en and {printable(stem)}.de{hint}", prefix)


def _parallel(paths: list[str], options: ReadOptions, tally: Tally) -> Iterator[Record]:
    """Pairs of the lines with the same number; their place is that of the source."""
    if paths[0] == paths[1] == "-":
        raise UsageError("standard input can be one side of parallel text, not both")
    sides = [_scan(path, options, tally) for path in paths]
    one_sided: str | None = None
    for source, target in zip_longest(*sides):
        if source is None or target is None:
            longer = 1 if source is None else 0
            counts = [(source or target).number - 1] * 2
            counts[longer] += 1 + sum(1 for _ in sides[longer])
            hint = f"; the first suspicious line is {one_sided} (blank on one side only)" if one_sided else ""
            raise DataError(
                f"ends here, but both sides must have the same number of lines: {printable(paths[0])} has {counts[0]}, "
                f"{printable(paths[1])} has {counts[1]}{hint}; look where they part, and make them line up",
                paths[1 - longer],
                counts[1 - longer],
            )
        bad = next(((path, line) for path, line in zip(paths, (source, target), strict=True) if line.problem is not None), None)
        if bad is not None:
            tally.skip(f"{bad[1].problem}", bad[0], bad[1].number)
            continue
        path = paths[1] if source.text.strip() and not target.text.strip() else paths[0]  # of the blank side, if one is
        if one_sided is None and bool(source.text.strip()) != bool(target.text.strip()):
            one_sided = place(path, source.number)
        yield from _pair(source.text, target.text, path, source.number, tally)


# Names of columns


def _choose(
    names: list[str], options: ReadOptions, tally: Tally, path: str, line: int | None, what: str = "column"
) -> tuple[str, str] | None:
    """The names of source and target, by option or by guess; None where neither helps."""
    given = {"source": options.source, "target": options.target}
    for role, name in given.items():
        if name is not None and name not in names:
            folded = {other.strip().casefold(): other for other in names}
            near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.5)
            hint = f"; nearest: {_listed([folded[near[0]]])}" if near else ""
            raise DataError(f"there is no {what} {name!r} for data.{role} (found: {_listed(names)}{hint})", path, line)
    source, target = options.source, options.target
    if source is not None and target is not None:
        return source, target
    known = {name.strip().casefold(): name for name in names if name not in (source, target)}
    guess_source = next((known[name] for name in SOURCES if name in known), None)
    guess_target = next((known[name] for name in TARGETS if name in known), None)
    if source is not None or target is not None:
        only = next((name for name in names if name not in (source, target)), None) if len(names) == 2 else None
        pair = source or guess_source or only, target or guess_target or only
    else:
        pair = guess_source, guess_target
        languages = sorted((name for name in known if name in LANGUAGES.split()), key=lambda name: name != "en")
        if None in pair and len(languages) == 2:
            pair = known[languages[0]], known[languages[1]]
    return None if pair[0] is None or pair[1] is None else _taken(pair[0], pair[1], tally, path)


def _taken(source: str, target: str, tally: Tally, path: str) -> tuple[str, str]:
    tally.remark(
        f"{place(path)}: {printable(source)!r} is taken as source and {printable(target)!r} as target; "
        f"to turn it: --set data.source={printable(target)} --set data.target={printable(source)}"
    )
    return source, target


def _columns(names: list[str], options: ReadOptions, tally: Tally, path: str, line: int) -> tuple[str, str]:
    pair = _choose(names, options, tally, path, line)
    if pair is None:
        raise DataError(
            f"the columns of source and target are not known by name (found: {_listed(names)}); "
            "say which with --set data.source=NAME --set data.target=NAME",
            path,
            line,
        )
    return pair


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


# Tables: CSV and TSV


class Row(NamedTuple):
    """A row of a table: its first and last line, its cells, and the problem of a line in it (see `Line`)."""

    line: int
    last: int
    cells: list[str]
    problem: str | None


def read_rows(lines: Iterator[Line], path: str, delimiter: str, quoting: bool, most: int) -> Iterator[Row]:
    """Rows of cells. With `quoting`, a cell that begins with `"` ends at the next single `"` (`""` is a quote in it), also
    lines later (RFC 4180); line ends in it become `\\n`. A quote elsewhere in a cell is text.

    Raises DataError, with the line where the quote opened, where it is never closed, text follows the closing
    quote, or the row grows over `most` characters.
    """
    for line in lines:
        if quoting and '"' in line.text:
            yield _quoted_row(line, lines, path, delimiter, most)
        else:
            yield Row(line.number, line.number, line.text.split(delimiter), line.problem)


def _quoted_row(line: Line, lines: Iterator[Line], path: str, delimiter: str, most: int) -> Row:
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
                        how = "is never closed" if following is None else f"is not closed within {most} characters"
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
                raise DataError(f"the quote opened here closes{where} before {after!r}, where the cell must end; {_QUOTES}", path, opened)
            cells.append("".join(parts))
        if end >= len(line.text):
            return Row(first, line.number, cells, problem)
        at = end + len(delimiter)


_QUOTES = 'write a quote inside a cell as "", or, where quotes are plain text, use --set data.quoting=false'


def _table(path: str, form: Form, options: ReadOptions, tally: Tally) -> Iterator[Record]:
    lines = _scan(path, options, tally)
    delimiter = (options.delimiter or ("," if form == "csv" else "\t")).replace("\\t", "\t")
    if any(c in delimiter for c in '"\n\r'):
        raise UsageError(f"data.delimiter must hold no quote and no line end, but is {delimiter!r}")
    first = next(lines)
    marked = re.fullmatch(r'"?sep=(.)"?', first.text) if form == "csv" else None
    if marked is not None:  # Excel's own line
        delimiter = options.delimiter or marked[1]
        tally.remark(f"{place(path, 1)}: sep={printable(marked[1])} is taken as Excel's mark of the delimiter, not as data")
        lines = chain(lines)
    else:
        lines = chain([first], lines)
    quoting = form == "csv" if options.quoting is None else options.quoting
    rows = _filled(read_rows(lines, path, delimiter, quoting, options.max_line_bytes), options, path, tally)
    head = next(rows, None)
    if head is None:
        return
    if _is_header(head.cells, options):
        _refuse_columns(head, delimiter, path)
        source, target = (head.cells.index(name) for name in _columns(head.cells, options, tally, path, head.line))
    else:
        _accept_headerless(head, delimiter, options, tally, path)
        source, target, rows = 0, 1, chain([head], rows)
    for row in rows:
        if len(row.cells) != len(head.cells):
            if options.on_bad_line != "skip":
                raise DataError(_wrong_width(row, len(head.cells), delimiter), path, row.line)
            tally.skip("wrong number of cells", path, row.line)
            continue
        for cell in (row.cells[source], row.cells[target]):
            if cell in SPREADSHEET_ERRORS:
                tally.keep(f"the cell is {cell}, an error of a spreadsheet", path, row.line)
        yield from _pair(row.cells[source], row.cells[target], path, row.line, tally)


SPREADSHEET_ERRORS = frozenset({"#N/A", "#NAME?", "#REF!", "#VALUE!", "#DIV/0!", "#NUM!", "#NULL!"})


def _filled(rows: Iterator[Row], options: ReadOptions, path: str, tally: Tally) -> Iterator[Row]:
    """The rows without blank lines and those with a problem, which are counted; the first row must be good, it may name the columns."""
    first = options.header is not False
    for row in rows:
        if row.problem is not None and first:
            raise DataError(
                f"the first row cannot be skipped, for it may name the columns, but it has a problem: {row.problem}", path, row.line
            )
        if row.problem is not None:
            tally.skip(row.problem, path, row.line)
        elif len(row.cells) == 1 and not row.cells[0].strip():
            tally.skip("blank", path, row.line)
        else:
            first = False
            yield row


def _is_header(cells: list[str], options: ReadOptions) -> bool:
    if options.header != "auto":
        return options.header
    if options.source is not None or options.target is not None:
        return True
    names = [cell.strip().casefold() for cell in cells]
    known = [name in SOURCES or name in TARGETS or name in LANGUAGES.split() for name in names]
    return len(cells) > 1 and (all(known) if len(cells) == 2 else sum(known) >= 2)


def _refuse_columns(head: Row, delimiter: str, path: str) -> None:
    """Raises DataError where a header has one column, or two of the same name."""
    _refuse_one_column(head, delimiter, path)
    twice = next((name for name in head.cells if head.cells.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"each column must have a name of its own, but {twice!r} stands twice; rename one", path, head.line)


def _refuse_one_column(head: Row, delimiter: str, path: str) -> None:
    if len(head.cells) > 1:
        return
    other = next((c for c in (";", "\t", ",", "|") if c != delimiter and c in head.cells[0]), None)
    if other is None:
        advice = f"pairs need two, with {delimiter!r} between them"
    else:
        advice = f"did you mean --set data.delimiter={other!r}?"
    raise DataError(f"one column found; {advice} (the row: {_shown(head)})", path, head.line)


def _accept_headerless(head: Row, delimiter: str, options: ReadOptions, tally: Tally, path: str) -> None:
    if options.source is not None or options.target is not None:
        raise UsageError("data.source and data.target name columns, so there must be a header; leave out data.header=false")
    _refuse_one_column(head, delimiter, path)
    if len(head.cells) != 2:
        raise DataError(
            f"a table without a header must have 2 columns, but has {len(head.cells)}; put a header above the first row, or "
            f"name columns of the one it has with --set data.source=NAME --set data.target=NAME (the row: {_shown(head)})",
            path,
            head.line,
        )
    names = [cell.strip().casefold() for cell in head.cells]
    looks = ", though it looks like a header" if any(name in SOURCES or name in TARGETS for name in names) else ""
    tally.remark(
        f"{place(path, head.line)}: no header; the first row is read as data{looks}, the first column as source and the second as "
        f"target (if it is a header: --set data.header=true): {_shown(head)}"
    )


def _wrong_width(row: Row, width: int, delimiter: str) -> str:
    quoted = ""
    if row.last > row.line:
        quoted = f"; a quote makes it go on to line {row.last}: if quotes are plain text, use --set data.quoting=false"
    elif any(delimiter in cell for cell in row.cells):
        quoted = f"; {delimiter!r} stands in quotes: if quotes are plain text, use --set data.quoting=false"
    return (
        f"the row must have {width} cells like the first, but has {len(row.cells)}{quoted}; "
        f"leave such rows out with --set data.on_bad_line=skip (the row: {_shown(row)})"
    )


def _shown(row: Row) -> str:
    text = " | ".join(cell[:60] for cell in row.cells[:20])
    return printable(text if len(text) <= 80 else text[:80] + "…")


# JSON, one object a line


def _json_lines(path: str, options: ReadOptions, tally: Tally) -> Iterator[Record]:
    columns: tuple[str, str] | None = None
    for line in _scan(path, options, tally):
        if line.problem is not None or not line.text.strip():
            tally.skip(line.problem or "blank", path, line.number)
            continue
        content = _object(line.text, path, line.number)
        inner = content.get("translation")  # the form of Hugging Face's translation sets
        if isinstance(inner, dict) and options.source not in content:
            content = inner
        if columns is None:
            columns = _columns(list(content), options, tally, path, line.number)
        texts = [_text(content, name, path, line.number) for name in columns]
        if any(_UNWRITABLE.search(text) for text in texts):
            if options.on_bad_line == "error":
                raise DataError(
                    r"a text holds half of a surrogate pair (\ud800 to \udfff) or \u0000, which are no characters; "
                    "leave such lines out with --set data.on_bad_line=skip",
                    path,
                    line.number,
                )
            count = tally.skip if options.on_bad_line == "skip" else tally.replace
            count("lone surrogate or NUL", path, line.number)
            if options.on_bad_line == "skip":
                continue
            texts = [_UNWRITABLE.sub(REPLACEMENT, text) for text in texts]
        yield from _pair(texts[0], texts[1], path, line.number, tally)


_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def _text(content: dict[str, Any], name: str, path: str, line: int) -> str:
    if name not in content:
        near = difflib.get_close_matches(name, content, n=1)
        hint = f"; nearest: {near[0]!r}" if near else ""
        raise DataError(f"there is no {name!r} in this object (found: {_listed(list(content))}{hint})", path, line)
    value = content[name]
    if not isinstance(value, str):
        raise DataError(f"{name!r} must be a text, but is {_kind(value)}", path, line)
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object", str: "a text"}
    return kinds[type(value)]


def _object(text: str, path: str, line: int) -> dict[str, Any]:
    """The object that a line of JSONL holds. Raises DataError for anything that Python's reader would take but should not."""
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)
    except json.JSONDecodeError as error:
        array = line == 1 and text.lstrip().startswith("[")
        if array or text.strip() == "{":
            raise DataError(_several_lines(array), path, line) from None
        raise DataError(f"is not JSON at column {error.colno}: {error.msg}; every line must be one whole object", path, line) from None
    except RecursionError:
        raise DataError("is JSON nested too deeply to be read", path, line) from None
    except ValueError as error:
        raise DataError(f"is not JSON that can be used: {error}", path, line) from None
    if isinstance(content, list):
        raise DataError(_several_lines(True), path, line)
    if not isinstance(content, dict):
        raise DataError(f"must be a JSON object, but is {_kind(content)}", path, line)
    return content


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
