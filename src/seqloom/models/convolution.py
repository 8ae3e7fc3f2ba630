"""The convolutional text encoder: filters over windows of words.

    Kim: Convolutional Neural Networks for Sentence Classification, EMNLP 2014

    c_t = ReLU(w · [x_t; ...; x_{t+h-1}] + b)  equation 2, for each filter, where its window begins
    ĉ = max_t c_t                              equation 4, max over time: the head's pooling

A window that is only partly inside of the text gives 0. That changes no maximum, as ReLU is never negative. A
text shorter than a window is padded with zeros. For tagging, windows are `centred`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.layers.convolution import TimeConvolution
from seqloom.models.config_checks import Fraction, Size, field_problems, raise_problems
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits

SPREAD = 0.25
"""Embeddings are initialised uniformly in [-0.25, 0.25] (section 3.1)."""


@final
@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig:
    """The sizes and choices of a convolutional encoder."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    embedding_width: Size = 300
    """Width of an embedded token."""
    windows: tuple[int, ...] = (3, 4, 5)
    """Words of a window; there are filters of each size."""
    maps: Size = 100
    """Filters of each window."""
    channels: Literal[1, 2] = 1
    """2: a second copy of the embedding, which is not trained (Kim's CNN-multichannel, meant for word
    vectors)."""
    centred: bool = False
    """Whether windows are centred on their word, for tagging, instead of beginning there."""
    dropout: Fraction = 0.0
    """Share of the features of embedded tokens dropped in training; Kim has dropout before the output layer
    instead (head.dropout=0.5)."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not self.windows or min(self.windows) < 1 or len(set(self.windows)) < len(self.windows):
            problems.append(
                f"model.windows must be one or more different sizes of at least 1, but is {self.windows}"
            )
        raise_problems(problems)

    @property
    def output_width(self) -> int:
        """Of a step: the maps of each window, one after the other."""
        return len(self.windows) * self.maps

    @property
    def traits(self) -> EncoderTraits:
        return EncoderTraits(self.output_width, "max")  # Kim 2014


SIZES, ABOUT = named_sizes("convolution")


@final
class Convolution(nn.Module):
    """Embedding and filters. An `Encoder` of texts that are padded at their end only."""

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
        nn.init.uniform_(self.embedding.weight, -SPREAD, SPREAD)
        self.static: Tensor | None
        """The channel that is not trained `(vocabulary, embedding width)`."""
        static = self.embedding.weight.detach().clone() if c.channels == 2 else None
        self.register_buffer("static", static)
        self.convolutions = nn.ModuleList(
            TimeConvolution(c.channels * c.embedding_width, c.maps, window, centred=c.centred)
            for window in c.windows
        )

    @torch.no_grad()
    def settle_static(self) -> None:
        """Copies the embedding to the static channel; needed after word vectors were loaded into it."""
        if self.static is not None:
            self.static.copy_(self.embedding.weight)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """inputs, mask `(rows, steps)`, true at tokens, padding at the end -> `(rows, steps, output_width)`,
        0 at padding."""
        embedded = self.embedding(inputs)
        if self.static is not None:
            embedded = torch.cat([embedded, F.embedding(inputs, self.static)], dim=-1)
        embedded = F.dropout(embedded, self.config.dropout, self.training).masked_fill(
            ~mask[..., None], 0
        )
        maps = [self._maps(layer, embedded, mask) for layer in self.convolutions]  # type: ignore[arg-type]
        return torch.cat(maps, dim=-1)

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, output_width)`."""
        return self(batch.tokens.clamp(min=0), batch.tokens >= 0)  # type: ignore[no-any-return]

    def _maps(self, convolution: TimeConvolution, embedded: Tensor, mask: Tensor) -> Tensor:
        """`(rows, steps, maps)` of one size of windows."""
        inside = mask
        if not self.config.centred:
            ends = torch.arange(
                convolution.window, convolution.window + mask.shape[1], device=mask.device
            )
            inside = mask & (ends <= mask.sum(dim=1, keepdim=True).clamp(min=convolution.window))
        maps: Tensor = convolution(embedded)
        return maps.relu().masked_fill(~inside[..., None], 0)
