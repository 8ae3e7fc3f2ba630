"""Columns of a word a line, a blank line after each sentence (CoNLL 2003 and its kin, IOB2 files with
comments).

    word<TAB>tag          or          word pos chunk tag

Columns are separated by tabs where the first line of words has one, else by runs of spaces; U+00A0 and its
like are part of a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, final

from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.lines import Line
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tag_scheme import TagCheck
from seqloom.errors import printable

MOST_LINES = 100_000
"""Of a sentence."""
_DOCUMENT = re.compile(r"-DOCSTART-(?![^ \t])|#(begin|end) document(?![^ \t;])")
"""The mark of a new document (CoNLL-2003, CoNLL-2012), which ends a sentence and is none; it may have other
columns than words have."""
_SPACES = re.compile(r"[ \t]+")
_COMMENT = re.compile(r"# *\S+( +\S+)? *= ")
BY_ANNOTATOR = ".iob2"
"""How the names of files end whose columns are number, word, tag and annotator (Universal NER)."""


def sentences(file: DataFile) -> Iterator[tuple[int, list[Line]]]:
    """The lines between blank ones, and which sentence they are, from 1; one with a bad line is skipped.
    Raises DataError if there are more than MOST_LINES."""
    for number, block in enumerate(_blocks(file), start=1):
        for line in block:
            if line.problem is not None:
                file.skip(f"sentence with {line.problem}", line.number)
                break
        else:
            yield number, block


def _blocks(file: DataFile) -> Iterator[list[Line]]:
    block: list[Line] = []
    after_mark = False
    for line in file.lines():
        mark = _DOCUMENT.match(line.text)
        if mark is not None:
            file.skip(f"{mark[0]} line", line.number)
            if block:
                yield block
            block = []
        elif line.text.strip(" \t"):
            block.append(line)
        elif block:
            if line.text:
                file.find("a line of spaces or tabs ends a sentence", line.number)
            yield block
            block = []
        elif not after_mark:
            file.find("a blank line more than one between sentences", line.number)
        after_mark = mark is not None
        if len(block) > MOST_LINES:
            raise file.error(
                f"a sentence must have at most {MOST_LINES:,} lines, but this one has more; is there a blank"
                " line after each sentence?",
                block[0].number,
            )
    if block:
        yield block


def read_conll(file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """The sentences of a file; with `answers` false tags need not exist.

    Raises DataError, with the line, where columns are missing or separated otherwise than in the first line,
    where a word or a tag is empty, and where tags of spans are not as they must be (`TagCheck`); with
    `data.on_bad_line=skip` such sentences are counted and left out.
    """
    tags = TagCheck(file) if answers else None
    columns: _Columns | None = None
    for _, block in sentences(file):
        first = next((line for line in block if not line.text.startswith("# ")), None)
        if columns is None and first is not None:
            columns = _columns(first, file, answers)
        words = (
            [] if columns is None else [line for line in block if not columns.is_comment(line.text)]
        )
        if columns is None or not words:
            file.skip("comments without words", block[0].number)
            continue
        reason = "sentence whose columns or tags are wrong"
        yield from file.usable(
            partial(_sentence, words, file, columns, tags), reason, words[0].number
        )


@final
class _Columns(NamedTuple):
    """How the columns of a file are separated, how many there are, which of them (from 0) are word and
    tag."""

    tabs: bool
    number: int
    word: int
    tag: int
    first: int
    """The line that showed it."""

    @property
    def separator(self) -> str:
        return "tabs" if self.tabs else "spaces"

    def cells(self, text: str) -> list[str]:
        return text.split("\t") if self.tabs else _SPACES.split(text.strip(" \t"))

    def is_comment(self, text: str) -> bool:
        """Where tabs separate columns a line `# ` without one; else one such as `# sent_id = 7`, for # may be
        a word."""
        if self.tabs:
            return text.startswith("# ") and "\t" not in text
        return text.startswith("# ") and _COMMENT.match(text) is not None


def _columns(first: Line, file: DataFile, answers: bool) -> _Columns:
    columns = _Columns("\t" in first.text.strip("\t"), 0, 0, 0, first.number)
    count = len(columns.cells(first.text))
    word, tag = file.options.columns or (1, count)
    if file.options.columns is None:
        by_annotator = count == 5 and file.path.removesuffix(".gz").endswith(BY_ANNOTATOR)
        if by_annotator:
            word, tag = 2, 3
        if by_annotator or (answers and count > 2):
            file.note(
                f"columns {word} and {tag} are taken as word and tag; to take others: --set"
                " data.columns=[WORD,TAG]"
            )
    least = max(word, tag) if answers else word
    if count < least or (answers and count < 2):
        raise file.error(
            f"there must be a word and a tag, in columns {word} and {max(tag, 2)}, but the line has {count},"
            f" separated by {columns.separator} (the line: {printable(first.text[:80])}); a sentence of plain"
            " text a line: --set data.format=text",
            first.number,
        )
    return columns._replace(number=count, word=word - 1, tag=tag - 1)


def _sentence(
    lines: Sequence[Line], file: DataFile, columns: _Columns, check: TagCheck | None
) -> TaggedWords:
    words, tags = [], []
    for line in lines:
        cells = columns.cells(line.text)
        shown = f"(the line: {printable(line.text[:80])})"
        if len(cells) != columns.number:
            raise file.error(f"{_wrong_count(line, cells, columns)} {shown}", line.number)
        word, tag = cells[columns.word], cells[columns.tag] if check is not None else ""
        if not word.strip(" "):
            raise file.error(f"the word (column {columns.word + 1}) is empty {shown}", line.number)
        if check is not None and (not tag or tag != tag.strip()):
            what = f"has spaces at an end: {printable(tag)!r}" if tag.strip() else "is empty"
            raise file.error(f"the tag (column {columns.tag + 1}) {what} {shown}", line.number)
        words.append(word)
        tags.append(tag)
    checked = () if check is None else check.checked(tags, [line.number for line in lines])
    return TaggedWords(tuple(words), checked, file.path, lines[0].number)


def _wrong_count(line: Line, cells: Sequence[str], columns: _Columns) -> str:
    hint = ""
    if not columns.tabs:
        if "\t" in line.text:
            hint = "; a tab stands in it, but not in the first line"
    elif len(cells) < columns.number == len(_SPACES.split(line.text.strip(" \t"))):
        hint = "; a space stands where a tab is needed"
    return (
        f"there must be {columns.number} columns, separated by {columns.separator} as in line"
        f" {columns.first}, but there are {len(cells)}{hint}"
    )
