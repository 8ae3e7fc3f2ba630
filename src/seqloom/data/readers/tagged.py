"""Sentences with a tag for each word, of whatever form: columns, CoNLL-U, `word_TAG`, spans in JSON, lists in
JSONL; or plain words without tags."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from seqloom.config import DataConfig
from seqloom.data.formats.columns import lines_of, writable
from seqloom.data.formats.findings import Findings
from seqloom.data.formats.jsonl import json_object
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.conll import read_conll
from seqloom.data.readers.conllu import read_conllu
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.records import read_texts
from seqloom.data.readers.tag_scheme import TagCheck
from seqloom.data.readers.tagged_spans import read_tagged_spans
from seqloom.data.readers.word_tags import read_word_tags
from seqloom.errors import DataError, UsageError, place, printable

FORMS = {
    ".conllu": "conllu",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".zip": "tagged",
    ".pos": "tagged",
}
"""What the end of a file's name says about its form (before `.gz`); all else is columns."""
COLUMNS = (".conll", ".iob", ".iob2", ".bio", ".tsv", ".tab", ".col", ".annotated")
"""Ends of names that are columns also where no tags are needed; of others a line is then a sentence."""

WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels")
"""Names of lists in JSONL that are known."""


def read_tagged(
    paths: Sequence[str], options: DataConfig, report: ReadReport, *, answers: bool = True
) -> Iterator[TaggedWords]:
    """The sentences of all files, one after the other; with `answers` false tags need not be there, and plain
    text will do.

    Raises what the readers of the forms raise, and DataError where a file has no sentence.
    """
    for path in paths:
        read = _READERS[_form(path, options, report, answers)]
        before = report.used
        try:
            yield from read(path, options, report, answers=answers)
        except DataError as error:
            report.rejected += error.line is not None
            raise
        if answers and report.used == before:
            raise DataError("there is no sentence in it that can be used", path)


def _form(path: str, options: DataConfig, report: ReadReport, answers: bool) -> str:
    if options.format == "tsv":
        return "conll"
    if options.format != "auto":
        if options.format not in _READERS:
            raise UsageError(
                f"words with tags must be in one of the forms {', '.join(_READERS)}, but data.format is"
                f" {options.format}"
            )
        return options.format
    suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if suffix in FORMS:
        return FORMS[suffix]
    if answers or suffix in COLUMNS:
        return "conll"
    report.note(f"{place(path)}: a line is taken as a sentence; of a word a line: --set data.format=conll")
    return "text"


def read_words(path: str, options: DataConfig, report: ReadReport, *, answers: bool) -> Iterator[TaggedWords]:
    """A sentence a line, its words parted by blanks and without tags; a blank line, or one that is skipped,
    has no words."""
    if answers:
        raise UsageError(
            "plain text has no tags; name files of words and tags (conll, conllu, tagged or json)"
        )
    for record in read_texts(path, options, report, every_line=True):
        words = record.fields["text"].replace("\t", " ").split(" ")
        yield TaggedWords(tuple(word for word in words if word), (), path, record.line)


def read_tag_lists(
    path: str, options: DataConfig, report: ReadReport, *, answers: bool
) -> Iterator[TaggedWords]:
    """A sentence a line of JSONL, `{"tokens": ["I", "am"], "tags": ["PRON", "AUX"]}`, under the names
    `data.text` and `data.label`, or one of the names WORDS and one of TAGS.

    Raises DataError, with the line, where they are no lists of texts or not of one length.
    """
    findings = Findings(path)
    check = TagCheck(path, findings, options.repair_tags)
    for line in lines_of(path, options, report):
        if line.problem is not None or not line.text.strip():
            report.skip(line.problem or "blank", path, line.number)
            continue
        content = json_object(line.text, path, line.number)
        words = writable(
            _texts(content, "words", options.text, WORDS, path, line.number, report),
            options,
            report,
            path,
            line.number,
        )
        if words is None:
            continue
        tags = _texts(content, "tags", options.label, TAGS, path, line.number, report) if answers else []
        if answers and len(tags) != len(words):
            raise DataError(
                f"there must be as many tags as words, but there are {len(tags)} for {len(words)}",
                path,
                line.number,
            )
        report.used += 1
        yield TaggedWords(tuple(words), check.checked(tags, [line.number] * len(tags)), path, line.number)
    findings.say(report)


def _texts(
    content: dict[str, Any],
    what: str,
    asked: str | None,
    known: Sequence[str],
    path: str,
    line: int,
    report: ReadReport,
) -> list[str]:
    names = [name for name in known if name in content] if asked is None else [asked]
    if len(names) > 1:
        role = "label" if what == "tags" else "text"
        report.note(
            f"{place(path)}: {names[0]!r} is taken as {what}; to take {' or '.join(names[1:])}: --set"
            f" data.{role}=NAME"
        )
    found = content.get(names[0]) if names else None
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(one, str) and one.strip(" ") for one in found)
    ):
        wanted = " or ".join(known) if asked is None else printable(asked)
        raise DataError(
            f"there must be a list of texts, none of them blank, under {wanted}; tags by name, not by number",
            path,
            line,
        )
    return found


class _TaggedReader(Protocol):
    def __call__(
        self, path: str, options: DataConfig, report: ReadReport, *, answers: bool
    ) -> Iterator[TaggedWords]: ...


_READERS: dict[str, _TaggedReader] = {
    "conll": read_conll,
    "conllu": read_conllu,
    "tagged": read_word_tags,
    "json": read_tagged_spans,
    "jsonl": read_tag_lists,
    "text": read_words,
}
