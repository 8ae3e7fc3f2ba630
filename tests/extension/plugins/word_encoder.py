"""An encoder from outside, for tasks with a head: each state is that of its token, and of its neighbour
before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

import seqloom
from seqloom.config import STRICT
from seqloom.models.config_checks import Size, field_problems, raise_problems
from seqloom.protocols import EncodedBatch, EncoderTraits


@final
@dataclass(frozen=True, kw_only=True)
class WordEncoderConfig:
    """The sizes of an encoder of neighbours."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    width: Size = 32
    """Width of a state."""

    def __post_init__(self) -> None:
        raise_problems(field_problems(self))

    @property
    def traits(self) -> EncoderTraits:
        return EncoderTraits(width=self.width, pooling="mean")


@final
class WordEncoder(nn.Module):
    """An `Encoder`."""

    def __init__(self, config: WordEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.before = nn.Linear(config.width, config.width)

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        embedded: Tensor = self.embedding(batch.tokens.clamp(min=0))
        neighbour: Tensor = self.before(F.pad(embedded, (0, 0, 1, 0))[:, :-1])
        return (embedded + neighbour).tanh()


TASKS = ("text-classification", "token-classification", "sentence-similarity", "multiple-choice")
seqloom.register_model("word_encoder", WordEncoderConfig, WordEncoder, {"small": {}}, tasks=TASKS)
