"""Word vectors read from each form of file: the same whatever the form, and an error in one line for every
file that is damaged."""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from seqloom.errors import DataError
from seqloom.text.vectors.byte_stream import CHUNK
from seqloom.text.vectors.fasttext_model import MAGIC, FastTextSettings, fnv1a, ngram_rows
from seqloom.text.vectors.word_vectors import read_word_vectors

Vectors = NDArray[np.float32]

WORDS = ("the", ",", "Haus", "naïve", "猫", "the-cat", "7", "</s>")
VECTORS: Vectors = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
BUCKETS = 17


def lines(words: Sequence[str], vectors: Vectors, end: str = "\n") -> bytes:
    return "".join(
        f"{word} {' '.join(repr(float(number)) for number in vector)}{end}"
        for word, vector in zip(words, vectors, strict=True)
    ).encode()


def glove(words: Sequence[str], vectors: Vectors) -> bytes:
    return lines(words, vectors)


def word2vec(words: Sequence[str], vectors: Vectors) -> bytes:
    return f"{len(words)} {vectors.shape[1]}\n".encode() + lines(words, vectors)


def vec(words: Sequence[str], vectors: Vectors) -> bytes:
    """As fastText writes it: a blank ends each line."""
    return f"{len(words)} {vectors.shape[1]}\n".encode() + lines(words, vectors, end=" \n")


def binary(words: Sequence[str], vectors: Vectors, after: bytes = b"") -> bytes:
    head = f"{len(words)} {vectors.shape[1]}\n".encode()
    return head + b"".join(
        word.encode() + b" " + vector.tobytes() + after
        for word, vector in zip(words, vectors, strict=True)
    )


def binary_with_breaks(words: Sequence[str], vectors: Vectors) -> bytes:
    """As the program of Mikolov et al. writes it."""
    return binary(words, vectors, b"\n")


def fasttext(
    words: Sequence[str],
    matrix: Vectors,
    *,
    buckets: int = BUCKETS,
    shortest: int = 2,
    longest: int = 3,
    version: int | None = 12,
    quantised: bool = False,
    labels: Sequence[str] = (),
) -> bytes:
    width = matrix.shape[1]
    out = b"" if version is None else struct.pack("<2i", MAGIC, version)
    out += struct.pack("<12id", width, 5, 5, 1, 5, 1, 2, 2, buckets, shortest, longest, 100, 1e-4)
    out += struct.pack("<3iq", len(words) + len(labels), len(words), len(labels), 1000) + (
        b"" if version is None else struct.pack("<q", -1)
    )
    for kind, entries in enumerate((words, labels)):
        out += b"".join(entry.encode() + b"\0" + struct.pack("<qb", 3, kind) for entry in entries)
    out += b"" if version is None else struct.pack("<?", quantised)
    return out + struct.pack("<2q", *matrix.shape) + matrix.tobytes()


def fasttext_of(words: Sequence[str], vectors: Vectors) -> bytes:
    return fasttext(words, vectors, buckets=0, shortest=0, longest=0)


FORMS: dict[str, Callable[[Sequence[str], Vectors], bytes]] = {
    "GloVe": glove,
    "word2vec": word2vec,
    "vec": vec,
    "binary": binary,
    "binary with breaks": binary_with_breaks,
    "fastText": fasttext_of,
}


def put(folder: Path, content: bytes, name: str = "vectors") -> str:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[Sequence[str], Vectors], bytes]:
    return FORMS[request.param]


# Whatever the form


@pytest.mark.parametrize("name", ["vectors", "vectors.gz"])
def test_every_form_gives_the_same(tmp_path: Path, form: Callable[..., bytes], name: str) -> None:
    found = read_word_vectors(put(tmp_path, form(WORDS, VECTORS), name))
    assert found.words == WORDS
    assert found.vectors.dtype == np.float32
    assert np.array_equal(found.vectors, VECTORS)
    assert len(found.facts) == 1
    assert "8 words, 5 numbers" in found.facts[0]


