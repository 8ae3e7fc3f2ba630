"""Texts to ids with a cache: most of a text is words that occurred before.

A text is cut into segments, such as ` word` and `,`, where the tokenizer joins nothing: the ids of a text are
those of its segments, one after the other. Each segment is tokenised when it first occurs. The cache is of
bounded size: it begins again when it is full. `native/segments.h` finds the segments where it is compiled.
"""

from __future__ import annotations

import ctypes
import re
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntFlag
from itertools import chain, islice, pairwise
from typing import NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from seqloom.native.library import NativeLibrary, library
from seqloom.text.tokenizers_library import checked_batch, panics_are_errors, prepare_for_fork

FEW = 2**11
"""Characters below which texts are tokenised without the cache."""
CHUNK = 2**17
"""Characters that are cut together, at most; longer texts are divided."""
MOST = 2**20
"""Segments in the cache."""
MOST_BYTES = 2**24
"""Bytes of the segments in the cache."""


class Cuts(IntFlag):
    """Places in a text that no token reaches across, nor what is done to the text before."""

    NONE = 0
    SPACES = 1
    """Before a space that follows no white space; without LINES only where the next word begins without ▁."""
    LINES = 2
    """Before a tab or line end that follows no white space."""
    SIGNS = 4
    """Between letters and signs of ASCII, but neither after ' and <, nor before >, nor at _."""
    ASCII = 8
    """Before spaces between characters of ASCII alone."""


ALL_CUTS = Cuts.SPACES | Cuts.LINES | Cuts.SIGNS


def pattern_of(cuts: Cuts) -> re.Pattern[str]:
    """Matches where a text may be cut."""
    before, after = r"[^\s\0-\x20]", r" +(?![ ▁])"
    if cuts & Cuts.LINES:
        after = r"[ \t\n\r]"
    elif cuts & Cuts.ASCII:
        before, after = "[!-~]", " +[!-~]"
    pattern = f"(?<={before})(?={after})"
    if cuts & Cuts.SIGNS:
        pattern += "|(?<=[A-Za-z])(?=[!-/:-=?@[-^`{-~])|(?<=[!-&(-/:;=-@[-^`{-~])(?=[A-Za-z])"
    return re.compile(pattern)


class _Found(NamedTuple):
    """The segments of some texts."""

    numbers: NDArray[np.int32]
    """Of all segments, in order."""
    ends: NDArray[np.int64]
    """How many segments there are up to the end of each text."""
    new: list[str]
    """Those that were not known; their numbers follow those of the others."""


class _Segments(Protocol):
    """Numbers of the segments that are known."""

    def has_room(self, texts: Sequence[str]) -> bool: ...

    def find(self, texts: Sequence[str]) -> _Found:
        """The segments of texts that there is room for."""
        ...


@final
class _Cache:
    """Segments that are known, and their ids."""

    def __init__(self, segments: _Segments) -> None:
        self.segments = segments
        self._ids, self._ends = array("I"), array("q", [0])

    def add(self, rows: Iterable[list[int]]) -> None:
        """The ids of what is new."""
        for row in rows:
            self._ids.extend(row)
            self._ends.append(len(self._ids))

    def rows(self, found: _Found) -> list[list[int]]:
        """The ids of each text."""
        ends = np.asarray(self._ends)
        begins = ends[found.numbers]
        lengths = ends[found.numbers + 1] - begins
        after = np.cumsum(lengths)
        shifts = np.repeat(begins - after + lengths, lengths)
        ids = np.asarray(self._ids)[shifts + np.arange(len(shifts))].tolist()
        text_ends = np.concatenate([[0], after])[found.ends].tolist()
        return [ids[begin:end] for begin, end in pairwise([0, *text_ends])]


