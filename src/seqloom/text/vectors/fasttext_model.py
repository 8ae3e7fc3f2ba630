"""The `.bin` files of fastText, read without that library (Bojanowski et al. 2017; its C++ source, version 12
and the one before it had versions).

A file is: a magic number and a version (none in the oldest), 12 settings, the dictionary, and the input
matrix, whose first rows are those of the words; `bucket` more are shared by the n-grams of letters. What
follows (the output) is not read. The vector of a word is the mean of its own row and those of the n-grams of
`<word>`; of a word that is not in the dictionary, of the n-grams alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import DataError, printable
from seqloom.text.vectors.byte_stream import CHUNK, ByteStream
from seqloom.text.vectors.wanted_words import WantedWords

MAGIC = 793712314
VERSIONS = (11, 12)
WIDEST = 10_000
"""Numbers of a vector, at most."""
LONGEST_WORD = 10_000
"""Bytes of a word, at most."""
END = "</s>"
"""The end of a line, in the dictionary; it has no n-grams, but in the oldest files."""


@final
class FastTextSettings(NamedTuple):
    """Those of a model that matter to its vectors."""

    width: int
    buckets: int
    shortest: int
    """n-grams in letters; without any, `longest` is 0."""
    longest: int


def is_fasttext(head: bytes) -> bool:
    """Whether the first four bytes are those of a `.bin` file: the magic number, or in the oldest ones the
    width, which as text would be control characters."""
    number = int.from_bytes(head, "little") if len(head) == 4 else 0
    return number == MAGIC or 1 <= number <= WIDEST


def read_fasttext(
    stream: ByteStream, wanted: WantedWords
) -> tuple[list[str], NDArray[np.float32], list[str]]:
    """The wanted words, also those that are not in the dictionary, their vectors `(words, width)`, and what
    the file is, in plain words. Raises DataError for a file that is cut off, damaged or quantised."""
    versioned = stream.peek(4) == MAGIC.to_bytes(4, "little")
    settings = _settings(stream, versioned)
    words, pruned = _dictionary(stream, wanted, versioned)
    if versioned and stream.take(1, "the header of the matrix") != b"\0":
        raise DataError(
            "must not be a quantised model (.ftz); take the .bin or the .vec of the same model", stream.path
        )
    found = wanted.found()
    rows: dict[str, list[int]] = {}
    for word in found if wanted.words is None else wanted.words:
        number, text = found.get(word, (None, word.lower() if wanted.fold_case else word))
        own = [] if number is None else [number]
        grams = (
            []
            if pruned or (versioned and text == END)
            else [words + row for row in ngram_rows(text, settings)]
        )
        if own or grams:
            rows[word] = own + grams
    vectors = _means(stream, settings, words, list(rows.values()), list(rows))
    facts = [f"fastText model (binary): {words} words, {settings.width} numbers each"]
    made = len(rows) - len(found)
    if made:
        facts.append(f"vectors made of n-grams of letters, for words that are not in it: {made}")
    return list(rows), vectors, facts


def ngram_rows(word: str, settings: FastTextSettings) -> list[int]:
    """The buckets of the n-grams of `<word>`; its first and last sign alone are none."""
    letters = [letter.encode("utf-8", "surrogatepass") for letter in f"<{word}>"]
    found = []
    for start in range(len(letters)):
        for end in range(start + settings.shortest, min(start + settings.longest, len(letters)) + 1):
            if end - start > 1 or (start > 0 and start < end < len(letters)):
                found.append(fnv1a(b"".join(letters[start:end])) % settings.buckets)
    return found


def fnv1a(text: bytes) -> int:
    """FNV-1a of 32 bits as fastText has it: a byte above 127 is a negative number."""
    value = 2166136261
    for byte in text:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def _settings(stream: ByteStream, versioned: bool) -> FastTextSettings:
    what = "the settings"
    version = int(stream.numbers("<i4", 2, what)[1]) if versioned else VERSIONS[0]
    if version not in VERSIONS:
        raise DataError(
            f"must be a fastText model of version {' or '.join(map(str, VERSIONS))}, but its version is"
            f" {version}",
            stream.path,
        )
    # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate
    numbers = stream.numbers("<i4", 12, what).tolist()
    stream.take(8, what)  # the sampling threshold
    width, model, buckets, shortest, longest = numbers[0], numbers[7], numbers[8], numbers[9], numbers[10]
    if versioned and version == 11 and model == 3:
        longest = 0  # its classifiers had no n-grams of letters
    if not (
        1 <= width <= WIDEST
        and 0 <= buckets < 2**31
        and 0 <= shortest <= 100
        and 0 <= longest <= 100
        and (buckets or not longest)
    ):
        raise DataError(
            f"must be a fastText model, but says that it has {width} numbers a word and n-grams of {shortest}"
            f" to {longest} letters in {buckets} buckets; get the file again",
            stream.path,
        )
    return FastTextSettings(width, buckets, shortest, longest)


def _dictionary(stream: ByteStream, wanted: WantedWords, versioned: bool) -> tuple[int, bool]:
    """Keeps number and text of the wanted words; gives how many words there are, and whether n-grams were
    taken out."""
    what = "the dictionary"
    size, words, labels = stream.numbers("<i4", 3, what).tolist()
    stream.take(8, what)  # the number of tokens
    pruned = stream.number("<i8", what) if versioned else -1
    if size < 1 or words < 0 or labels < 0 or words + labels != size or pruned > 2**31:
        raise DataError(
            f"is damaged: of {size} entries {words} are words and {labels} are labels; get the file again",
            stream.path,
        )
    for number in range(size):
        word = stream.until(b"\0", LONGEST_WORD, f"word {number + 1} of {size}")
        kind = stream.take(9, what)[8]  # after the count
        if kind != (number >= words):
            raise DataError(
                f"is damaged: entry {number + 1} of its dictionary is of kind {kind}; get the file again",
                stream.path,
            )
        text = word.decode("utf-8", "replace")
        if not kind and wanted.wants(text):
            wanted.kept[text] = number, text
    if pruned > 0:
        stream.take(8 * pruned, what)
    return words, pruned >= 0


def _means(
    stream: ByteStream,
    settings: FastTextSettings,
    words: int,
    rows: Sequence[Sequence[int]],
    names: Sequence[str],
) -> NDArray[np.float32]:
    """The means of rows of the matrix, which passes a chunk at a time: `(len(rows), width)`."""
    height, width = stream.numbers("<i8", 2, "the header of the matrix").tolist()
    if width != settings.width or height not in (words, words + settings.buckets):
        raise DataError(
            f"is damaged: its matrix must be {words + settings.buckets} x {settings.width}, but is {height} x"
            f" {width}; get the file again",
            stream.path,
        )
    counts = np.array([len(each) for each in rows], dtype=np.int64)
    needed = np.array([row for each in rows for row in each], dtype=np.int64)
    order = needed.argsort(kind="stable")
    needed, slots = needed[order], np.repeat(np.arange(len(rows)), counts)[order]
    sums = np.zeros((len(rows), width), dtype=np.float32)
    step = max(1, CHUNK // (4 * width))
    for first in range(0, height, step):
        block = stream.numbers("<f4", min(step, height - first) * width, "the matrix").reshape(-1, width)
        begin, end = needed.searchsorted([first, first + len(block)])
        np.add.at(sums, slots[begin:end], block[needed[begin:end] - first])
    sums /= counts[:, None]
    bad = np.flatnonzero(~np.isfinite(sums).all(axis=1))
    if len(bad):
        raise DataError(
            f"the vector of {printable(names[bad[0]])!r} must be finite, but is not; get the file again",
            stream.path,
        )
    return sums
