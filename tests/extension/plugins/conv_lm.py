"""A family of models from outside: a causal convolution over the last tokens, with gated linear units.

    h_t = GLU(W [E u_{t-k+1}; ..; E u_t] + b)   (Dauphin et al. 2017, arXiv:1612.08083, equation 1, one layer)

The state is the last k - 1 tokens of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seqloom
from seqloom.config import STRICT
from seqloom.layers.outputs.maxent import NO_TOKEN, histories, next_past
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.recurrent.document_rows import Segments, cut_rows
from seqloom.models.config_checks import Size, field_problems, raise_problems


@final
@dataclass(frozen=True, kw_only=True)
class ConvLMConfig:
    """The sizes of a convolutional language model."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    window: Size = 4
    """Tokens that a prediction looks at."""
    embedding_width: Size = 64
    """Width of an embedded token."""
    width: Size = 128
    """Width of a hidden state."""
    pad_id: int = 0
    """The id of <pad>."""
    bos_id: int = 1
    """The id of <s>."""
    eos_id: int = 2
    """The id of </s>."""

    def __post_init__(self) -> None:
        raise_problems(field_problems(self))


@final
class ConvLM(nn.Module):
    """A `NeuralDecodable`; the first state is no tokens."""

    def __init__(self, config: ConvLMConfig) -> None:
        super().__init__()
        self.config = c = config
        # the first is NO_TOKEN's
        self.embedding = nn.Embedding(c.vocabulary_size + 1, c.embedding_width)
        self.convolution = nn.Linear(c.window * c.embedding_width, 2 * c.width)
        self.output = FullOutput(c.width, c.vocabulary_size)

    def read(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        c = self.config
        documents = cut_rows(tokens, c.pad_id, c.bos_id)
        past = self._past(documents, state)
        embedded = self.embedding(histories(documents.tokens, past) + 1).flatten(2)
        after = next_past(documents.tokens, documents.tokens != c.pad_id, past)
        if documents.first is not None:
            after = after[documents.last]
        return documents.to_rows(F.glu(self.convolution(embedded)), tokens.shape), after

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def _past(self, documents: Segments, state: Tensor | None) -> Tensor:
        """The tokens before each document: none, or where a row continues those of the state."""
        past = documents.tokens.new_full((len(documents.tokens), self.config.window - 1), NO_TOKEN)
        if state is None:
            return past
        if documents.starts_document is not None:
            state = torch.where(documents.starts_document[:, None], NO_TOKEN, state)
        return state if documents.first is None else past.index_copy(0, documents.first, state)


SIZES = {"small": {}, "wide": {"window": 8, "width": 512}}
seqloom.register_model(
    "conv_lm", ConvLMConfig, ConvLM, SIZES, {"small": "one window of four tokens"}
)