def test_what_is_wanted_comes_in_its_order(tmp_path: Path, form: Callable[..., bytes]) -> None:
    found = read_word_vectors(put(tmp_path, form(WORDS, VECTORS)), ["猫", "nothing", "the"])
    assert found.words == ("猫", "the")
    assert np.array_equal(found.vectors, VECTORS[[4, 0]])
    assert found.facts[-1] == "wanted words without a vector: 1 of 3"


def test_nothing_wanted_is_there(tmp_path: Path, form: Callable[..., bytes]) -> None:
    found = read_word_vectors(put(tmp_path, form(WORDS, VECTORS)), ["nothing"])
    assert found.words == ()
    assert found.vectors.shape == (0, 5)


def test_of_a_word_that_stands_twice_the_first_counts(
    tmp_path: Path, form: Callable[..., bytes]
) -> None:
    words = ["a", "b", "a", "a"]
    found = read_word_vectors(put(tmp_path, form(words, VECTORS[:4])))
    assert found.words == ("a", "b")
    assert np.array_equal(found.vectors, VECTORS[:2])
    assert "words that occur again (the first counts): 2" in found.facts


def test_case_is_folded_where_asked(tmp_path: Path, form: Callable[..., bytes]) -> None:
    path = put(tmp_path, form(["Paris", "PARIS", "paris", "US", "Us"], VECTORS[:5]))
    wanted = ["Paris", "pAris", "us", "uS", "US"]
    assert read_word_vectors(path, wanted).words == ("Paris", "US")
    found = read_word_vectors(path, wanted, fold_case=True)
    assert found.words == tuple(wanted)
    # as written; lower case; the first that differs in case alone
    assert np.array_equal(found.vectors, VECTORS[[0, 2, 3, 3, 3]])
    whole = read_word_vectors(path, fold_case=True)
    assert whole.words == ("paris", "us")
    assert np.array_equal(whole.vectors, VECTORS[[2, 3]])


def test_more_than_is_held_at_a_time(tmp_path: Path, form: Callable[..., bytes]) -> None:
    vectors = np.random.default_rng(1).normal(size=(700, 500)).astype(np.float32)
    content = form([f"word{i}" for i in range(len(vectors))], vectors)
    assert len(content) > CHUNK
    found = read_word_vectors(put(tmp_path, content), ["word3", "word650"])
    assert np.array_equal(found.vectors, vectors[[3, 650]])


def test_words_of_other_encodings_are_left_out(tmp_path: Path) -> None:
    content = word2vec(["caf#", "tea"], VECTORS[:2]).replace(b"#", b"\xe9")
    found = read_word_vectors(put(tmp_path, content))
    assert found.words == ("tea",)
    assert "words left out, as they are not UTF-8: 1" in found.facts


@pytest.mark.parametrize("name", ["word2vec", "binary", "binary with breaks", "fastText"])
def test_a_file_that_is_cut_off_is_refused_wherever(tmp_path: Path, name: str) -> None:
    whole = FORMS[name](WORDS[2:5], VECTORS[:3, :2])
    for size in range(len(whole)):
        if name == "word2vec" and size >= whole.rfind(b" "):
            continue  # of a last number that is shorter nobody can tell
        if name == "binary with breaks" and size == len(whole) - 1:
            continue  # nothing is missing
        with pytest.raises(DataError):
            read_word_vectors(put(tmp_path, whole[:size]))


@settings(max_examples=200)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"3 2\n", b"2 1\na 1\n", struct.pack("<2i", MAGIC, 12), b"a 0.5\n"]),
)
def test_other_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, begin: bytes
) -> None:
    path = put(tmp_path_factory.getbasetemp(), begin + content, "other")
    refused: DataError | None = None
    try:
        found = read_word_vectors(path)
    except DataError as error:
        refused = error
    if refused is None:
        assert len(found.vectors) == len(found.words)
        assert bool(np.isfinite(found.vectors).all())
    else:
        assert str(refused).startswith(path)
        assert "\n" not in str(refused)


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys, seqloom.text.vectors.word_vectors, seqloom.text.word_characters; sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Lines of text


def test_words_with_blanks_are_whole(tmp_path: Path) -> None:
    """As in GloVe 840B."""
    words = [". . .", "at name@domain.com", "1 1/2", "x"]
    path = put(tmp_path, glove(words, VECTORS[:4]))
    found = read_word_vectors(path)
    assert found.words == tuple(words)
    assert np.array_equal(found.vectors, VECTORS[:4])
    assert read_word_vectors(path, ["at name@domain.com"]).words == ("at name@domain.com",)


