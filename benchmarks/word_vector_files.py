"""Files of word vectors, exchanged with gensim in both directions: the same words and the same neighbours.

    python -m benchmarks.word_vector_files RUN

RUN is a run folder of word-vectors. Its vectors are exported in every form and opened by gensim; then gensim
trains word2vec and fastText on a few sentences and writes its forms, GloVe's text among them, and we open
these. Needs `pip install gensim`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import seqloom
from seqloom.tasks.word_vectors.vector_space import VectorSpace
from seqloom.text.vectors.word_vectors import read_word_vectors
from seqloom.workflows.exchange import export_model

ASKED, NEAREST = 50, 10


def same_neighbours(space: VectorSpace, theirs: Any) -> int:
    """How many words have the same nearest words, with the same cosines. Fails where one has others; two
    words that are equally near may change places."""
    asked = space.words[:ASKED]
    for word in asked:
        ours = space.nearest(word, NEAREST)
        found = theirs.most_similar(word, topn=NEAREST)
        for one, (name, cosine) in zip(ours, found, strict=True):
            assert abs(one.cosine - cosine) < 1e-5, (word, one, name, cosine)
            assert one.word == name or abs(space.similarity(word, name) - one.cosine) < 1e-5
    return len(asked)


def exported(run: str, folder: Path) -> None:
    from gensim.models import KeyedVectors

    space = seqloom.load(run).space
    for suffix in ("txt", "vec", "bin", "glove"):
        path = folder / f"ours.{suffix}"
        export_model(run, str(path))
        theirs = KeyedVectors.load_word2vec_format(
            str(path), binary=suffix == "bin", no_header=suffix == "glove"
        )
        assert theirs.index_to_key == space.words
        assert np.array_equal(theirs.vectors, space.vectors)
        print(
            f"gensim opens .{suffix}: {same_neighbours(space, theirs)} words, the same neighbours"
        )


def imported(folder: Path) -> None:
    from gensim.models import FastText, Word2Vec

    random = np.random.default_rng(0)
    words = np.array([f"word{number}é" for number in range(100)])
    sentences: list[list[str]] = [
        words[random.zipf(1.3, 20) % len(words)].tolist() for _ in range(500)
    ]
    for name, kind in (("word2vec", Word2Vec), ("fastText", FastText)):
        vectors = kind(sentences, vector_size=20, min_count=1, epochs=2, seed=0, workers=1).wv
        forms: dict[str, dict[str, Any]] = {
            "text": {"binary": False},
            "binary": {"binary": True},
            "GloVe's text": {"binary": False, "write_header": False},
        }
        for form, options in forms.items():
            path = folder / "theirs"
            vectors.save_word2vec_format(str(path), **options)
            read = read_word_vectors(str(path))
            expected: NDArray[np.float32] = vectors.vectors
            assert list(read.words) == vectors.index_to_key
            np.testing.assert_allclose(read.vectors, expected, rtol=1e-6, atol=1e-7)
            count = same_neighbours(VectorSpace(read.words, read.vectors), vectors)
            print(f"{name} of gensim as {form}: {count} words, the same neighbours")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        exported(sys.argv[1], Path(folder))
        imported(Path(folder))


if __name__ == "__main__":
    main()
