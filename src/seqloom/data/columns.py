"""A record, and which columns or files hold its source and its target: as told, or guessed with a notice."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from seqloom.config import DataConfig
from seqloom.data.lines import Line, Tally, scan_lines
from seqloom.errors import DataError, place, printable

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


def lines_of(path: str, options: DataConfig, tally: Tally) -> Iterator[Line]:
    return scan_lines(path, tally, encoding=options.encoding, on_bad_line=options.on_bad_line, max_line_bytes=options.max_line_bytes)


def pair_record(source: str, target: str, path: str, line: int, tally: Tally) -> Iterator[Record]:
    """The record of a pair, or none where a side is blank."""
    if source.strip() and target.strip():
        yield Record({"source": source, "target": target}, path, line)
    elif source.strip() or target.strip():
        tally.skip("one side of the pair is blank", path, line)
    else:
        tally.skip("blank", path, line)


def choose_columns(
    names: list[str], options: DataConfig, tally: Tally, path: str, line: int | None, what: str = "column"
) -> tuple[str, str] | None:
    """The names of source and target, by option or by guess; None where neither helps."""
    given = {"source": options.source, "target": options.target}
    for role, name in given.items():
        if name is not None and name not in names:
            folded = {other.strip().casefold(): other for other in names}
            near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.5)
            hint = f"; nearest: {listed([folded[near[0]]])}" if near else ""
            raise DataError(f"there is no {what} {name!r} for data.{role} (found: {listed(names)}{hint})", path, line)
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
    if pair[0] is None or pair[1] is None:
        return None
    if pair == ("source", "target"):  # nothing was guessed
        return pair[0], pair[1]
    return taken(pair[0], pair[1], tally, path)


def taken(source: str, target: str, tally: Tally, path: str) -> tuple[str, str]:
    tally.remark(
        f"{place(path)}: {printable(source)!r} is taken as source and {printable(target)!r} as target; "
        f"to turn it: --set {shlex.quote('data.source=' + printable(target))} --set {shlex.quote('data.target=' + printable(source))}"
    )
    return source, target


def columns_of(names: list[str], options: DataConfig, tally: Tally, path: str, line: int) -> tuple[str, str]:
    pair = choose_columns(names, options, tally, path, line)
    if pair is None:
        raise DataError(
            f"the columns of source and target are not known by name (found: {listed(names)}); "
            "say which with --set data.source=NAME --set data.target=NAME",
            path,
            line,
        )
    return pair


def listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"
