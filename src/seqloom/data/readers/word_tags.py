"""Sentences a line with each word's tag after its last `_` (`The_DT end_NN`): text files, and zip archives of
them as corpora come."""

from __future__ import annotations

from collections.abc import Iterator

from seqloom.config import DataConfig
from seqloom.data.formats.archives import member_lines, members
from seqloom.data.formats.columns import lines_of
from seqloom.data.formats.findings import Findings
from seqloom.data.formats.lines import Line
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.errors import place, printable


def read_word_tags(
    path: str, options: DataConfig, report: ReadReport, *, answers: bool
) -> Iterator[TaggedWords]:
    """The sentences of a text, or of all texts of an archive (`.zip`) in the order of their names.

    With `answers` false the words alone are given, without what follows the last `_`. A word without a tag is
    left out, counted; a file of an archive in which most words have none is no text, and is left out too.
    Raises DataError where an archive is damaged or encrypted.
    """
    findings = Findings(path)
    if path.lower().endswith(".zip"):
        with members(path) as (files, left_out):
            for member in files:
                lines = list(member_lines(member, options, report))
                words = [word for line in lines if line.problem is None for word in line.text.split()]
                if 2 * sum(map(_has_tag, words)) > len(words):
                    for line in lines:
                        yield from _sentence(line, member.path, findings, report, answers)
                else:
                    left_out.append("/".join(member.parts))
        if left_out:
            report.note(
                f"{place(path)}: {', '.join(map(printable, left_out[:10]))} left out, for most words in it"
                " have no tag"
            )
    else:
        for line in lines_of(path, options, report):
            yield from _sentence(line, path, findings, report, answers)
    findings.say(report)


def _has_tag(token: str) -> bool:
    _, mark, tag = token.rpartition("_")
    return bool(mark and tag)


def _sentence(
    line: Line, path: str, findings: Findings, report: ReadReport, answers: bool
) -> Iterator[TaggedWords]:
    """That of a line, or none."""
    if line.problem is not None or not line.text.strip():
        report.skip(line.problem or "blank", path, line.number)
        return
    words, tags = [], []
    for token in line.text.replace("\t", " ").split(" "):
        if _has_tag(token):
            word, _, tag = token.rpartition("_")
            words.append(word or "_")
            tags.append(tag)
            if not word:
                findings.note("a tag without a word, which is taken to be the word _", line.number, path)
        elif token:
            findings.note("a word without a tag, which is left out", line.number, path)
    if not words:
        report.skip("no word has a tag", path, line.number)
        return
    report.used += 1
    yield TaggedWords(tuple(words), tuple(tags) if answers else (), path, line.number)