@pytest.mark.parametrize(
    "content", [b"a\t1\t2\nb\t3\t4", b"a 1 2\r\nb 3 4\r\n\r\n", b"2 2\na 1 2\nb  3 4\n\n"]
)
def test_tabs_carriage_returns_and_empty_lines_at_the_end(tmp_path: Path, content: bytes) -> None:
    found = read_word_vectors(put(tmp_path, content))
    assert found.words == ("a", "b")
    assert found.vectors.tolist() == [[1, 2], [3, 4]]


BAD: dict[str, tuple[bytes, int | None, str]] = {
    "too few": (b"a 1 2 3\nb 1 2\n", 2, "must have a word and 3 numbers, but has 2"),
    "too many": (b"a 1 2\nb 1 2 3\n", 2, "must have a word and 2 numbers, but has more"),
    "too few, with a header": (
        b"2 3\na 1 2 3\nb 1 2\n",
        3,
        "must have a word and 3 numbers, but has 2",
    ),
    "the header's width": (
        b"2 5\na 1 2 3\nb 1 2 3\n",
        2,
        "must have a word and 5 numbers, but has 3",
    ),
    "no number": (b"a 1 2\nb 1 x\n", 2, "must have a word and 2 numbers, but 'x' is none"),
    "not a number": (
        b"a 1 2\nb nan 2\n",
        2,
        "numbers must be finite, but the vector of 'b' has one that is not",
    ),
    "beyond a float": (
        b"a 1 2\nb 1e39 2\n",
        2,
        "numbers must be finite, but the vector of 'b' has one that is not",
    ),
    "fewer than it says": (
        b"3 1\na 1\nb 2\n",
        None,
        "must have 3 words, as its first line says, but has 2",
    ),
    "more than it says": (
        b"1 1\na 1\nb 2\n",
        3,
        "must be the end, for the first line says 1 words, but there are more",
    ),
    "an empty line": (b"a 1 2\n\nb 1 2\n", 2, "must have a word and 2 numbers, but has 0"),
    "prose": (
        b"It was a dark and stormy night.\n",
        1,
        "must be word vectors of word2vec, GloVe or fastText",
    ),
    "nothing": (b"", 1, "must be word vectors of word2vec, GloVe or fastText"),
    "too wide": (
        b"1 10001\na 1\n",
        1,
        "vectors must have 1 to 10000 numbers, but the header says 10001",
    ),
    "binary that goes on": (
        binary(["a"], VECTORS[:1]) + b"b",
        None,
        "must end after 1 words, as its first line says, but goes on",
    ),
    "binary, not finite": (
        binary(["a"], np.array([[1, np.inf, 3, 4, 5]], np.float32)),
        None,
        "the vector of 'a' has one that is not",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, line, message = BAD[name]
    path = put(tmp_path, content)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_word_vectors(path)
    assert caught.value.line == line
    assert str(caught.value).startswith(path + (f":{line}: " if line else ": "))


def test_a_bad_line_is_found_though_its_word_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="but has 1"):
        read_word_vectors(put(tmp_path, b"a 1 2\nb 1\nc 1 2\n"), ["a"])


def test_a_damaged_gz(tmp_path: Path) -> None:
    path = tmp_path / "vectors.gz"
    path.write_bytes(gzip.compress(glove(WORDS, VECTORS))[:-12])
    with pytest.raises(DataError, match="is damaged or cut off"):
        read_word_vectors(str(path))


# fastText's models


def test_the_hash_is_fasttexts() -> None:
    """FNV-1a of ASCII as published; beyond that bytes are negative: values of gensim's tests of the same
    function."""
    assert fnv1a(b"") == 0x811C9DC5
    assert fnv1a(b"a") == 0xE40C292C
    assert fnv1a(b"foobar") == 0xBF9CF968
    known = {
        "команда": 1725507386,
        "быстрей": 1379730754,
        "mysterious": 1903186891,
        "odyssey": 310195777,
        "北海道": 4096045468,
        "西区": 3653372632,
    }
    assert {word: fnv1a(word.encode()) for word in known} == known


def test_ngrams_are_those_of_the_word_in_brackets() -> None:
    def rows(*ngrams: str) -> list[int]:
        return sorted(fnv1a(ngram.encode()) % 1000 for ngram in ngrams)

    assert sorted(ngram_rows("né", FastTextSettings(1, 1000, 2, 3))) == rows(
        "<n", "<né", "né", "né>", "é>"
    )
    # a bracket alone is none
    assert sorted(ngram_rows("né", FastTextSettings(1, 1000, 1, 1))) == rows("n", "é")
    assert ngram_rows("né", FastTextSettings(1, 1000, 3, 0)) == []
    assert sorted(ngram_rows("", FastTextSettings(1, 1000, 1, 6))) == rows("<>")


def expected(word: str, words: Sequence[str], matrix: Vectors) -> Vectors:
    """The mean of a word's own row and those of its n-grams."""
    rows = [words.index(word)] if word in words else []
    if word != "</s>":
        rows += [len(words) + row for row in ngram_rows(word, FastTextSettings(0, BUCKETS, 2, 3))]
    mean: Vectors = matrix[rows].astype(np.float64).mean(axis=0)
    return mean


def test_words_and_unknown_words_are_means(tmp_path: Path) -> None:
    matrix = np.random.default_rng(2).normal(size=(len(WORDS) + BUCKETS, 4)).astype(np.float32)
    path = put(tmp_path, fasttext(WORDS, matrix, labels=("__label__a",)))
    whole = read_word_vectors(path)
    assert whole.words == WORDS
    wanted = ["unseen", "the", "猫犬", "</s>"]
    found = read_word_vectors(path, wanted)
    assert found.words == tuple(wanted)
    assert found.facts[-1] == "vectors made of n-grams of letters, for words that are not in it: 2"
    for words, vectors in ((whole.words, whole.vectors), (found.words, found.vectors)):
        for word, vector in zip(words, vectors, strict=True):
            np.testing.assert_allclose(vector, expected(word, WORDS, matrix), atol=1e-6)


def test_the_oldest_files_have_no_magic_number(tmp_path: Path) -> None:
    matrix = np.random.default_rng(3).normal(size=(len(WORDS) + BUCKETS, 4)).astype(np.float32)
    old = read_word_vectors(
        put(tmp_path, fasttext(WORDS, matrix, version=None), "old"), [*WORDS, "other"]
    )
    new = read_word_vectors(put(tmp_path, fasttext(WORDS, matrix), "new"), [*WORDS, "other"])
    end = WORDS.index("</s>")  # which had n-grams in them
    assert np.array_equal(np.delete(old.vectors, end, axis=0), np.delete(new.vectors, end, axis=0))
    assert np.array_equal(new.vectors[end], matrix[end])
    assert not np.allclose(old.vectors[end], matrix[end])


def test_folding_comes_before_making(tmp_path: Path) -> None:
    matrix = np.random.default_rng(4).normal(size=(1 + BUCKETS, 4)).astype(np.float32)
    found = read_word_vectors(
        put(tmp_path, fasttext(["haus"], matrix)),
        ["HAUS", "haus", "OTHER", "other"],
        fold_case=True,
    )
    assert np.array_equal(found.vectors[0], found.vectors[1])
    assert np.array_equal(found.vectors[2], found.vectors[3])
    assert not np.allclose(found.vectors[0], found.vectors[2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            fasttext(["a"], VECTORS[:1], buckets=0, longest=0, quantised=True),
            "must not be a quantised model",
        ),
        (fasttext(["a"], VECTORS[:1], buckets=0, longest=0, version=13), "but its version is 13"),
        (fasttext(["a"], VECTORS[:3], buckets=1), "its matrix must be 2 x 5, but is 3 x 5"),
        (
            fasttext(["a"], VECTORS[:1] * np.float32(np.nan), buckets=0, longest=0),
            "the vector of 'a' must be finite",
        ),
        (fasttext(["a"], VECTORS[:1], buckets=0), "get the file again"),
    ],
)
def test_models_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_word_vectors(put(tmp_path, content))
