"""The bag of words: which tokens a text has, in any order.

    embeddings  the head's mean of E u_t               Joulin et al. 2017 (fastText); Iyyer et al. 2015
    counts      f(X) = b + Σ_t a(u_t): linear in the number of times that each token occurs
    binary      the same, but each token counts once
    tf-idf      the same, but a token weighs idf = ln((1 + n) / (1 + df)) + 1, where df of n texts have it;
                the vector of a text is scaled to length 1, as in scikit-learn's TfidfVectorizer

The last three are linear, and meant for the head's pooling `sum`: a(u) = W E_u with the head's W. They start
from E = 0, so a token that is not in the training data has no effect. Special tokens, whose ids are below
`first_word`, are not counted.

Each n-gram has, by a hash, one of `buckets` embeddings, which is added to the step where the n-gram ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.layers.outputs.maxent import MULTIPLIER, PRIME
from seqloom.layers.recurrent.highway import HighwayLayer
from seqloom.models.config_checks import (
    Count,
    Fraction,
    Size,
    UsedWith,
    above,
    field_problems,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits


@final
@dataclass(frozen=True, kw_only=True)
class BagOfWordsConfig:
    """The sizes and choices of a bag of words."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    features: Literal["embeddings", "counts", "binary", "tf-idf"] = "embeddings"
    """Features of a text: the embeddings of its tokens; or, for a linear model, their counts, whether they
    occur, or tf-idf."""
    width: Size = 100
    """Width of an embedded token; of a linear model at least the number of labels."""
    ngrams: Size = 1
    """The length of the longest n-grams that are features too."""
    buckets: Annotated[Size, UsedWith(ngrams=above(1))] = 2**17
    """Embeddings for n-grams, which share them by a hash."""
    dropout: Annotated[Fraction, UsedWith(features="embeddings")] = 0.2
    """Share of the features of embedded tokens dropped in training; the linear forms drop none."""
    highways: Annotated[Count, UsedWith(features="embeddings")] = 0
    """Highway layers that each embedded token goes through (Srivastava et al. 2015)."""
    first_word: Count = 16
    """Smaller ids are special tokens, which linear models do not count."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if self.buckets >= PRIME:
            problems.append(f"model.buckets must be less than {PRIME}, but is {self.buckets}")
        raise_problems(problems)

    @property
    def linear(self) -> bool:
        """Whether hidden states are linear in the counts of tokens."""
        return self.features != "embeddings"

    @property
    def traits(self) -> EncoderTraits:
        return EncoderTraits(self.width, "mean", linear=self.linear)


SIZES, ABOUT = named_sizes("bag_of_words")


class Features(NamedTuple):
    """The features of each step."""

    ids: Tensor
    """`(rows, steps, ngrams)`: the token, then the buckets of the bigram, trigram, ... that end here; ids of
    buckets come after the vocabulary."""
    counted: Tensor
    """`(rows, steps, ngrams)`: which of them exist."""


@final
class BagOfWords(nn.Module):
    """Weighted embeddings of tokens and n-grams. An `Encoder` of texts that are padded at their end only."""

    def __init__(self, config: BagOfWordsConfig) -> None:
        super().__init__()
        self.config = c = config
        self.linear = c.linear
        self.embedding = nn.Embedding(c.vocabulary_size, c.width)
        self.ngram_embedding = nn.Embedding(c.buckets, c.width) if c.ngrams > 1 else None
        bound = 0.0 if self.linear else 1 / c.width  # fastText's start
        for table in (self.embedding, self.ngram_embedding):
            if table is not None:
                nn.init.uniform_(table.weight, -bound, bound)
        self.highways = nn.Sequential(*(HighwayLayer(c.width) for _ in range(c.highways)))
        features = c.vocabulary_size + (c.buckets if c.ngrams > 1 else 0)
        self.idf: Tensor | None
        """`(features,)`: their weights."""
        self.register_buffer("idf", torch.ones(features) if c.features == "tf-idf" else None)

    @torch.no_grad()
    def initialise(self, document_frequency: Tensor, documents: int) -> None:
        """Sets idf. document_frequency `(features,)`: in how many of the documents each feature occurs, the
        sum of `occurring`."""
        if self.idf is not None:
            self.idf.copy_(((1 + documents) / (1 + document_frequency.double())).log() + 1)

    def occurring(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """inputs, mask `(rows, steps)` -> in how many of the rows each feature occurs `(features,)`."""
        ids, counted = self.features(inputs, mask)
        first = counted & (earlier(ids, counted) == 0)
        size = self.config.vocabulary_size + (
            0 if self.ngram_embedding is None else self.config.buckets
        )
        return ids[first].bincount(minlength=size)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """inputs, mask `(rows, steps)`, true at tokens, padding at the end -> `(rows, steps, width)`, 0 at
        padding."""
        ids, counted = self.features(inputs, mask)
        weights = self.weights(ids, counted)[..., None]
        embedded: Tensor = self.embedding(inputs) * weights[:, :, 0]
        if self.ngram_embedding is not None:
            buckets = (ids[..., 1:] - self.config.vocabulary_size).clamp(min=0)
            embedded = embedded + (self.ngram_embedding(buckets) * weights[:, :, 1:]).sum(dim=2)
        if self.linear:
            return embedded
        if self.config.highways:
            embedded = self.highways(embedded).masked_fill(~mask[..., None], 0)
        return F.dropout(embedded, self.config.dropout, self.training)

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`."""
        return self(batch.tokens.clamp(min=0), batch.tokens >= 0)  # type: ignore[no-any-return]

    def features(self, inputs: Tensor, mask: Tensor) -> Features:
        """Of inputs, mask `(rows, steps)`."""
        c, steps = self.config, inputs.shape[1]
        known = mask & (inputs >= c.first_word) if self.linear else mask
        hashed, exists = torch.zeros_like(inputs), torch.ones_like(known)
        ids, counted = [inputs], [known]
        for back in range(c.ngrams):  # n-grams grow to the left
            hashed = (hashed + F.pad(inputs, (back, 0))[:, :steps] + 1) * MULTIPLIER % PRIME
            exists = exists & F.pad(known, (back, 0))[:, :steps]
            if back:
                ids.append(c.vocabulary_size + hashed % c.buckets)
                counted.append(exists)
        return Features(torch.stack(ids, dim=2), torch.stack(counted, dim=2))

    def weights(self, ids: Tensor, counted: Tensor) -> Tensor:
        """The weight of each feature `(rows, steps, ngrams)`."""
        if self.config.features == "binary":
            counted = counted & (earlier(ids, counted) == 0)
        if self.idf is None:
            return counted.to(self.embedding.weight.dtype)
        weights = self.idf[ids] * counted
        # A feature that occurs c times adds 1 + 3 + 5 + ... = c² over its occurrences: the square of its
        # count in the vector of the text.
        squares = weights.square() * (2 * earlier(ids, counted) + 1)
        length = squares.sum(dim=(1, 2), keepdim=True).sqrt()
        return weights / length.clamp(min=torch.finfo(weights.dtype).tiny)


def earlier(ids: Tensor, counted: Tensor) -> Tensor:
    """How often each feature occurred before in its row: ids, counted `(rows, steps, ngrams)` -> the same
    shape."""
    flat = ids.masked_fill(~counted, -1).flatten(1)
    ordered, order = flat.sort(dim=1, stable=True)
    index = torch.arange(flat.shape[1], device=ids.device).expand_as(flat)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = index.masked_fill(~is_first, 0).cummax(dim=1).values  # the first of equal features
    return torch.empty_like(flat).scatter_(1, order, index - first).view_as(ids)
