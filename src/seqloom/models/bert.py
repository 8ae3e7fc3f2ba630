"""BERT: a Transformer encoder that reads in both directions, and the heads that it is pre-trained with.

    BERT     Devlin et al. 2019
             x_0 = norm(E[token] + P[position] + S[segment]),  x_l = block(x_{l-1}), norms after
             masked tokens are predicted by norm(φ(W x_i)) Eᵀ + b
             whether the second text follows the first by tanh(W x_1), of [CLS]
    RoBERTa  Liu et al. 2019: no segments, positions from 2 on, no next sentence prediction
    ELECTRA  Clark et al. 2020: narrow embeddings, projected to the width; a generator, and a discriminator
    that
             predicts of each token whether it was replaced: w · φ(W x_i)

Padding is never read: rows are packed, and the result at padding is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.layers.linear import Linear
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.transformer.block_config import BlockConfig, make_norm
from seqloom.layers.transformer.blocks import (
    Stack,
    padding_and_positions,
)
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.layers.transformer.native_encoder import encode
from seqloom.layers.transformer.positions import LearnedPositions
from seqloom.models.config_checks import (
    ActivationName,
    Count,
    Epsilon,
    Fraction,
    Size,
    UsedWith,
    field_problems,
    not_divisible,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits, Loss, MaskedBatch
from seqloom.shapes import IGNORE

Head = Literal["none", "masked-lm", "replaced-token"]


@final
@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The sizes and choices of a BERT."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    context: Size = 512
    """The most tokens of an input, special ones included."""
    width: Size = 256
    """Width of a hidden state."""
    layers: Size = 4
    """Stacked blocks."""
    heads: Size = 4
    """Heads of attention; they share the width."""
    feed_forward_width: Size | None = None
    """Width of the feed-forward layer's hidden state; by default four times the width."""
    embedding_width: Size | None = None
    """Width of an embedded token, where it differs (ELECTRA); it is then projected."""
    segments: Count = 2
    """How many segments of an input have their own embedding: the first text and the second; 0: none has."""
    position_offset: Count = 0
    """Unused rows at the start of the table of positions (RoBERTa: 2)."""
    activation: ActivationName = "gelu"
    """gelu (exact), gelu-tanh, relu, silu or swish (with a trained β)."""
    norm: Literal["before", "after"] = "after"
    """Layer normalisation before each sub-block, or after it (the paper)."""
    norm_epsilon: Epsilon = 1e-12
    """What a norm adds to the variance."""
    dropout: Fraction = 0.1
    """Share of the embedded tokens' features, and of what each sub-block adds, that is dropped in training.
    """
    attention_dropout: Fraction = 0.1
    """Share of the weights of attention dropped in training."""
    pooler: bool = False
    """Whether the state of the first token goes through tanh(W x + b)."""
    next_sentence: bool = False
    """Whether the model predicts if the second text follows the first (needs the pooler)."""
    head: Head = "masked-lm"
    """What is predicted from each token's state: masked-lm (which token it was), replaced-token (whether it
    was replaced), none."""
    head_activation: Annotated[
        ActivationName | None, UsedWith(head=("masked-lm", "replaced-token"))
    ] = None
    """The activation of the head, where it differs from that of the blocks."""
    tie_output: Annotated[bool, UsedWith(head="masked-lm")] = True
    """Whether the output's weight is the token embedding."""

    def __post_init__(self) -> None:
        problems = field_problems(self) + not_divisible("width", self.width, "heads", self.heads)
        if self.next_sentence and not self.pooler:
            problems.append("model.next_sentence needs model.pooler=true")
        raise_problems(problems)

    @property
    def replaces_tokens(self) -> bool:
        """Whether chosen tokens of a text are replaced, and which were is what is learnt."""
        return False

    @property
    def traits(self) -> EncoderTraits:
        return EncoderTraits(self.width, "first", pair="joined", pooler=True)

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)


SIZES, ABOUT = named_sizes("bert")
POSITION_SIZE = 0.05
"""Of the first sinusoids. With drawn positions masked models stay for long at what a bag of the words around
a mask can tell (docs/masked-lm.md)."""


