"""The one contract between formats and tasks: a task's schema says which columns of a table it reads, by
setting or by name, and what record a row makes; each format reads tables of any schema."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from seqloom.config import DataConfig
from seqloom.data.formats.data_file import DataFile
from seqloom.errors import DataError, printable, quoted
from seqloom.json_values import as_list, as_text, kind_of, loose_text

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

    def parts(self, name: str) -> tuple[str, ...]:
        """The columns that a name stands for: itself, or several with commas between, which are joined."""
        return (name,) if name in self.names else tuple(part.strip() for part in name.split(","))

    def missing(self, name: str, where: str) -> DataError:
        similar = {folded(other): other for other in self.names}
        near = difflib.get_close_matches(folded(name), similar, n=1, cutoff=0.5)
        hint = f"; nearest: {quoted([similar[near[0]]])}" if near else ""
        return self.error(f"there is no {where} (found: {quoted(self.names)}{hint})")

    def require(self, setting: str, name: str) -> None:
        """Raises DataError if a column that a setting names is missing."""
        for part in self.parts(name):
            if part not in self.names:
                raise self.missing(part, f"{self.what} {part!r} for data.{setting}")

    def named(self, setting: str) -> str | None:
        """The column that a setting names. Raises DataError if it is missing."""
        name: str | None = vars(self.file.options)[setting]
        if name is not None:
            self.require(setting, name)
        return name

    def by_name(self) -> dict[str, str]:
        """The columns by their names, and by their folded names where no column is called just so."""
        return {folded(name): name for name in reversed(self.names)} | {
            name: name for name in self.names
        }

    def first(self, known: Sequence[str]) -> str | None:
        """The column of the first of these names that exists."""
        return next(filter(None, map(self.column, known)), None)

    def column(self, known: str) -> str | None:
        """The column of just this name, else the one of this name in other case. Raises DataError if there
        are two of those."""
        if known in self.names:
            return known
        same = [name for name in self.names if folded(name) == known]
        if len(same) > 1:
            raise self.error(
                f"each column must have a name of its own, but {same[0]!r} and {same[1]!r} are one where case"
                " is ignored; rename one"
            )
        return same[0] if same else None

    def find(self, setting: str, title: str, known: Sequence[str]) -> str:
        """The column that a setting names, else the first with a known name. Raises DataError if there is
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
            f"the {which} of {title} {known} not known by name (found: {quoted(self.names)}); say which with"
            f" {advice}"
        )


@final
class Row(NamedTuple):
    """What a row has in the columns that are read."""

    values: dict[str, object]
    """Role -> a cell, or a value of JSON; a tuple where the role has several columns."""
    columns: dict[str, str]
    """Role -> the name of its column."""
    file: DataFile
    line: int

    def text(self, role: str, *, loose: bool = False) -> str:
        """The text of a role. Raises DataError if it is none, `loose` where it is neither a number, yes or
        no, nothing, nor a list. Nothing is an empty text where bad rows may be skipped, as in an empty cell
        of a csv file."""
        value = self.values[role]
        text = _text(value, loose, self.file.options)
        if text is None:
            advice = ""
            if as_list(value) is not None:
                advice = "; to join its texts with a blank between them: --set data.join=' '"
            if value is None:
                advice = "; leave such rows out with --set data.on_bad_line=skip"
            must = "a text, a number or a list of such" if loose else "a text"
            raise self.file.error(
                f"{self.columns.get(role, role)!r} must be {must}, but is {kind_of(value)}{advice}",
                self.line,
            )
        if not loose and (parts := as_list(value)) is not None:
            found = f"a list of texts joined with {self.file.options.join!r}"
            if role == "target" and len(parts) > 1:
                found = f"a list of several targets joined with {self.file.options.join!r} to one"
            self.file.find(found, self.line)
        return text


def _text(value: object, loose: bool, options: DataConfig) -> str | None:
    match value:
        case str():
            return value
        case None if options.on_bad_line == "skip":
            return ""
        case tuple():
            return _joined([_text(part, loose, options) for part in value], options.join or " ")
        case list() if options.join is not None and not loose:
            return _joined([as_text(part) for part in value], options.join)
    return loose_text(value) if loose else None


