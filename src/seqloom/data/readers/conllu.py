"""CoNLL-U, the form of Universal Dependencies: ten columns parted by tabs
(https://universaldependencies.org/format.html).

    ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC

A word is a line whose ID is a whole number. Ranges of several words (`3-4`) and empty nodes (`8.1`) are
checked, counted and no words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NoReturn, final

from seqloom.config import DataConfig
from seqloom.data.formats.findings import Findings
from seqloom.data.formats.lines import Line
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.conll import sentences
from seqloom.data.readers.examples import TaggedWords
from seqloom.errors import DataError, printable

COLUMNS = 10
TAGS = {"upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
"""Their columns, from 0."""
_FORM = 1
_NEVER_NONE = ("upos", "deprel")
"""Of these `_` says that nobody has filled them in; of the others that there is nothing to say."""
_RANGE, _EMPTY = re.compile(r"([0-9]{1,9})-([0-9]{1,9})"), re.compile(r"([0-9]{1,9})\.([1-9][0-9]{0,8})")
_SENTENCE = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")


def read_conllu(
    path: str, options: DataConfig, report: ReadReport, *, answers: bool
) -> Iterator[TaggedWords]:
    """The sentences of a file, with the tags `data.tags`; with `answers` false tags need not be there. Trees
    (HEAD) are not read.

    Raises DataError, with the line and the sentence, for all that is not as the format has it; with
    `data.on_bad_line=skip` such sentences are counted and left out.
    """
    findings = Findings(path)
    for number, block in enumerate(sentences(path, options, report, findings), 1):
        if (bad := next((line for line in block if line.problem is not None), None)) is not None:
            report.skip(f"sentence with {bad.problem}", path, bad.number)
            continue
        comments = list(takewhile(lambda line: line.text.startswith("#"), block))
        name = next(
            (found[1] for line in comments if (found := _SENTENCE.match(line.text))), f"number {number}"
        )
        words = block[len(comments) :]
        if not words:
            report.skip("comments without words", path, block[0].number)
            continue
        try:
            yield _Sentence(path, name).tagged(words, options.tags, findings, answers)
            report.used += 1
        except DataError as error:
            if options.on_bad_line != "skip":
                raise
            report.skip("sentence that is not CoNLL-U as it must be", path, error.line or words[0].number)
    findings.say(report)


@final
class _Sentence:
    """The checks of one sentence."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def _fail(self, message: str, line: int) -> NoReturn:
        raise DataError(f"sentence {printable(self._name)}: {message}", self._path, line)

    def tagged(self, lines: Sequence[Line], tags: str, findings: Findings, answers: bool) -> TaggedWords:
        rows = self._words([(line.number, self._cells(line)) for line in lines], findings)
        if not rows:
            self._fail("there is no word in it", lines[0].number)
        for line, cells in rows:
            if not cells[_FORM].strip(" "):
                self._fail("the word (FORM) is empty", line)
        words = tuple(cells[_FORM] for _, cells in rows)
        if not answers:
            return TaggedWords(words, (), self._path, rows[0][0])
        column = TAGS[tags]
        for line, cells in rows:
            if not cells[column].strip() or (cells[column] == "_" and tags in _NEVER_NONE):
                self._fail(
                    f"the word {printable(cells[_FORM])!r} has no {tags.upper()}"
                    f" ({printable(cells[column])!r})",
                    line,
                )
        return TaggedWords(words, tuple(cells[column] for _, cells in rows), self._path, rows[0][0])

    def _cells(self, line: Line) -> list[str]:
        if line.text.startswith("#"):
            self._fail(
                "a comment stands inside of the sentence; comments go before its first word", line.number
            )
        cells = line.text.split("\t")
        if len(cells) != COLUMNS:
            by_space = len(cells) < COLUMNS and " " in line.text
            hint = "; a space where a tab is needed?" if by_space else ""
            self._fail(
                f"a word must have {COLUMNS} columns, parted by tabs, but there are {len(cells)}{hint} (the"
                f" line: {printable(line.text[:80])})",
                line.number,
            )
        return cells

    def _words(
        self, rows: Sequence[tuple[int, list[str]]], findings: Findings
    ) -> list[tuple[int, list[str]]]:
        """The rows of words, whose numbers must be 1, 2, 3 ...; ranges must stand before their first word,
        empty nodes after theirs."""
        words: list[tuple[int, list[str]]] = []
        until, empty, line = 0, 0, 0
        for line, cells in rows:
            if (found := _RANGE.fullmatch(cells[0])) is not None:
                begin, end = int(found[1]), int(found[2])
                if begin >= end:
                    self._fail(f"a range must go from a word to a later one, but is {cells[0]}", line)
                if begin != len(words) + 1 or begin <= until:
                    self._fail(
                        f"the range {cells[0]} must stand right before word {begin}, and no two may overlap",
                        line,
                    )
                until = end
                findings.note("a range of several words (such as 3-4), itself no word", line)
            elif (found := _EMPTY.fullmatch(cells[0])) is not None:
                if (int(found[1]), int(found[2])) != (len(words), empty + 1):
                    self._fail(
                        f"the empty node {cells[0]} must be {len(words)}.{empty + 1} here, after word"
                        f" {len(words)}",
                        line,
                    )
                empty += 1
                findings.note("an empty node (such as 8.1), no word", line)
            else:
                if cells[0] != str(len(words) + 1):
                    self._fail(
                        f"the ID must be {len(words) + 1}, for words are numbered from 1, but is"
                        f" {printable(cells[0][:20])!r}",
                        line,
                    )
                words.append((line, cells))
                empty = 0
        if until > len(words):
            self._fail(f"a range goes up to word {until}, but there are only {len(words)}", line)
        return words
