"""CoNLL-U, the form of Universal Dependencies: ten columns separated by tabs
(https://universaldependencies.org/format.html).

    ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC

A word is a line whose ID is a whole number. Ranges of several words (`3-4`) and empty nodes (`8.1`) are
checked and counted, and are not words. Trees (HEAD) are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import final

from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.lines import Line
from seqloom.data.readers.conll import sentences
from seqloom.data.readers.examples import TaggedWords
from seqloom.errors import DataError, printable

COLUMNS = 10
TAGS = {"upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
"""Their columns, from 0."""
_ID, _FORM = 0, 1
_NEVER_NONE = ("upos", "deprel")
"""Of these `_` says that nobody has filled them in; of the others that there is nothing to say."""
_RANGE, _EMPTY = (
    re.compile(r"([0-9]{1,9})-([0-9]{1,9})"),
    re.compile(r"([0-9]{1,9})\.([1-9][0-9]{0,8})"),
)
_SENTENCE = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")


def read_conllu(file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """The sentences of a file, with the tags `data.tags`; with `answers` false tags need not exist.

    Raises DataError, with the line and the sentence, for all that is not as the format has it; with
    `data.on_bad_line=skip` such sentences are counted and left out.
    """
    for number, block in sentences(file):
        comments = list(takewhile(lambda line: line.text.startswith("#"), block))
        names = (found[1] for line in comments if (found := _SENTENCE.match(line.text)))
        words = block[len(comments) :]
        if not words:
            file.skip("comments without words", block[0].number)
            continue
        sentence = _Sentence(file, next(names, f"number {number}"), words)
        reason = "sentence that is not CoNLL-U as it must be"
        yield from file.usable(partial(sentence.tagged, answers), reason, words[0].number)


@final
class _Sentence:
    """The checks of one sentence."""

    def __init__(self, file: DataFile, name: str, lines: Sequence[Line]) -> None:
        self._file, self._name, self._lines = file, name, lines

    def _error(self, message: str, line: int) -> DataError:
        return self._file.error(f"sentence {printable(self._name)}: {message}", line)

    def tagged(self, answers: bool) -> TaggedWords:
        rows = self._words()
        for line, cells in rows:
            if not cells[_FORM].strip(" "):
                raise self._error("the word (FORM) is empty", line)
        words = tuple(cells[_FORM] for _, cells in rows)
        tags = tuple(self._tag(cells, line) for line, cells in rows) if answers else ()
        return TaggedWords(words, tags, self._file.path, rows[0][0])

    def _tag(self, cells: list[str], line: int) -> str:
        name = self._file.options.tags
        tag = cells[TAGS[name]]
        if not tag.strip() or (tag == "_" and name in _NEVER_NONE):
            raise self._error(
                f"the word {printable(cells[_FORM])!r} has no {name.upper()} ({printable(tag)!r})",
                line,
            )
        return tag

    def _cells(self, line: Line) -> list[str]:
        if line.text.startswith("#"):
            raise self._error(
                "a comment stands inside of the sentence; comments go before its first word",
                line.number,
            )
        cells = line.text.split("\t")
        if len(cells) != COLUMNS:
            by_space = len(cells) < COLUMNS and " " in line.text
            hint = "; a space where a tab is needed?" if by_space else ""
            raise self._error(
                f"a word must have {COLUMNS} columns, separated by tabs, but there are {len(cells)}{hint}"
                f" (the line: {printable(line.text[:80])})",
                line.number,
            )
        return cells

    def _words(self) -> list[tuple[int, list[str]]]:
        """The lines and cells of words, whose numbers must be 1, 2, 3 ...; ranges must come before their
        first word, empty nodes after theirs. There is at least one word."""
        words: list[tuple[int, list[str]]] = []
        range_end = empty = 0
        rows = [(line.number, self._cells(line)) for line in self._lines]
        for line, cells in rows:
            if found := _RANGE.fullmatch(cells[_ID]):
                self._check_range(int(found[1]), int(found[2]), len(words), range_end, line)
                range_end = int(found[2])
            elif found := _EMPTY.fullmatch(cells[_ID]):
                empty += 1
                if (int(found[1]), int(found[2])) != (len(words), empty):
                    raise self._error(
                        f"the empty node {cells[_ID]} must be {len(words)}.{empty} here, after word"
                        f" {len(words)}",
                        line,
                    )
                self._file.find("an empty node (such as 8.1), no word", line)
            elif cells[_ID] == str(len(words) + 1):
                words.append((line, cells))
                empty = 0
            else:
                raise self._error(
                    f"the ID must be {len(words) + 1}, for words are numbered from 1, but is"
                    f" {printable(cells[_ID][:20])!r}",
                    line,
                )
        if range_end > len(words):
            raise self._error(
                f"a range goes up to word {range_end}, but there are only {len(words)}", rows[-1][0]
            )
        if not words:
            raise self._error("there is no word in it", rows[0][0])
        return words

    def _check_range(self, begin: int, end: int, words: int, range_end: int, line: int) -> None:
        name = f"{begin}-{end}"
        if begin >= end:
            raise self._error(f"a range must go from a word to a later one, but is {name}", line)
        if begin != words + 1 or begin <= range_end:
            raise self._error(
                f"the range {name} must stand right before word {begin}, and no two may overlap",
                line,
            )
        self._file.find("a range of several words (such as 3-4), itself no word", line)
