"""Character offsets of tokens, for every tokenizer; and the tokens that overlap a span of characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from seqloom.protocols import StoredTokenizer

Span = tuple[int, int]
"""`text[begin:end]`, in code points."""


def offsets_of(tokenizer: StoredTokenizer, texts: Sequence[str]) -> list[list[Span]]:
    """The part of the text that each id of `encode` comes from, without white space at its ends unless it is
    nothing else.

    Spans follow each other in the order of the text. A character that takes several tokens belongs to each of
    them; one that the tokenizer drops (accents, by uncased BERT) belongs to the token before it. So every
    character is covered, except white space, invisible ones (category C of Unicode), and dropped ones that
    have no token before them. Raises UsageError as `encode` does.
    """
    found = []
    for text, spans in zip(texts, tokenizer.offsets(texts), strict=True):
        found.append(_extended(text, [_trimmed(text, span) for span in spans]))
    return found


def _trimmed(text: str, span: Span) -> Span:
    """Without white space at the ends."""
    begin, end = span
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return (begin, end) if begin < end else span


def _extended(text: str, spans: list[Span]) -> list[Span]:
    """Each span with the characters after it that no other span has: where several characters become one, the
    library counts only the first."""
    next_begin = dict(pairwise([*sorted({begin for begin, _ in spans}), len(text)]))
    found = []
    for begin, end in spans:
        while begin < end < next_begin[begin]:
            if text[end].isspace() or unicodedata.category(text[end])[0] == "C":
                break
            end += 1
        found.append((begin, end))
    return found


def covering(offsets: Sequence[Span], begin: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that overlap `text[begin:end]`; None if none does. Offsets are those of
    `offsets_of`."""
    overlapping = [
        token
        for token, (first, last) in enumerate(offsets)
        if first < end and last > begin and first < last
    ]
    return (overlapping[0], overlapping[-1]) if overlapping else None
