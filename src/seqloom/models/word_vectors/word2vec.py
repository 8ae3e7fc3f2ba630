"""word2vec: a vector of each word, learned from the words around it.

    v_i, u_i    the vectors of a word as an input and as a target: rows of two embeddings, or of one (tied)
    loss        `layers/negative_sampling.py`
    the vector that others use: v, u or v + u

Mikolov et al.: Efficient Estimation of Word Representations in Vector Space, 2013 (skip-gram and CBOW);
Distributed Representations of Words and Phrases and their Compositionality, NIPS 2013 (negative sampling).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import nn

from seqloom.config import STRICT
from seqloom.layers.negative_sampling import MOST_NEGATIVES, WIDEST_WINDOW, padded_rows
from seqloom.models.config_checks import Size, field_problems, raise_problems
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
    negatives: Annotated[int, Field(ge=1, le=MOST_NEGATIVES)] = 5
    """Words from the noise for each word."""
    noise_power: Annotated[float, Field(ge=0, le=1)] = 0.75
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

    def __post_init__(self) -> None:
        problems = field_problems(self)
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
        self.embedding = _embedding(c.vocabulary_size, c.width)
        self.output = None if c.tied else _embedding(c.vocabulary_size, c.width)
        with torch.no_grad():
            # u = 0, as in the original program: the first steps move u alone
            self.embedding.weight.uniform_(-0.5 / c.width, 0.5 / c.width)


def _embedding(rows: int, width: int) -> nn.Embedding:
    return nn.Embedding(rows, width, _weight=padded_rows(rows, width))