@final
class SegmentEncoder:
    """Encodes with a tokenizer of the library: the same ids with the cache and without."""

    def __init__(self, tokenizer: Tokenizer, cuts: Cuts) -> None:
        self._tokenizer, self._cuts = tokenizer, cuts
        self._pattern = pattern_of(cuts)
        # One cache at most. Who encodes takes it out, and puts it back unless there was an error.
        self._idle: list[_Cache] = []

    def __reduce__(self) -> tuple[object, ...]:
        return SegmentEncoder, (self._tokenizer, self._cuts)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens around it. Raises UsageError if a text is not a string
        or holds half a character (a lone surrogate)."""
        texts = checked_batch(texts)
        if not self._cuts or sum(map(len, texts)) < FEW:
            return self._encode_whole(texts)
        if max(map(len, texts), default=0) <= CHUNK:
            return self._encode_parts(texts)
        divided = [self._parts(text) for text in texts]
        rows = iter(self._encode_parts(chain.from_iterable(divided)))
        return [[*chain.from_iterable(islice(rows, len(parts)))] for parts in divided]

    def _encode_parts(self, parts: Iterable[str]) -> list[list[int]]:
        rows: list[list[int]] = []
        for chunk in _chunks(parts):
            rows += self._encode_chunk(chunk)
        return rows

    def _encode_whole(self, texts: list[str]) -> list[list[int]]:
        prepare_for_fork()
        with panics_are_errors("encode"):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return [encoding.ids for encoding in encodings]

    def _parts(self, text: str) -> list[str]:
        """A long text in parts. One of them may be long still, where there is no place to cut."""
        cuts = [0]
        while len(text) - cuts[-1] > CHUNK:
            found = self._pattern.search(text, cuts[-1] + CHUNK // 2)
            if found is None:
                break
            cuts.append(found.start())
        return [text[begin:end] for begin, end in pairwise([*cuts, len(text)])]

    def _encode_chunk(self, texts: list[str]) -> list[list[int]]:
        if len(texts[0]) > CHUNK:
            return self._encode_whole(texts)
        try:
            cache = self._idle.pop()
        except IndexError:
            cache = self._empty_cache()
        if not cache.segments.has_room(texts):
            cache = self._empty_cache()
        found = cache.segments.find(texts)
        cache.add(self._encode_whole(found.new))
        rows = cache.rows(found)
        self._idle[:] = [cache]
        return rows

    def _empty_cache(self) -> _Cache:
        compiled = library()
        if compiled is None:
            return _Cache(_PlainSegments(self._pattern))
        return _Cache(_NativeSegments(compiled, self._cuts))


def _chunks(parts: Iterable[str]) -> Iterator[list[str]]:
    """Parts that are cut together; one that is too long is alone."""
    chunk: list[str] = []
    size = 0
    for part in parts:
        if chunk and size + len(part) > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(part)
        size += len(part)
    if chunk:
        yield chunk


@final
class _PlainSegments:
    """In Python, where there is no compiled library."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._known: dict[str, int] = {}
        self._bytes = 0

    def has_room(self, texts: Sequence[str]) -> bool:
        return len(self._known) < MOST and self._bytes < MOST_BYTES

    def find(self, texts: Sequence[str]) -> _Found:
        known, before = self._known, len(self._known)
        numbers: list[int] = []
        ends = []
        for text in texts:
            numbers += [known.setdefault(part, len(known)) for part in self._pattern.split(text)]
            ends.append(len(numbers))
        new = [*islice(known, before, None)]
        self._bytes += sum(map(len, new))
        return _Found(np.array(numbers, np.int32), np.array(ends), new)


class SegmentArguments(ctypes.Structure):
    """`Segments` in `segments.h`."""

    _fields_ = [
        ("text", ctypes.c_char_p),
        ("ends", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("texts", "cuts")),
        ("table", ctypes.c_void_p),
        ("slots", ctypes.c_long),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("keys", "key_ends")),
        ("known", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("numbers", "counts", "added")),
    ]


@final
class _NativeSegments:
    """In C++: a hash table of what occurred."""

    def __init__(self, compiled: NativeLibrary, cuts: Cuts) -> None:
        self._find = compiled.find_segments
        self._table, self._keys = np.zeros(2 * MOST, np.uint64), np.empty(MOST_BYTES, np.uint8)
        self._key_ends = np.zeros(MOST + 1, np.int32)
        self._arguments = SegmentArguments(
            cuts=cuts,
            table=self._table.ctypes.data,
            slots=len(self._table),
            # nobody can choose words that all fall into one place
            seed=secrets.randbits(64),
            keys=self._keys.ctypes.data,
            key_ends=self._key_ends.ctypes.data,
        )

    def has_room(self, texts: Sequence[str]) -> bool:
        # each byte may be a segment; a character has at most 4
        most, known = 4 * sum(map(len, texts)), self._arguments.known
        return known + most <= MOST and int(self._key_ends[known - 1]) + most <= MOST_BYTES

    def find(self, texts: Sequence[str]) -> _Found:
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(text) for text in encoded])
        text, size = b"".join([*encoded, bytes(8)]), int(ends[-1])
        numbers, counts = np.empty(size, np.int32), np.empty(len(ends), np.int64)
        added = np.empty((size, 2), np.int32)
        call, before = self._arguments, self._arguments.known
        call.text, call.ends, call.texts = text, ends.ctypes.data, len(ends)
        call.numbers, call.counts, call.added = (
            made.ctypes.data for made in (numbers, counts, added)
        )
        self._find(ctypes.byref(call))
        new = [text[begin:end].decode() for begin, end in added[: call.known - before].tolist()]
        return _Found(numbers[: counts[-1]], counts, new)


def with_added(cuts: Cuts, added: Sequence[str]) -> Cuts:
    """The cuts where a text is also searched for these entries."""
    if not added:
        return cuts
    # The library puts ▁ before the text after an entry, if no white space is lost at the ends of texts.
    crossed = any(re.search(r"\S[ \t\n\r]", entry) for entry in added)
    return Cuts.NONE if crossed or not cuts & Cuts.LINES else cuts & ~Cuts.SIGNS
