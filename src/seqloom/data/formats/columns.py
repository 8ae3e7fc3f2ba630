"""A record, and which columns or files hold its source and its target, or its text: as told, or guessed with
a notice."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.lines import REPLACEMENT, Line, scan_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, place, printable

SOURCES = ("source", "src", "input", "text", "document", "article", "dialogue", "question", "mr")
TARGETS = (
    "target",
    "tgt",
    "trg",
    "output",
    "summary",
    "translation",
    "highlights",
    "answer",
    "reference",
    "ref",
)
TEXTS = ("text", "content", "document", "sentence")
LANGUAGES = (
    "af ar az be bg bn bs ca cmn cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy is it ja ka"
    " kk kn ko lt lv mk ml mn mr ms mt nb ne nl nn no pa pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur"
    " uz vi zh zu"
)
"""Names of columns and suffixes that are known without being told; where two are languages, English is the
source."""


@dataclass(frozen=True, slots=True)
class Record:
    """Named texts, and where they stood (`line` from 1; the first line of a row that spans several)."""

    fields: dict[str, str]
    path: str
    line: int


def lines_of(path: str, options: DataConfig, report: ReadReport) -> Iterator[Line]:
    return scan_lines(
        path,
        report,
        encoding=options.encoding,
        on_bad_line=options.on_bad_line,
        max_line_bytes=options.max_line_bytes,
    )


class Wanted(NamedTuple):
    """What is taken of the rows of a table."""

    choose: Callable[[list[str], DataConfig, ReadReport, str, int | None], dict[str, str]]
    """(names of the columns, options, report, path, line) -> role: the column to read; raises DataError where
    that cannot be told."""
    record: Callable[[dict[str, str], str, int, ReadReport], Iterator[Record]]
    """(role: text, path, line, report) -> the record, or none where the texts are blank."""
    roles: tuple[str, ...]
    """Settings that name columns; a table without a header has so many, unless they are named by their
    numbers."""
    loose: tuple[str, ...] = ()
    """Roles that may hold something else than text: a number, yes or no, nothing, or a list, whose items UNIT
    joins."""
    known: frozenset[str] = frozenset()
    """Names by which a header is known, where they are not those of pairs or texts."""
    alone: tuple[str, ...] | None = None
    """Roles of the columns of a table without a header where nobody named them: those of `roles`; empty where
    they must be named."""


UNIT = "\x1f"
"""ASCII's unit separator: between the items of a list that stood in one place."""


def pair_record(texts: dict[str, str], path: str, line: int, report: ReadReport) -> Iterator[Record]:
    """The record of a pair, or none where a side is blank."""
    source, target = texts["source"], texts["target"]
    if source.strip() and target.strip():
        yield Record(texts, path, line)
    elif source.strip() or target.strip():
        report.skip("one side of the pair is blank", path, line)
    else:
        report.skip("blank", path, line)


def text_record(texts: dict[str, str], path: str, line: int, report: ReadReport) -> Iterator[Record]:
    """The record of a text, or none where it is blank."""
    if texts["text"].strip():
        yield Record(texts, path, line)
    else:
        report.skip("blank", path, line)


def numbers_of(options: DataConfig, roles: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """role: the columns that settings name for it, several numbers such as 2,3 apart."""
    asked = {}
    for role in roles:
        value: str | tuple[str, ...] | None = getattr(options, role)
        if isinstance(value, str):
            parts = tuple(value.split(","))
            value = parts if all(part.isdecimal() for part in parts) else (value,)
        if value:
            asked[role] = value
    return asked


_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def writable(
    texts: list[str], options: DataConfig, report: ReadReport, path: str, line: int
) -> list[str] | None:
    """The texts without what is no character, as the policy has it; None where the row is skipped."""
    if not any(_UNWRITABLE.search(text) for text in texts):
        return texts
    if options.on_bad_line == "error":
        raise DataError(
            r"a text holds half of a surrogate pair (\ud800 to \udfff) or \u0000, which are no characters; "
            "leave such lines out with --set data.on_bad_line=skip",
            path,
            line,
        )
    count = report.skip if options.on_bad_line == "skip" else report.replace
    count("lone surrogate or NUL", path, line)
    return None if options.on_bad_line == "skip" else [_UNWRITABLE.sub(REPLACEMENT, text) for text in texts]


def choose_columns(
    names: list[str],
    options: DataConfig,
    report: ReadReport,
    path: str,
    line: int | None,
    what: str = "column",
) -> tuple[str, str] | None:
    """The names of source and target, by option or by guess; None where neither helps."""
    require("source", options.source, names, path, line, what)
    require("target", options.target, names, path, line, what)
    source, target = options.source, options.target
    if source is not None and target is not None:
        return source, target
    known = {name.strip().casefold(): name for name in names if name not in (source, target)}
    guess_source = next((known[name] for name in SOURCES if name in known), None)
    guess_target = next((known[name] for name in TARGETS if name in known), None)
    if source is not None or target is not None:
        only = (
            next((name for name in names if name not in (source, target)), None) if len(names) == 2 else None
        )
        pair = source or guess_source or only, target or guess_target or only
    else:
        pair = guess_source, guess_target
        languages = sorted(
            (name for name in known if name in LANGUAGES.split()), key=lambda name: name != "en"
        )
        if None in pair and len(languages) == 2:
            pair = known[languages[0]], known[languages[1]]
    if pair[0] is None or pair[1] is None:
        return None
    if pair == ("source", "target"):  # nothing was guessed
        return pair[0], pair[1]
    return taken(pair[0], pair[1], report, path)


def require(role: str, name: str | None, names: list[str], path: str, line: int | None, what: str) -> None:
    """Raises DataError where a column that was asked for is not there."""
    if name is not None and name not in names:
        folded = {other.strip().casefold(): other for other in names}
        near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.5)
        hint = f"; nearest: {listed([folded[near[0]]])}" if near else ""
        raise DataError(
            f"there is no {what} {name!r} for data.{role} (found: {listed(names)}{hint})", path, line
        )


def taken(source: str, target: str, report: ReadReport, path: str) -> tuple[str, str]:
    report.note(
        f"{place(path)}: {printable(source)!r} is taken as source and {printable(target)!r} as target; to"
        f" turn it: --set {shlex.quote('data.source=' + printable(target))} --set"
        f" {shlex.quote('data.target=' + printable(source))}"
    )
    return source, target


def columns_of(
    names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
) -> dict[str, str]:
    pair = choose_columns(names, options, report, path, line)
    if pair is None:
        raise DataError(
            f"the columns of source and target are not known by name (found: {listed(names)}); "
            "say which with --set data.source=NAME --set data.target=NAME",
            path,
            line,
        )
    return {"source": pair[0], "target": pair[1]}


def text_column(
    names: list[str], options: DataConfig, report: ReadReport, path: str, line: int | None
) -> dict[str, str]:
    """The name of the column of texts, by option or by guess."""
    require("text", options.text, names, path, line, "column")
    if options.text is not None:
        return {"text": options.text}
    known = {name.strip().casefold(): name for name in names}
    found = next((known[name] for name in TEXTS if name in known), names[0] if len(names) == 1 else None)
    if found is None:
        raise DataError(
            f"the column of the text is not known by name (found: {listed(names)}); say which with --set"
            " data.text=NAME",
            path,
            line,
        )
    if found != "text":  # nothing was guessed
        report.note(
            f"{place(path)}: {printable(found)!r} is taken as the text; to take another: --set data.text=NAME"
        )
    return {"text": found}


def listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


PAIR = Wanted(columns_of, pair_record, ("source", "target"))
TEXT = Wanted(text_column, text_record, ("text",))
