"""Texts to ids with a cache: most of a text is words that occurred before.

A segment is white space and what follows it up to the next white space, ` word,`. As no tokenizer of ours
joins anything over the places between (see `documents.py`), the ids of a text are those of its segments, one
after the other. Each segment is tokenised when it first occurs; the cache is of bounded size. A tokenizer
that puts a space before a text (unigram) tokenises whole texts.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import chain, filterfalse
from typing import final

from seqloom.data.readers.documents import WHITE_SPACE
from seqloom.protocols import Tokenizer

MOST = 2**16
"""Segments of a generation; two generations are cached."""
LONGEST = 64
"""Characters of a segment that is cached."""

_SEGMENT = re.compile(f"[{WHITE_SPACE}]*[^{WHITE_SPACE}]+|[{WHITE_SPACE}]+")


@final
class SegmentEncoder:
    """Gives what `tokenizer.encode` gives, as raw numbers of the type with this code of `array` (H or I)."""

    def __init__(self, tokenizer: Tokenizer, code: str) -> None:
        self.tokenizer, self.code = tokenizer, code
        self.young: dict[str, bytes] = {}
        self.old: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text."""
        if self.tokenizer.space_prefix:
            return [array(self.code, ids).tobytes() for ids in self.tokenizer.encode(texts)]
        split = [_SEGMENT.findall(text) for text in texts]
        long = self._add(set(filterfalse(self.young.__contains__, chain.from_iterable(split))))
        joined = [b"".join(map(self.young.__getitem__, segments)) for segments in split]
        for segment in long:
            del self.young[segment]
        if len(self.young) > MOST:
            self.young, self.old = {}, self.young
        return joined

    def _add(self, segments: set[str]) -> list[str]:
        """Adds segments that the young generation lacks, from the old one or by tokenising them. Returns
        those too long to stay."""
        new = list(segments - self.old.keys())
        self.young |= {segment: self.old[segment] for segment in segments & self.old.keys()}
        encoded = (array(self.code, ids).tobytes() for ids in self.tokenizer.encode(new))
        self.young |= zip(new, encoded, strict=True)
        return [segment for segment in new if len(segment) > LONGEST]
