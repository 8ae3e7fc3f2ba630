"""Where in a text its tokens stand, whatever the tokenizer; and which tokens stand where a part of the text
does."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from seqloom.text.hub.tokenizer import HubTokenizer
from seqloom.text.tokenizers import TextTokenizer

Span = tuple[int, int]
"""`text[begin:end]`, in code points."""


def offsets_of(tokenizer: TextTokenizer | HubTokenizer, texts: Sequence[str]) -> list[list[Span]]:
    """The part of the text that each id of `encode` comes from, without the white space at its ends unless it
    is nothing else.

    Spans lie in the text and go on in its order. A character that takes several tokens belongs to each of
    them; one that a tokenizer drops (accents, by uncased BERT) belongs to what is before it. So nothing is
    left out but white space, what cannot be seen (category C of Unicode), and what is dropped where nothing
    is before it. Raises UsageError as `encode` does.
    """
    found = tokenizer.offsets(texts)
    return [
        _filled(text, [_trimmed(text, span) for span in spans])
        for text, spans in zip(texts, found, strict=True)
    ]


def _trimmed(text: str, span: Span) -> Span:
    """Without white space at the ends."""
    begin, end = span
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return (begin, end) if begin < end else span


def _filled(text: str, spans: list[Span]) -> list[Span]:
    """With the characters that follow each span and are in no other: of those that become one the library
    counts the first alone."""
    following = dict(pairwise([*sorted({begin for begin, _ in spans}), len(text)]))
    found = []
    for begin, end in spans:
        while (
            begin < end < following[begin]
            and not text[end].isspace()
            and unicodedata.category(text[end])[0] != "C"
        ):
            end += 1
        found.append((begin, end))
    return found


def covering(offsets: Sequence[Span], begin: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that hold some of `text[begin:end]`; None where none does. Offsets as
    `offsets_of` gives them."""
    held = [at for at, (first, last) in enumerate(offsets) if first < end and last > begin and first < last]
    return (held[0], held[-1]) if held else None
