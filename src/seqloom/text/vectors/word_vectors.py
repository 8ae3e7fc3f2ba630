"""Files of word vectors. The bytes of a file tell its format:

    word2vec, fastText .vec   a line `words width`, then on each line a word and its numbers
    GloVe                     the same without the first line; some words of GloVe 840B have spaces
    word2vec, binary          a line `words width`, then each word, a space and its numbers as little-endian
                              float32
    fastText .bin             `fasttext_model.py`: it has vectors also of words that it never saw

A file is read once, from front to back, also as .gz, and only what is wanted is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import DataError, printable
from seqloom.files import open_binary
from seqloom.text.vectors.byte_stream import ByteStream
from seqloom.text.vectors.fasttext_model import (
    MAX_WIDTH,
    MAX_WORD_BYTES,
    is_fasttext,
    read_fasttext,
)
from seqloom.text.vectors.wanted_words import WantedWords

Vector = NDArray[np.float32]
HEAD = 2**18
"""Bytes that are read to find out the format; a line of the widest vectors is shorter."""


@final
class WordVectors(NamedTuple):
    """The words that have a vector."""

    words: tuple[str, ...]
    """The wanted ones, in that order; or else those of the file."""
    vectors: Vector
    """`(words, width)`."""
    facts: tuple[str, ...]
    """What the file is, and counts of what was unusual in it, in plain words."""


@final
class VectorEntry(NamedTuple):
    """A word of a file, and what its vector is made of."""

    word: bytes
    numbers: bytes
    line: int | None
    """Of a text, from 1."""


def read_word_vectors(
    path: str, wanted: Collection[str] | None = None, fold_case: bool = False
) -> WordVectors:
    """The vectors of the words that are `wanted`, or of all. With `fold_case` a word that is not there as it
    is written takes the vector of its lower case, or else of the first that differs in case alone; if all are
    wanted, all are folded. Where a word occurs twice, the first counts.

    Raises DataError, with the line where there are lines, for a file that is none of these forms, is cut off,
    has a line with too few or too many numbers, has not as many words as it says, or, of what is wanted, a
    number that is not finite.
    """
    with open_binary(path) as file:
        stream, wanted_words = ByteStream(file, path), WantedWords[Any](wanted, fold_case)
        read = read_fasttext if is_fasttext(stream.peek(4)) else _read_entries
        words, vectors, facts = read(stream, wanted_words)
    if wanted_words.repeated:
        facts.append(f"words that occur again (the first counts): {wanted_words.repeated}")
    count = len(wanted_words.words or ())
    if len(words) < count:
        facts.append(f"wanted words without a vector: {count - len(words)} of {count}")
    return WordVectors(tuple(words), vectors, tuple(facts))


def _read_entries(
    stream: ByteStream, wanted: WantedWords[Vector]
) -> tuple[list[str], Vector, list[str]]:
    """The forms that are one word after the other."""
    first, _, rest = stream.peek(HEAD).partition(b"\n")
    header = _header(first, stream.path)
    width = _width_of(first, stream.path) if header is None else header[1]
    binary = header is not None and _is_binary(rest, width)
    entries = (
        _binary_entries(stream, *header)
        if binary and header
        else _text_entries(stream, header, width)
    )
    number = unreadable = 0
    for entry in entries:
        number += 1
        try:
            word = entry.word.decode("utf-8")
        except UnicodeDecodeError:
            unreadable += 1
            continue
        if wanted.wants(word):
            wanted.kept[word] = _vector(entry, word, binary, stream.path)
    form = "GloVe (text)" if header is None else "word2vec or fastText (text)"
    if binary:
        form = "word2vec (binary)"
    facts = [f"{form}: {number} words, {width} numbers each"]
    if unreadable:
        facts.append(f"words left out, as they are not UTF-8: {unreadable}")
    found = wanted.found()
    return list(found), np.array([*found.values()], np.float32).reshape(len(found), width), facts


def _header(line: bytes, path: str) -> tuple[int, int] | None:
    """(words, width) where a line says so."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 12 for part in parts):
        return None
    words, width = map(int, parts)
    if not 1 <= width <= MAX_WIDTH:
        raise DataError(
            f"vectors must have 1 to {MAX_WIDTH} numbers, but the header says {width}", path, 1
        )
    return words, width


