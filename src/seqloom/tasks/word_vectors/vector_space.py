"""Word vectors as a space: which words are near each other.

    similarity   cos(a, b) = a · b / |a| |b|
    analogy      a is to b as c is to:  argmax_d  cos(d, b - a + c), vectors of length 1      (3CosAdd)
                                        argmax_d  cos(d, b) cos(d, c) / (cos(d, a) + ε)       (3CosMul)

In 3CosMul a cosine is first moved from -1..1 to 0..1. Mikolov et al.: Linguistic Regularities in Continuous
Space Word Representations, NAACL 2013; Levy and Goldberg: Linguistic Regularities in Sparse and Explicit Word
Representations, CoNLL 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple, cast, final

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.models.word_vectors.embeddings import WordEmbeddings
from seqloom.models.word_vectors.word2vec import Word2Vec
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.word_vectors.pieces import ngrams_of, word_pieces
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

    def __init__(
        self,
        words: Sequence[str],
        vectors: Vectors,
        unseen: Callable[[str], Vectors | None] = lambda word: None,
    ) -> None:
        """`unseen`: what makes the vector of another word, where it has one."""
        lengths = np.linalg.norm(vectors, axis=1)
        there = np.flatnonzero(lengths > 0)
        self.words = [words[row] for row in there.tolist()]
        self.vectors = vectors[there]
        self.unit = self.vectors / lengths[there, None]
        self.rows = {word: row for row, word in enumerate(self.words)}
        self.unseen = unseen

    def find(self, word: str) -> Vectors | None:
        """The vector `(width,)` of a word; None if it has none."""
        row = self.rows.get(word)
        return self.unseen(word) if row is None else self.vectors[row]

    def vector(self, word: str) -> Vectors:
        """That of a word that has one."""
        vector = self.find(word)
        assert vector is not None
        return vector

    def of(self, wanted: Collection[str], fold_case: bool) -> WordVectors:
        """The vectors of these words. With `fold_case` a word that is not there as it is written takes that
        of its lower case."""
        found: dict[str, Vectors] = {}
        for word in wanted:
            lower = word.lower() if fold_case and word not in self.rows else word
            if (vector := self.find(lower)) is not None:
                found[word] = vector
        vectors = np.array([*found.values()], np.float32).reshape(-1, self.vectors.shape[1])
        return WordVectors(tuple(found), vectors, ())

    def similarity(self, a: str, b: str) -> float:
        """The cosine of two words that have vectors."""
        return float(self._unit(a) @ self._unit(b))

    def nearest(self, word: str, count: int) -> list[Near]:
        """The words nearest to one that has a vector, without itself."""
        return self._best(self.unit @ self._unit(word), count, {word})

    def sum_of(self, plus: Sequence[str], minus: Sequence[str], count: int) -> list[Near]:
        """The words nearest to a sum of unit vectors (3CosAdd), without those that are in it."""
        total = np.sum([self._unit(word) for word in plus], axis=0)
        total = total - np.sum([self._unit(word) for word in minus] or [0 * total], axis=0)
        length = np.linalg.norm(total)
        return self._best(self.unit @ (total / length if length else total), count, {*plus, *minus})

    def product_of(self, plus: Sequence[str], minus: Sequence[str], count: int) -> list[Near]:
        """The same by products of cosines (3CosMul)."""
        scores = np.ones(len(self.words), np.float32)
        for word in plus:
            scores *= (1 + self.unit @ self._unit(word)) / 2
        for word in minus:
            scores /= (1 + self.unit @ self._unit(word)) / 2 + EPSILON
        return self._best(scores, count, {*plus, *minus})

    def answers(
        self, questions: Sequence[Analogy], method: Literal["add", "multiply"] = "add"
    ) -> Iterator[str]:
        """The best answer to each question, whose words have vectors and are never the answer."""
        for first in range(0, len(questions), CHUNK):
            chunk = questions[first : first + CHUNK]
            given = np.array([list(map(self._unit, question)) for question in chunk])
            a, b, c = (self.unit @ given[:, place].T for place in range(3))
            if method == "add":
                scores = b - a + c
            else:
                scores = (1 + b) * (1 + c) / ((1 + a) / 2 + EPSILON)
            for column, question in enumerate(chunk):
                known = [self.rows[word] for word in question if word in self.rows]
                scores[known, column] = -np.inf
            for row in scores.argmax(axis=0):
                yield self.words[row]

    def _unit(self, word: str) -> Vectors:
        row = self.rows.get(word)
        if row is not None:
            unit: Vectors = self.unit[row]
            return unit
        vector = self.vector(word)
        return vector / np.linalg.norm(vector)

    def _best(self, scores: Vectors, count: int, without: Collection[str]) -> list[Near]:
        wanted = min(count + len(without), len(scores))
        best = np.argpartition(-scores, wanted - 1)[:wanted]
        best = best[np.lexsort((best, -scores[best]))]
        found = [Near(self.words[row], float(scores[row])) for row in best]
        return [similar for similar in found if similar.word not in without][:count]


def space_of(run: LoadedRun) -> VectorSpace:
    """The words of a trained model."""
    token_bytes = run.tokenizer.token_bytes
    words = [word.decode() for word in token_bytes[len(SPECIAL_TOKENS) :]]
    model = run.model
    if (
        not isinstance(model, Word2Vec)
        or (pieces := word_pieces(token_bytes, model.config)) is None
    ):
        vectors = cast(WordEmbeddings, model).vectors().cpu().numpy()
        return VectorSpace(words, vectors[len(SPECIAL_TOKENS) :])
    config, table = model.config, model.embedding.weight.detach().cpu()
    rows, firsts = torch.from_numpy(pieces.rows).long(), torch.from_numpy(pieces.firsts[:-1])
    means = torch.nn.functional.embedding_bag(rows, table, firsts, mode="mean")
    # what the training text has not is made of n-grams alone, as other unseen words
    means[(table[: len(means)] == 0).all(dim=1)] = 0

    def unseen(word: str) -> Vectors | None:
        ngrams = ngrams_of(word, config)
        return table[ngrams].mean(dim=0).numpy() if ngrams else None

    return VectorSpace(words, means[len(SPECIAL_TOKENS) :].numpy(), unseen)
