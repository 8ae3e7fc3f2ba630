"""The `.bin` files of fastText, read without that library (Bojanowski et al. 2017; its C++ source, version 12
and the one before it had versions).

A file is: a magic number and a version (not in the oldest), 12 settings, the dictionary, the input matrix.
The first rows of the matrix are those of the words; `bucket` more are shared by the character n-grams. What
follows (the output) is not read. The vector of a word is the mean of its own row and those of the n-grams of
`<word>`; of a word that is not in the dictionary, of the n-grams alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import DataError, printable
from seqloom.text.vectors.byte_stream import CHUNK, ByteStream
from seqloom.text.vectors.wanted_words import WantedWords

MAGIC = 793712314
VERSIONS = (11, 12)
MAX_WIDTH = 10_000
"""Numbers of a vector."""
MAX_WORD_BYTES = 10_000
"""Of a word."""
HASH_START = 2166136261
"""FNV-1a of nothing."""
END_OF_LINE = "</s>"
"""An entry of the dictionary; it has n-grams only in the oldest files."""


@final
class FastTextSettings(NamedTuple):
    """Those that matter to its vectors."""

    width: int
    buckets: int
    shortest: int
    """Length of the n-grams."""
    longest: int
    """0 where there are none."""


DictionaryEntry = tuple[int, str]
"""The number of a word, and the word."""


def is_fasttext(head: bytes) -> bool:
    """Whether the first four bytes are those of a `.bin` file: the magic number, or in the oldest ones the
    width, which as text would be control characters."""
    number = int.from_bytes(head, "little") if len(head) == 4 else 0
    return number == MAGIC or 1 <= number <= MAX_WIDTH


def read_fasttext(
    stream: ByteStream, wanted: WantedWords[DictionaryEntry]
) -> tuple[list[str], NDArray[np.float32], list[str]]:
    """The wanted words, also those that are not in the dictionary, their vectors `(words, width)`, and what
    the file is, in plain words. Raises DataError for a file that is cut off, damaged or quantised."""
    versioned = stream.peek(4) == MAGIC.to_bytes(4, "little")
    settings = _settings(stream, versioned)
    words, pruned = _dictionary(stream, wanted, versioned)
    if versioned and stream.take(1, "the header of the matrix") != b"\0":
        raise DataError(
            "must not be a quantised model (.ftz); take the .bin or the .vec of the same model",
            stream.path,
        )
    found = wanted.found()
    rows: dict[str, list[int]] = {}
    for word in found if wanted.words is None else wanted.words:
        if word in found:
            number, text = found[word]
            own = [number]
        else:
            own, text = [], word.lower() if wanted.fold_case else word
        if not pruned and not (versioned and text == END_OF_LINE):
            own += [words + row for row in ngram_rows(text, settings)]
        if own:
            rows[word] = own
    vectors = _means(stream, settings, words, rows)
    facts = [f"fastText model (binary): {words} words, {settings.width} numbers each"]
    from_ngrams = len(rows) - len(found)
    if from_ngrams:
        facts.append(
            f"vectors made of n-grams of letters, for words that are not in it: {from_ngrams}"
        )
    return list(rows), vectors, facts


def ngram_rows(word: str, settings: FastTextSettings) -> list[int]:
    """The buckets of the n-grams of `<word>`; `<` and `>` alone are none."""
    characters = [character.encode("utf-8", "surrogatepass") for character in f"<{word}>"]
    rows = []
    for start in range(len(characters)):
        is_mark = start in (0, len(characters) - 1)
        value = HASH_START
        for length, character in enumerate(characters[start : start + settings.longest], start=1):
            value = fnv1a(character, value)
            if length >= settings.shortest and not (length == 1 and is_mark):
                rows.append(value % settings.buckets)
    return rows


def fnv1a(text: bytes, value: int = HASH_START) -> int:
    """FNV-1a of 32 bits as in fastText: a byte above 127 is a negative number. `value`: the hash of what is
    before the text."""
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
    width, model, buckets, shortest, longest = (
        numbers[0],
        numbers[7],
        numbers[8],
        numbers[9],
        numbers[10],
    )
    if versioned and version == 11 and model == 3:
        longest = 0  # its classifiers had no n-grams of letters
    if not (
        1 <= width <= MAX_WIDTH
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


def _dictionary(
    stream: ByteStream, wanted: WantedWords[DictionaryEntry], versioned: bool
) -> tuple[int, bool]:
    """Keeps the entries of the wanted words. Returns how many words there are, and whether n-grams were
    removed."""
    what = "the dictionary"
    size, words, labels = stream.numbers("<i4", 3, what).tolist()
    stream.take(8, what)  # the number of tokens
    pruned = int(stream.numbers("<i8", 1, what)[0]) if versioned else -1
    if size < 1 or words < 0 or labels < 0 or words + labels != size or pruned > 2**31:
        raise DataError(
            f"is damaged: of {size} entries {words} are words and {labels} are labels; get the file again",
            stream.path,
        )
    for number in range(size):
        word = stream.until(b"\0", MAX_WORD_BYTES, f"word {number + 1} of {size}")
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
    rows: Mapping[str, Sequence[int]],
) -> NDArray[np.float32]:
    """For each word the mean of its rows of the matrix, read a chunk at a time: `(len(rows), width)`."""
    height, width = stream.numbers("<i8", 2, "the header of the matrix").tolist()
    if width != settings.width or height not in (words, words + settings.buckets):
        raise DataError(
            f"is damaged: its matrix must be {words + settings.buckets} x {settings.width}, but is {height} x"
            f" {width}; get the file again",
            stream.path,
        )
    counts = np.array([len(each) for each in rows.values()], dtype=np.int64)
    needed = np.array([row for each in rows.values() for row in each], dtype=np.int64)
    order = needed.argsort(kind="stable")
    needed, slots = needed[order], np.repeat(np.arange(len(rows)), counts)[order]
    sums = np.zeros((len(rows), width), dtype=np.float32)
    step = max(1, CHUNK // (4 * width))
    for first in range(0, height, step):
        block = stream.numbers("<f4", min(step, height - first) * width, "the matrix").reshape(
            -1, width
        )
        begin, end = needed.searchsorted([first, first + len(block)])
        np.add.at(sums, slots[begin:end], block[needed[begin:end] - first])
    sums /= counts[:, None]
    bad = np.flatnonzero(~np.isfinite(sums).all(axis=1))
    if len(bad):
        word = list(rows)[bad[0]]
        raise DataError(
            f"the vector of {printable(word)!r} must be finite, but is not; get the file again",
            stream.path,
        )
    return sums
