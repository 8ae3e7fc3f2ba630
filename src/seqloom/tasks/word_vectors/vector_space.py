"""Word vectors as a space: which words are near each other.

    similarity   cos(a, b) = a · b / |a| |b|
    analogy      a is to b as c is to:  argmax_d  cos(d, b - a + c), vectors of length 1      (3CosAdd)
                                        argmax_d  cos(d, b) cos(d, c) / (cos(d, a) + ε)       (3CosMul)

In 3CosMul a cosine is first moved from -1..1 to 0..1. Mikolov et al.: Linguistic Regularities in Continuous
Space Word Representations, NAACL 2013; Levy and Goldberg: Linguistic Regularities in Sparse and Explicit Word
Representations, CoNLL 2014.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray

from seqloom.models.word_vectors.embeddings import WordEmbeddings
from seqloom.runs.run_folder import LoadedRun
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.vectors.word_vectors import WordVectors

Vectors = NDArray[np.float32]
EPSILON = 1e-3
"""ε of 3CosMul."""
CHUNK = 256
"""Questions that are answered together."""


class Near(NamedTuple):
    """A word, and how near it is."""

    word: str
    cosine: float
    """Of an analogy the score by which words are ordered."""


class Analogy(NamedTuple):
    """a is to b as c is to what?"""

    a: str
    b: str
    c: str


@final
class VectorSpace:
    """Words with their vectors, those of length 0 left out."""

    def __init__(self, words: Sequence[str], vectors: Vectors) -> None:
        lengths = np.linalg.norm(vectors, axis=1)
        there = np.flatnonzero(lengths > 0)
        self.words = [words[row] for row in there.tolist()]
        self.vectors = vectors[there]
        self.unit = self.vectors / lengths[there, None]
        self.rows = {word: row for row, word in enumerate(self.words)}

    def vector(self, word: str) -> Vectors:
        """That of a word that is there: `(width,)`."""
        row: Vectors = self.vectors[self.rows[word]]
        return row

    def of(self, wanted: Collection[str], fold_case: bool) -> WordVectors:
        """The vectors of these words. With `fold_case` a word that is not there as it is written takes that
        of its lower case."""
        rows = {word: self.rows.get(word) for word in wanted}
        if fold_case:
            rows |= {word: self.rows.get(word.lower()) for word, row in rows.items() if row is None}
        found = {word: row for word, row in rows.items() if row is not None}
        return WordVectors(tuple(found), self.vectors[list(found.values())], ())

    def similarity(self, a: str, b: str) -> float:
        """The cosine of two words that are there."""
        return float(self.unit[self.rows[a]] @ self.unit[self.rows[b]])

    def nearest(self, word: str, count: int) -> list[Near]:
        """The words nearest to one that is there, without itself."""
        return self._best(self.unit @ self.unit[self.rows[word]], count, {word})

    def sum_of(self, plus: Sequence[str], minus: Sequence[str], count: int) -> list[Near]:
        """The words nearest to a sum of unit vectors, without those that are in it."""
        total = self.unit[[self.rows[word] for word in plus]].sum(axis=0)
        total = total - self.unit[[self.rows[word] for word in minus]].sum(axis=0)
        length = np.linalg.norm(total)
        return self._best(self.unit @ (total / length if length else total), count, {*plus, *minus})

    def answers(
        self, questions: Sequence[Analogy], method: Literal["add", "multiply"] = "add"
    ) -> Iterator[str]:
        """The best answer to each question, whose words are there and are never the answer."""
        for first in range(0, len(questions), CHUNK):
            some = questions[first : first + CHUNK]
            rows = np.array([[self.rows[word] for word in one] for one in some])
            a, b, c = (self.unit @ self.unit[column].T for column in rows.T)
            if method == "add":
                scores = b - a + c
            else:
                scores = (1 + b) * (1 + c) / ((1 + a) / 2 + EPSILON)
            scores[rows.T, np.arange(len(some))] = -np.inf
            for row in scores.argmax(axis=0):
                yield self.words[row]

    def _best(self, scores: Vectors, count: int, without: Collection[str]) -> list[Near]:
        wanted = min(count + len(without), len(scores))
        best = np.argpartition(-scores, wanted - 1)[:wanted]
        best = best[np.lexsort((best, -scores[best]))]
        found = [Near(self.words[row], float(scores[row])) for row in best]
        return [one for one in found if one.word not in without][:count]


def space_of(run: LoadedRun) -> VectorSpace:
    """The words of a trained model."""
    vectors = cast(WordEmbeddings, run.model).vectors()[len(SPECIAL_TOKENS) :]
    words = run.tokenizer.token_bytes[len(SPECIAL_TOKENS) :]
    return VectorSpace([word.decode() for word in words], vectors.cpu().numpy())
