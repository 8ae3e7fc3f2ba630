"""word2vec: a vector of each word, learned from the words around it.

    v_i, u_i    the vectors of a word as an input and as a target: rows of two embeddings, or of one (tied);
                of n-grams of characters v has further rows, after those of words
    loss        `layers/word2vec.py`
    the vector that others use: v, u or v + u

Mikolov et al.: Efficient Estimation of Word Representations in Vector Space, 2013 (skip-gram and CBOW);
Distributed Representations of Words and Phrases and their Compositionality, NIPS 2013 (negative sampling).
Bojanowski et al.: Enriching Word Vectors with Subword Information, TACL 2017 (n-grams of characters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import nn

from seqloom.config import STRICT
from seqloom.layers.compiled_word2vec import padded_rows
from seqloom.layers.word2vec import MOST_NEGATIVES, WIDEST_WINDOW
from seqloom.models.config_checks import Size, UsedWith, above, field_problems, raise_problems
from seqloom.models.sizes import named_sizes
from seqloom.models.word_vectors.embeddings import WhichVectors, WordEmbeddings


@final
@dataclass(frozen=True, kw_only=True)
class Word2VecConfig:
    """The sizes and choices of a word2vec."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    width: Size = 100
    """Numbers of a vector."""
    architecture: Literal["skip-gram", "cbow"] = "skip-gram"
    """skip-gram: each word around a word is an input by itself; cbow: their mean is."""
    window: Annotated[int, Field(ge=1, le=WIDEST_WINDOW)] = 5
    """Words on each side of a word that are its inputs, at most."""
    drawn_window: bool = True
    """Whether each word has a window of 1 to `window` words, drawn for it (the original program), so that
    near words count more; false: all windows are whole (the paper)."""
    loss: Literal["negative-sampling", "softmax"] = "negative-sampling"
    """negative-sampling: a word against some from the noise; softmax: against all words, for small
    vocabularies."""
    negatives: Annotated[
        int, Field(ge=1, le=MOST_NEGATIVES), UsedWith(loss="negative-sampling")
    ] = 5
    """Words from the noise for each word."""
    noise_power: Annotated[float, Field(ge=0, le=1), UsedWith(loss="negative-sampling")] = 0.75
    """The noise is in proportion to count^noise_power."""
    subsample: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """t: of words with a frequency f above it only a part of the occurrences is read; 0: all are."""
    subsample_formula: Literal["program", "paper"] = "program"
    """The part of its occurrences that is read: √(t/f) + t/f (the original program), or √(t/f) (the paper).
    """
    tied: bool = False
    """Whether a word has the same vector as an input and as a target."""
    vectors: WhichVectors = "input"
    """Which vectors others use: v, u, or v + u."""
    buckets: Annotated[int, Field(ge=0, le=2**30)] = 0
    """Rows that n-grams of characters are hashed to, as in fastText (2,000,000 there): the vector v of a word
    is the mean of its own and theirs, so that unseen words have one too; 0: words have no n-grams."""
    shortest_ngram: Annotated[Size, UsedWith(buckets=above(0))] = 3
    """Characters of the shortest n-grams, the marks `<` and `>` around a word included."""
    longest_ngram: Annotated[Size, UsedWith(buckets=above(0))] = 6
    """Characters of the longest n-grams."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if self.buckets and (self.tied or self.vectors != "input"):
            problems.append(
                "model.buckets needs model.vectors=input and model.tied=false: n-grams are parts of v alone"
            )
        if self.shortest_ngram > self.longest_ngram:
            problems.append(
                f"model.shortest_ngram must be at most model.longest_ngram={self.longest_ngram}, but is"
                f" {self.shortest_ngram}"
            )
        if self.tied and self.vectors != "input":
            problems.append(
                f"model.vectors={self.vectors} changes nothing with model.tied=true; leave it out"
            )
        raise_problems(problems)


SIZES, ABOUT = named_sizes("word2vec")


@final
class Word2Vec(WordEmbeddings):
    """Two embeddings, trained by `tasks/word_vectors/objective.py`."""

    def __init__(self, config: Word2VecConfig) -> None:
        super().__init__()
        self.config = c = config
        self.chosen = c.vectors
        self.embedding = _embedding(c.vocabulary_size + c.buckets, c.width)
        self.output = None if c.tied else _embedding(c.vocabulary_size, c.width)
        with torch.no_grad():
            # u = 0, as in the original program: the first steps move u alone
            self.embedding.weight.uniform_(-0.5 / c.width, 0.5 / c.width)


def _embedding(rows: int, width: int) -> nn.Embedding:
    return nn.Embedding(rows, width, _weight=padded_rows(rows, width))