def _width_of(line: bytes, path: str) -> int:
    """The number of numbers at the end of a line, after a word."""
    parts = line.split()
    width = 0
    while width < len(parts) - 1 and _is_number(parts[-1 - width]):
        width += 1
    if not 1 <= width <= MAX_WIDTH:
        raise DataError(
            "must be word vectors of word2vec, GloVe or fastText, whose first line is `words width`, or a"
            f" word and 1 to {MAX_WIDTH} numbers, but begins with"
            f" {printable(line[:40].decode('utf-8', 'replace'))!r}",
            path,
            1,
        )
    return width


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return b"_" not in text  # which Python takes for a number


def _is_binary(rest: bytes, width: int) -> bool:
    """Whether what follows a header is no text: neither a first line as it must be nor bytes that could be
    some other line."""
    line = rest.partition(b"\n")[0].rstrip().rsplit(b" ", width)
    if len(line) == width + 1 and all(map(_is_number, line[1:])):
        return False
    begin = rest[:1000]
    return (
        any(byte < 32 and byte not in b"\t\n\r" for byte in begin)
        or "\ufffd" in begin.decode("utf-8", "replace")[:-1]
    )


def _text_entries(
    stream: ByteStream, header: tuple[int, int] | None, width: int
) -> Iterator[VectorEntry]:
    """Of a file that is text."""
    lines, blank, words = enumerate(stream.lines(), start=1), 0, 0
    if header is not None:
        next(lines)
    for number, full in lines:
        line = full.replace(b"\t", b" ").rstrip(b" \r")
        if not line:
            blank = blank or number
            continue
        word, *numbers = (
            line.rsplit(b" ", width) if line.count(b" ") > width else line.split(b" ", 1)
        )
        several = word.rstrip(b" ").rsplit(b" ", 1)
        surplus = len(several) > 1 and _is_number(several[1])
        if blank or line.count(b" ") < width or surplus:
            have = "0" if blank else "more" if surplus else str(line.count(b" "))
            raise DataError(
                f"must have a word and {width} numbers, but has {have}",
                stream.path,
                blank or number,
            )
        words += 1
        if header is not None and words > header[0]:
            raise DataError(
                f"must be the end, for the first line says {header[0]} words, but there are more",
                stream.path,
                number,
            )
        yield VectorEntry(word.rstrip(b" "), b" ".join(numbers), number)
    if header is not None and words < header[0]:
        raise DataError(
            f"must have {header[0]} words, as its first line says, but has {words}; get the file again",
            stream.path,
        )


def _binary_entries(stream: ByteStream, words: int, width: int) -> Iterator[VectorEntry]:
    """Of a binary file of word2vec; some writers put a line break after each vector."""
    stream.until(b"\n", MAX_WORD_BYTES, "the header")
    for number in range(1, words + 1):
        what = f"word {number} of {words}"
        word = stream.until(b" ", MAX_WORD_BYTES, what)
        yield VectorEntry(
            word.removeprefix(b"\n"), stream.take(4 * width, f"the vector of {what}"), None
        )
    if stream.peek(2) not in (b"", b"\n"):
        raise DataError(
            f"must end after {words} words, as its first line says, but goes on; get the file again",
            stream.path,
        )


def _vector(entry: VectorEntry, word: str, binary: bool, path: str) -> Vector:
    """`(width,)`."""
    if binary:
        vector = np.frombuffer(entry.numbers, "<f4").astype(np.float32)
    else:
        parts = entry.numbers.split(b" ")
        wrong = [part for part in parts if not _is_number(part)]
        if wrong:
            shown = printable(wrong[0][:20].decode("utf-8", "replace"))
            raise DataError(
                f"must have a word and {len(parts)} numbers, but {shown!r} is none",
                path,
                entry.line,
            )
        with np.errstate(over="ignore"):
            vector = np.array([float(part) for part in parts], dtype=np.float32)
    if not np.isfinite(vector).all():
        raise DataError(
            f"numbers must be finite, but the vector of {printable(word)!r} has one that is not",
            path,
            entry.line,
        )
    return vector
