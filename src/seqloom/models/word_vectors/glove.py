"""GloVe: a vector of each word, from how often words are near each other.

    log X_ij ≈ w_i · w~_j + b_i + b~_j        X_ij: how often word j is near word i, 1/distance each time
    loss     ½ Σ_ij f(X_ij) (w_i · w~_j + b_i + b~_j - log X_ij)²,    f(x) = min(1, (x / x_max)^α)

Pennington, Socher and Manning: GloVe: Global Vectors for Word Representation, EMNLP 2014. The training is in
`layers/glove.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from pydantic import Field
from torch import nn

from seqloom.config import STRICT
from seqloom.models.config_checks import Size, field_problems, raise_problems
from seqloom.models.sizes import named_sizes
from seqloom.models.word_vectors.embeddings import WhichVectors, WordEmbeddings

WIDEST_WINDOW = 63


@final
@dataclass(frozen=True, kw_only=True)
class GloveConfig:
    """The sizes and choices of a GloVe."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    width: Size = 100
    """Numbers of a vector."""
    window: Annotated[int, Field(ge=1, le=WIDEST_WINDOW)] = 10
    """Words on each side of a word that count as near, with a weight of 1/distance."""
    x_max: Annotated[float, Field(gt=0)] = 100.0
    """Pairs of words with a count from here on have the weight 1; less suits small texts."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.75
    """α: pairs with a count below x_max have the weight (count / x_max)^α."""
    vectors: WhichVectors = "sum"
    """Which vectors others use: w (input), w~ (output), or w + w~ (sum)."""

    def __post_init__(self) -> None:
        raise_problems(field_problems(self))


SIZES, ABOUT = named_sizes("glove")


@final
class Glove(WordEmbeddings):
    """Two embeddings with a bias for each of their rows."""

    output: nn.Embedding

    def __init__(self, config: GloveConfig) -> None:
        super().__init__()
        self.config = c = config
        self.chosen = c.vectors
        self.embedding = nn.Embedding(c.vocabulary_size, c.width)
        self.output = nn.Embedding(c.vocabulary_size, c.width)
        self.bias = nn.Parameter(torch.empty(c.vocabulary_size))
        self.output_bias = nn.Parameter(torch.empty(c.vocabulary_size))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.5 / c.width, 0.5 / c.width)