@final
class Bert(nn.Module):
    """Embedding, blocks, and the heads it is trained with. An `Encoder`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = c = config
        self.context = c.context
        """The most tokens of an input."""
        narrow = c.embedding_width or c.width
        self.embedding = nn.Embedding(c.vocabulary_size, narrow)
        self.positions = LearnedPositions(c.context, narrow, c.position_offset)
        self.segments = nn.Embedding(c.segments, narrow) if c.segments else None
        self.embedding_norm = make_norm(c.block, narrow)
        self.dropout = nn.Dropout(c.dropout)
        self.projection = Linear(narrow, c.width) if narrow != c.width else None
        self.stack = Stack(c.block, c.layers)
        self.pooler = Linear(c.width, c.width) if c.pooler else None
        self.next_sentence = Linear(c.width, 2) if c.next_sentence else None
        self.head = TokenHead(c, narrow) if c.head != "none" else None
        if c.head == "masked-lm":
            tied = self.embedding.weight if c.tie_output else None
            self.output = FullOutput(narrow, c.vocabulary_size, tied)
        elif c.head == "replaced-token":
            self.replaced = Linear(c.width, 1)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.positions.begin_as_sinusoids(POSITION_SIZE)

    @property
    def filler(self) -> Bert:
        """What fills masks."""
        return self

    @property
    def reader(self) -> Bert:
        """What reads texts for a head, or for their vectors."""
        return self

    def forward(self, inputs: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        """inputs, mask `(rows, steps)`, true at tokens, segments `(rows, steps)` of 0 and 1, by default 0 ->
        `(rows, steps, width)`.

        Raises UsageError if an input is longer than the table of positions.
        """
        padding, positions = padding_and_positions(mask)
        return encode(self.stack, self._embed(inputs, positions, segments), padding)

    def encode_batch(self, batch: EncodedBatch | MaskedBatch) -> Tensor:
        """`(rows, steps, width)`."""
        segments = batch.segments if self.config.segments > 1 else None
        return self(batch.tokens.clamp(min=0), batch.tokens >= 0, segments)  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor) -> Tensor:
        """hidden `(rows, steps, width)` -> `(rows, width)`: tanh(W x + b) of the first place, which must not
        be padding."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(hidden[:, 0]))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> `(..., vocabulary)` of a masked LM; of replaced-token `(...)`, above 0
        where it was replaced."""
        assert self.head is not None
        if self.config.head == "replaced-token":
            replaced: Tensor = self.replaced(self.head(hidden))
            return replaced[..., 0]
        return self.output.logits(self.head(hidden))

    def masked_loss(self, batch: MaskedBatch, smoothing: float = 0.0) -> Loss:
        """Of the chosen places alone, whose logits are all that are formed; and of the labels."""
        assert self.head is not None
        hidden, is_chosen = self.encode_batch(batch), batch.targets != IGNORE
        loss = self.output.loss(self.head(hidden[is_chosen]), batch.targets[is_chosen], smoothing)
        if self.next_sentence is None:
            return loss
        of_rows = F.cross_entropy(
            self.follows(hidden), batch.labels, ignore_index=IGNORE, reduction="none"
        )
        return loss._replace(total=loss.total + (of_rows * batch.label_weights).sum())

    def follows(self, hidden: Tensor) -> Tensor:
        """hidden `(rows, steps, width)` -> logits `(rows, 2)`: the second text follows the first, or not."""
        assert self.next_sentence is not None
        logits: Tensor = self.next_sentence(self.pooled(hidden))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _embed(self, inputs: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        """`x_0`: `(rows, steps, width)`."""
        x = self.embedding(inputs) + self.positions(positions, inputs.shape[1])
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        x = self.dropout(self.embedding_norm(x))
        projected: Tensor = x if self.projection is None else self.projection(x)
        return projected


@final
class TokenHead(nn.Module):
    """`norm(φ(W x + b))` before the vocabulary; of replaced-token without the norm."""

    def __init__(self, config: BertConfig, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.head_activation or config.activation]()
        masked = config.head == "masked-lm"
        self.hidden = Linear(config.width, width if masked else config.width)
        self.norm = make_norm(config.block, width) if masked else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """`(..., width)` -> `(..., width)`, or as wide as an embedding."""
        output: Tensor = self.norm(self.activation(self.hidden(hidden)))
        return output
