"""Sentences in which parts of the text have a name, in JSON, as words with B- and I- tags (the form of the
Snips data):

{"PlayMusic": [{"data": [{"text": "play "}, {"text": "Sky Blue", "entity": "track"}, {"text": "\\n"}]}, ...]}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seqloom.config import DataConfig
from seqloom.data.formats.columns import writable
from seqloom.data.formats.findings import Findings
from seqloom.data.formats.json_documents import read_document
from seqloom.data.formats.jsonl import kind_of
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tag_scheme import OUTSIDE
from seqloom.errors import DataError


def read_tagged_spans(
    path: str, options: DataConfig, report: ReadReport, *, answers: bool
) -> Iterator[TaggedWords]:
    """The sentences of a file; the line of each is its number in the file, from 1. Words are what blanks
    part, cut where a span begins or ends inside of one.

    Raises DataError, with that number, where the content is of another form.
    """
    content = read_document(path, options, report)
    findings = Findings(path)
    for number, item in enumerate(_items(content, path), 1):
        parts = item.get("data") if isinstance(item, dict) else None
        if not isinstance(parts, list) or not parts:
            raise DataError(
                f"sentence {number} must be an object with a list `data` of parts, but is not", path
            )
        kept = writable([_part(part, path, number)[0] for part in parts], options, report, path, number)
        if kept is None:
            continue
        words: list[str] = []
        tags: list[str] = []
        inside = False
        for text, part in zip(kept, parts, strict=True):
            entity = _part(part, path, number)[1]
            some = text.split()
            if some and inside and not text[0].isspace():
                findings.note("a span that begins or ends inside a word, which is cut there", number)
            inside = bool(text) and not text[-1].isspace()
            words += some
            tags += [
                OUTSIDE if entity is None else f"{'I' if at else 'B'}-{entity}" for at in range(len(some))
            ]
        if not words:
            report.skip("blank", path, number)
            continue
        report.used += 1
        yield TaggedWords(tuple(words), tuple(tags) if answers else (), path, number)
    findings.say(report)


def _items(content: Any, path: str) -> Iterator[Any]:
    lists = list(content.values()) if isinstance(content, dict) else [content]
    for items in lists:
        if not isinstance(items, list):
            raise DataError(
                f"there must be a list of sentences under each name, but there is {kind_of(items)}", path
            )
        yield from items


def _part(part: Any, path: str, number: int) -> tuple[str, str | None]:
    """Its text, and the name of its span."""
    text = part.get("text") if isinstance(part, dict) else None
    entity = part.get("entity") if isinstance(part, dict) else None
    if not isinstance(text, str) or not (entity is None or (isinstance(entity, str) and entity.strip())):
        raise DataError(
            f"sentence {number}: each part must have a `text`, and an `entity` that is a name where it"
            " has one",
            path,
        )
    return text, entity
