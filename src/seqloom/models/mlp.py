"""The multilayer perceptron over zero-padded texts: the baseline whose texts have a stated maximum length.

    Bengio, Ducharme, Vincent and Jauvin: A Neural Probabilistic Language Model, JMLR 2003

    h_0 = [E u_1; ...; E u_n; 0; ...; 0]   concatenated (section 2), zero-padded to N = model.context tokens
    h_l = ReLU(W_l h_{l-1} + b_l)          for each of `model.layers`; Bengio et al. have one, with tanh

The last h is the state of the whole text, so there is none of a single word. W_1 has a block of columns for
each place: what is learnt of a word at one place says nothing of the same word at another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.errors import UsageError
from seqloom.models.config_checks import Fraction, Size, field_problems, raise_problems
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits


@final
@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """The sizes of a multilayer perceptron over texts."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    context: Size = 128
    """N, the most tokens of a text. Shorter ones are zero-padded to it."""
    embedding_width: Size = 100
    """Width of an embedded token."""
    width: Size = 256
    """Width of each hidden layer."""
    layers: Size = 1
    """Hidden layers."""
    dropout: Fraction = 0.2
    """Share of the features of each hidden layer dropped in training."""

    def __post_init__(self) -> None:
        raise_problems(field_problems(self))

    @property
    def traits(self) -> EncoderTraits:
        return EncoderTraits(self.width, "last", one_state=True)


SIZES, ABOUT = named_sizes("mlp")


@final
class MLP(nn.Module):
    """Embedding and hidden layers. An `Encoder` of texts that are padded at their end only."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.config = c = config
        self.context = c.context
        self.embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
        nn.init.normal_(self.embedding.weight, std=c.embedding_width**-0.5)
        inputs = c.context * c.embedding_width
        self.blocks = nn.ModuleList(
            nn.Linear(c.width if layer else inputs, c.width) for layer in range(c.layers)
        )
        for block in self.blocks:
            nn.init.kaiming_uniform_(block.weight, nonlinearity="relu")  # type: ignore[arg-type]

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """inputs, mask `(rows, steps)`, true at tokens, padding at the end -> `(rows, steps, width)`: at each
        step the state of the whole text."""
        embedded = self.embedding(inputs).masked_fill(~mask[..., None], 0)
        hidden = self._of_fixed_length(embedded, mask).flatten(1)
        for block in self.blocks:
            hidden = F.dropout(block(hidden).relu(), self.config.dropout, self.training)
        return hidden[:, None].expand(-1, inputs.shape[1], -1)

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`."""
        return self(batch.tokens.clamp(min=0), batch.tokens >= 0)  # type: ignore[no-any-return]

    def _of_fixed_length(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """embedded `(rows, steps, embedding_width)`, 0 at padding -> `(rows, context, embedding_width)`.
        Raises UsageError if a text is longer."""
        missing = self.context - mask.shape[1]
        # only then the mask itself is looked at, which waits for a GPU
        if missing < 0 and bool(mask[:, self.context :].any()):
            raise UsageError(
                f"a text must have at most {self.context} tokens here, but one has"
                f" {int(mask.sum(dim=1).max())}; cut it, or train with a larger model.context"
            )
        return F.pad(embedded, (0, 0, 0, missing))  # a negative number takes padding away
