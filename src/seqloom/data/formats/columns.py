"""The one contract between formats and tasks: a task's schema says which columns of a table it reads, by
setting or by name, and what record a row makes; each format reads tables of any schema."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from seqloom.data.formats.data_file import DataFile
from seqloom.errors import DataError, printable

SOURCES = ("source", "src", "input", "text", "document", "article", "dialogue", "question", "mr")
TARGETS = (
    "target", "tgt", "trg", "output", "summary", "translation", "highlights", "answer", "reference", "ref",
)  # fmt: skip
TEXTS = ("text", "content", "document", "sentence")
_CODES = (
    "af ar az be bg bn bs ca cmn cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy is it ja ka"
    " kk kn ko lt lv mk ml mn mr ms mt nb ne nl nn no pa pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur"
    " uz vi zh zu"
)
LANGUAGES = frozenset(_CODES.split())
"""Names of columns and suffixes that are recognised; where two are languages, English is the source."""

UNIT = "\x1f"
"""ASCII's unit separator: after each item of a list that was in one cell."""


@dataclass(frozen=True, slots=True)
class Record:
    """Named texts, and where they are (`line` from 1; the first line of a row that spans several)."""

    fields: dict[str, str]
    path: str
    line: int


def folded(name: str) -> str:
    return name.strip().casefold()


@final
class Header(NamedTuple):
    """The names of the columns of a table, and where they are."""

    names: list[str]
    file: DataFile
    line: int | None
    what: str = "column"
    """What has these names."""

    def error(self, message: str) -> DataError:
        return self.file.error(message, self.line)

    def without(self, names: Collection[str | None]) -> Header:
        return self._replace(names=[name for name in self.names if name not in names])

    def require(self, setting: str, name: str | None) -> None:
        """Raises DataError where a column that a setting names is missing."""
        if name is None or name in self.names:
            return
        similar = {folded(other): other for other in self.names}
        near = difflib.get_close_matches(folded(name), similar, n=1, cutoff=0.5)
        hint = f"; nearest: {listed([similar[near[0]]])}" if near else ""
        raise self.error(
            f"there is no {self.what} {name!r} for data.{setting} (found: {listed(self.names)}{hint})"
        )

    def named(self, setting: str) -> str | None:
        """The column that a setting names. Raises DataError where it is missing."""
        name: str | None = vars(self.file.options)[setting]
        self.require(setting, name)
        return name

    def by_name(self) -> dict[str, str]:
        """The columns by their names, and by their folded names where no column is called just so."""
        return {folded(name): name for name in reversed(self.names)} | {
            name: name for name in self.names
        }

    def first(self, known: Sequence[str]) -> str | None:
        """The column of the first of these names that exists."""
        columns = self.by_name()
        return next((columns[name] for name in known if name in columns), None)

    def find(self, setting: str, title: str, known: Sequence[str]) -> str:
        """The column that a setting names, else the first with a known name. Raises DataError where there is
        none."""
        column = self.named(setting) or self.first(known)
        if column is None:
            raise self.unknown(f"the {title}", [setting])
        return column

    def unknown(self, title: str, settings: Sequence[str]) -> DataError:
        """For columns that neither a setting nor their names tell."""
        which, known = ("columns", "are") if len(settings) > 1 else ("column", "is")
        advice = " ".join(f"--set data.{setting}=NAME" for setting in settings)
        return self.error(
            f"the {which} of {title} {known} not known by name (found: {listed(self.names)}); say which with"
            f" {advice}"
        )


