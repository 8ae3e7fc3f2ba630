"""Sentences a line with each word's tag after its last `_` (`The_DT end_NN`): text files, and zip archives of
them as corpora come."""

from __future__ import annotations

from collections.abc import Iterator

from seqloom.data.formats.archives import members
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.lines import Line
from seqloom.data.readers.examples import TaggedWords
from seqloom.errors import printable


def read_word_tags(file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """The sentences of a text, or of all texts of an archive (`.zip`) in the order of their names.

    With `answers` false only the words are given, without what follows the last `_`. A word without a tag is
    left out, counted; a file of an archive in which most words have none is not a text, and is left out too.
    Raises DataError if an archive is damaged or encrypted.
    """
    if not file.path.lower().endswith(".zip"):
        for line in file.full_lines():
            yield from _sentence(line, file, answers)
        return
    with members(file) as (files, left_out):
        for member in files:
            lines = list(member.lines())
            words = [word for line in lines if line.problem is None for word in line.text.split()]
            if 2 * sum(map(_has_tag, words)) > len(words):
                for line in member.file.full_lines(lines):
                    yield from _sentence(line, member.file, answers)
            else:
                left_out.append("/".join(member.parts))
    if left_out:
        shown = ", ".join(map(printable, left_out[:10]))
        file.note(f"{shown} left out, for most words in it have no tag")


def _has_tag(token: str) -> bool:
    _, mark, tag = token.rpartition("_")
    return bool(mark and tag)


def _sentence(line: Line, file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """That of a line with text, or none."""
    words, tags = [], []
    for token in line.text.replace("\t", " ").split(" "):
        if _has_tag(token):
            word, _, tag = token.rpartition("_")
            words.append(word or "_")
            tags.append(tag)
            if not word:
                file.find("a tag without a word, which is taken to be the word _", line.number)
        elif token:
            file.find("a word without a tag, which is left out", line.number)
    if words:
        known = tags if answers else ()
        yield TaggedWords(tuple(words), tuple(known), file.path, line.number)
    else:
        file.skip("no word has a tag", line.number)
