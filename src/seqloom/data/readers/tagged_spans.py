"""Sentences in which parts of the text have a name, in JSON, as words with B- and I- tags (the form of the
Snips data):

{"PlayMusic": [{"data": [{"text": "play "}, {"text": "Sky Blue", "entity": "track"}, {"text": "\\n"}]}, ...]}
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from seqloom.data.formats.data_file import DataFile
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.tag_scheme import OUTSIDE
from seqloom.json_values import (
    as_list,
    as_object,
    as_text,
    field_of,
    full_text,
    kind_of,
)


def read_tagged_spans(content: object, file: DataFile, answers: bool) -> Iterator[TaggedWords]:
    """The sentences of the content of a file; the line of each is its number in the file, from 1. Words are
    divided at white space, and where a span begins or ends inside of one.

    Raises DataError, with that number, where the content is of another form.
    """
    reason = "sentence that is not as it must be"
    for number, item in enumerate(_items(content, file), 1):
        for sentence in file.usable(partial(_sentence, item, file, number), reason, number):
            if sentence is None:
                continue
            words, tags = sentence
            if words:
                yield TaggedWords(words, tags if answers else (), file.path, number)
            else:
                file.skip("blank", number)


def _sentence(
    item: object, file: DataFile, number: int
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Words and tags; None if the sentence is left out."""
    parts = _parts(item, file, number)
    texts = file.clean([text for text, _ in parts], number)
    if texts is None:
        return None
    words: list[str] = []
    tags: list[str] = []
    in_word = False
    for text, (_, entity) in zip(texts, parts, strict=True):
        found = text.split()
        if found and in_word and not text[0].isspace():
            file.find("a span that begins or ends inside a word, which is cut there", number)
        in_word = bool(text) and not text[-1].isspace()
        words += found
        if entity is None:
            tags += [OUTSIDE] * len(found)
        elif found:
            tags += [f"B-{entity}", *[f"I-{entity}"] * (len(found) - 1)]
    return tuple(words), tuple(tags)


def _items(content: object, file: DataFile) -> Iterator[object]:
    names = as_object(content)
    for value in [content] if names is None else names.values():
        items = as_list(value)
        if items is None:
            raise file.error(
                f"there must be a list of sentences under each name, but there is {kind_of(value)}"
            )
        yield from items


def _parts(item: object, file: DataFile, number: int) -> list[tuple[str, str | None]]:
    """The text of each part of a sentence, and the name of its span."""
    parts = as_list(field_of(item, "data"))
    if not parts:
        raise file.error("a sentence must be an object with a list `data` of parts", number)
    found = []
    for part in parts:
        text, entity = as_text(field_of(part, "text")), full_text(field_of(part, "entity"))
        if text is None or entity != field_of(part, "entity"):
            raise file.error(
                "each part must have a `text`, and an `entity` that is a name where it has one",
                number,
            )
        found.append((text, entity))
    return found