@final
@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """Which columns of a table a task reads, and what record a row makes."""

    choose: Callable[[Header], dict[str, str]]
    """Role -> the column to read; raises DataError where that is not known."""
    record: Callable[[dict[str, str], DataFile, int], Iterator[Record]]
    """(role -> text, file, line) -> the record; none where the row is left out, which is counted."""
    settings: tuple[str, ...]
    """Settings that name columns."""
    known: frozenset[str]
    """Names by which a header is recognised."""
    headerless: tuple[str, ...]
    """Roles of the columns of a table without a header where no setting names them; empty where settings
    must."""
    loose: tuple[str, ...] = ()
    """Roles that need not be text: a number, yes or no, nothing, or a list, whose items UNIT ends."""
    of_pairs: bool = False
    """Source and target, which are also recognised by languages."""

    def records(self, fields: dict[str, str], file: DataFile, line: int) -> Iterator[Record]:
        """The record of a row whose texts may hold what is not a character, if it makes one."""
        texts = file.clean(list(fields.values()), line)
        if texts is not None:
            yield from self.record(dict(zip(fields, texts, strict=True)), file, line)


def pair_record(fields: dict[str, str], file: DataFile, line: int) -> Iterator[Record]:
    """The record of a pair; none where a side is blank."""
    source, target = fields["source"].strip(), fields["target"].strip()
    if source and target:
        yield Record(fields, file.path, line)
    elif source or target:
        file.skip("one side of the pair is blank", line)
    else:
        file.skip("blank", line)


def full_record(fields: dict[str, str], file: DataFile, line: int) -> Iterator[Record]:
    """The record of a row; none where all its texts are blank."""
    if any(text.strip() for text in fields.values()):
        yield Record(fields, file.path, line)
    else:
        file.skip("blank", line)


def source_and_target(header: Header) -> tuple[str, str] | None:
    """The columns of source and target, by setting or by guess; None where neither helps."""
    source, target = header.named("source"), header.named("target")
    if source is not None and target is not None:
        return source, target
    free = header.without((source, target))
    pair = free.first(SOURCES), free.first(TARGETS)
    if source is not None or target is not None:
        only = free.names[0] if len(header.names) == 2 and free.names else None
        pair = source or pair[0] or only, target or pair[1] or only
    elif None in pair:
        languages = sorted(
            (name for name in free.names if folded(name) in LANGUAGES), key=_not_english
        )
        pair = (languages[0], languages[1]) if len(languages) == 2 else pair
    if pair[0] is None or pair[1] is None:
        return None
    if pair != ("source", "target"):
        note_pair(pair[0], pair[1], header.file)
    return pair[0], pair[1]


def _not_english(name: str) -> bool:
    return folded(name) != "en"


def note_pair(source: str, target: str, file: DataFile) -> None:
    """Notes the guessed columns of a pair."""
    swapped = (f"data.source={printable(target)}", f"data.target={printable(source)}")
    settings = " ".join(f"--set {shlex.quote(setting)}" for setting in swapped)
    file.note(
        f"{printable(source)!r} is taken as source and {printable(target)!r} as target; to turn it:"
        f" {settings}"
    )


def _pair_columns(header: Header) -> dict[str, str]:
    pair = source_and_target(header)
    if pair is None:
        raise header.unknown("source and target", ["source", "target"])
    return {"source": pair[0], "target": pair[1]}


def _text_column(header: Header) -> dict[str, str]:
    column = header.named("text")
    if column is None:
        only = header.names[0] if len(header.names) == 1 else None
        column = header.first(TEXTS) or only or header.find("text", "text", TEXTS)
        if column != "text":
            header.file.note(
                f"{printable(column)!r} is taken as the text; to take another: --set data.text=NAME"
            )
    return {"text": column}


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def first_few(names: Sequence[str], most: int) -> str:
    """The first of them, with `...` where there are more."""
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


PAIR = TableSchema(
    choose=_pair_columns,
    record=pair_record,
    settings=("source", "target"),
    known=frozenset((*SOURCES, *TARGETS)),
    headerless=("source", "target"),
    of_pairs=True,
)
TEXT = TableSchema(
    choose=_text_column,
    record=full_record,
    settings=("text",),
    known=frozenset(TEXTS),
    headerless=("text",),
)
