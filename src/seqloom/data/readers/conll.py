"""Columns of a word a line, a blank line after each sentence (CoNLL 2003 and its kin, IOB2 files with
comments).

    word<TAB>tag          or          word pos chunk tag

Columns are parted by tabs where the first line of words has one, else by runs of blanks; U+00A0 and its like
are part of a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import lines_of
from seqloom.data.formats.findings import Findings
from seqloom.data.formats.lines import Line
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tag_scheme import TagCheck
from seqloom.errors import DataError, place, printable

MOST_LINES = 100_000
"""Of a sentence."""
DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")
_COMMENT = re.compile(r"# *\S+( +\S+)? *= ")
BY_ANNOTATOR = ".iob2"
"""What the names of files end in whose columns are number, word, tag and who said so (Universal NER)."""


def sentences(path: str, options: DataConfig, report: ReadReport, findings: Findings) -> Iterator[list[Line]]:
    """The lines between blank ones. Raises DataError where there are more than MOST_LINES."""
    block: list[Line] = []
    for line in lines_of(path, options, report):
        if line.text.strip(" \t"):
            block.append(line)
        elif block:
            if line.text:
                findings.note("a line of blanks or tabs ends a sentence", line.number)
            yield block
            block = []
        else:
            findings.note("a blank line more than one between sentences", line.number)
        if len(block) > MOST_LINES:
            raise DataError(
                f"a sentence must have at most {MOST_LINES:,} lines, but this one has more; is there a blank"
                " line after each sentence?",
                path,
                block[0].number,
            )
    if block:
        yield block


def read_conll(path: str, options: DataConfig, report: ReadReport, *, answers: bool) -> Iterator[TaggedWords]:
    """The sentences of a file; with `answers` false tags need not be there.

    Raises DataError, with the line, where columns are missing or parted otherwise than in the first line,
    where a word or a tag is empty, and where tags of spans are not as they must be (`TagCheck`); with
    `data.on_bad_line=skip` such sentences are counted and left out.
    """
    findings = Findings(path)
    tags = TagCheck(path, findings, options.repair_tags)
    columns: _Columns | None = None
    for block in sentences(path, options, report, findings):
        if (bad := next((line for line in block if line.problem is not None), None)) is not None:
            report.skip(f"sentence with {bad.problem}", path, bad.number)
            continue
        if (
            columns is None
            and (first := next((line for line in block if not line.text.startswith("# ")), None)) is not None
        ):
            columns = _columns(first, path, options, report, answers)
        words = [] if columns is None else [line for line in block if not _is_comment(line.text, columns)]
        if columns is None or not words:
            report.skip("comments without words", path, block[0].number)
            continue
        if words[0].text.startswith(DOCUMENT):
            report.skip(f"{DOCUMENT} line", path, words[0].number)
            words = words[1:]
        if not words:
            continue
        try:
            yield _sentence(words, path, columns, tags if answers else None)
            report.used += 1
        except DataError as error:
            if options.on_bad_line != "skip":
                raise
            report.skip("sentence whose columns or tags are wrong", path, error.line or words[0].number)
    findings.say(report)


@final
class _Columns(NamedTuple):
    """How the columns of a file are parted, how many there are, which of them (from 0) are word and tag."""

    tabs: bool
    number: int
    word: int
    tag: int
    first: int
    """The line that told it."""

    def cells(self, text: str) -> list[str]:
        return text.split("\t") if self.tabs else _BLANKS.split(text.strip(" \t"))


def _is_comment(text: str, columns: _Columns) -> bool:
    """In a file that tabs part a line `# ` without one; else one such as `# sent_id = 7`, for # may be a
    word."""
    return text.startswith("# ") and ("\t" not in text if columns.tabs else _COMMENT.match(text) is not None)


def _columns(first: Line, path: str, options: DataConfig, report: ReadReport, answers: bool) -> _Columns:
    tabs = "\t" in first.text.strip("\t")
    count = len(first.text.split("\t") if tabs else _BLANKS.split(first.text.strip(" \t")))
    word, tag = options.columns or (1, count)
    if options.columns is None and path.removesuffix(".gz").endswith(BY_ANNOTATOR) and count == 5:
        word, tag = 2, 3
        report.note(
            f"{place(path)}: columns 2 and 3 are taken as word and tag; to take others: --set"
            " data.columns=[WORD,TAG]"
        )
    elif options.columns is None and answers and count > 2:
        report.note(
            f"{place(path)}: columns 1 and {count} are taken as word and tag; to take others: --set"
            " data.columns=[WORD,TAG]"
        )
    columns = _Columns(tabs, count, word - 1, tag - 1, first.number)
    least = max(word, tag) if answers else word
    if count < least or (answers and count < 2):
        by = "tabs" if tabs else "blanks"
        raise DataError(
            f"there must be a word and a tag, in columns {word} and {max(tag, 2)}, but the line has {count},"
            f" parted by {by} (the line: {printable(first.text[:80])}); a sentence of plain text a line:"
            " --set data.format=text",
            path,
            first.number,
        )
    return columns


def _sentence(lines: Sequence[Line], path: str, columns: _Columns, tags: TagCheck | None) -> TaggedWords:
    words, special_ids = [], []
    for line in lines:
        cells = columns.cells(line.text)
        if len(cells) != columns.number:
            raise DataError(_wrong_count(line, cells, columns), path, line.number)
        word = cells[columns.word]
        if not word.strip(" "):
            raise DataError(
                f"the word (column {columns.word + 1}) is empty (the line: {printable(line.text[:80])})",
                path,
                line.number,
            )
        words.append(word)
        if tags is None:
            continue
        tag = cells[columns.tag]
        if not tag or tag != tag.strip():
            what = "is empty" if not tag.strip() else f"has blanks at an end: {printable(tag)!r}"
            raise DataError(
                f"the tag (column {columns.tag + 1}) {what} (the line: {printable(line.text[:80])})",
                path,
                line.number,
            )
        special_ids.append(tag)
    checked = (
        tuple(special_ids) if tags is None else tags.checked(special_ids, [line.number for line in lines])
    )
    return TaggedWords(tuple(words), checked, path, lines[0].number)


def _wrong_count(line: Line, cells: Sequence[str], columns: _Columns) -> str:
    by = "tabs" if columns.tabs else "blanks"
    hint = ""
    if (
        columns.tabs
        and len(cells) < columns.number
        and len(_BLANKS.split(line.text.strip(" \t"))) == columns.number
    ):
        hint = "; a space stands where a tab is needed"
    elif not columns.tabs and "\t" in line.text:
        hint = "; a tab stands in it, but not in the first line"
    return (
        f"there must be {columns.number} columns, parted by {by} as in line {columns.first}, but there are"
        f" {len(cells)}{hint} (the line: {printable(line.text[:80])})"
    )