def _joined(texts: list[str | None], between: str) -> str | None:
    known = [text for text in texts if text is not None]
    return between.join(known) if len(known) == len(texts) else None


@final
@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """Which columns of a table a task reads, and what record a row makes."""

    choose: Callable[[Header], dict[str, str]]
    """Role -> the column to read; raises DataError if that is not known."""
    record: Callable[[dict[str, str], DataFile, int], Iterator[Record]]
    """(role -> text, file, line) -> the record; none where the row is left out, which is counted."""
    settings: tuple[str, ...]
    """Settings that name columns."""
    known: frozenset[str]
    """Names by which a header is recognised."""
    headerless: tuple[str, ...]
    """Roles of the columns of a table without a header where no setting names them; empty if settings
    must."""
    loose: tuple[str, ...] = ()
    """Roles that need not be text: a number, yes or no, nothing, or a list, whose items UNIT ends."""
    optional: tuple[str, ...] = ()
    """Roles that are read where a row has a column of this name."""
    items: tuple[str, ...] = ()
    """Roles of the values of a list that is a row of a JSON file."""
    inside: str = ""
    """A field whose object may hold the columns, as in Hugging Face's translation sets."""
    of_pairs: bool = False
    """Source and target, which are also recognised by languages."""
    every: bool = False
    """Whether all columns are read, by whatever names; without a header they have numbers."""

    def columns(self, header: Header) -> dict[str, str]:
        """Role -> the column to read, or several with commas between."""
        return {**self.choose(header), **self.optional_columns(header)}

    def optional_columns(self, header: Header) -> dict[str, str]:
        found = {role: header.column(role) for role in self.optional}
        return {role: name for role, name in found.items() if name is not None}

    def records(self, row: Row) -> Iterator[Record]:
        """The record of a row whose texts may hold what is not a character, if it makes one."""
        fields = {role: row.text(role, loose=role in self.loose) for role in row.values}
        texts = row.file.clean(list(fields.values()), row.line)
        if texts is not None:
            yield from self.record(dict(zip(fields, texts, strict=True)), row.file, row.line)


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
    """The columns of source and target, by setting or by guess; None if neither helps."""
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


class Wanted(NamedTuple):
    """A column that a task reads."""

    setting: str
    """The setting that names it, and its role."""
    title: str
    known: Sequence[str]
    """Names by which it is recognised."""


def choose_columns(header: Header, wanted: Sequence[Wanted]) -> dict[str, str]:
    """Each column by its setting, else by a known name, which is noted where it is not the title. Raises
    DataError that names all those that neither tells."""
    named = {column.setting: header.named(column.setting) for column in wanted}
    chosen = {setting: name for setting, name in named.items() if name is not None}
    guesses = {}
    for setting, title, known in wanted:
        if setting not in chosen:
            guess = header.without(chosen.values()).first(known)
            if guess is not None:
                chosen[setting] = guess
                if folded(guess) != title:
                    guesses[setting] = (guess, title)
    missing = [column for column in wanted if column.setting not in chosen]
    if missing:
        titles = " and ".join(f"the {column.title}" for column in missing)
        raise header.unknown(titles, [column.setting for column in missing])
    if guesses:
        header.file.note_guesses(guesses)
    return chosen


def _text_column(header: Header) -> dict[str, str]:
    known = header.names if len(header.names) == 1 else TEXTS
    return choose_columns(header, [Wanted("text", "text", known)])


def first_few(names: Sequence[str], most: int) -> str:
    """The first of them, with `...` where there are more."""
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


PAIR = TableSchema(
    choose=_pair_columns,
    record=pair_record,
    settings=("source", "target"),
    known=frozenset((*SOURCES, *TARGETS)),
    headerless=("source", "target"),
    items=("source", "target"),
    inside="translation",
    of_pairs=True,
)
TEXT = TableSchema(
    choose=_text_column,
    record=full_record,
    settings=("text",),
    known=frozenset(TEXTS),
    headerless=("text",),
    items=("text",),
)
