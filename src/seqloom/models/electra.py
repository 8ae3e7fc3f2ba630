"""ELECTRA: a small generator fills masks, and a discriminator says of each token whether it was replaced.

    p(x_i)   = softmax(E norm(φ(V g_i)) + b)      g: a BERT that reads the text with its masks
    x̂_i      ~ p(x_i) at the masks, x_i elsewhere  a sample that is right counts as original
    D_i      = σ(w · φ(W h_i))                     h: a BERT that reads the text with the samples
    loss     = Σ_masked -log p(x_i) / |masked|  +  λ Σ_all BCE(D_i, x̂_i ≠ x_i) / |all|,  λ = 50

Clark et al.: ELECTRA, ICLR 2020, section 2. Nothing is back-propagated through the samples. Both have the
same embeddings of tokens, positions and segments, with their norm, as in the program of the paper; each has a
projection of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.models.bert import Bert, BertConfig, Head
from seqloom.models.config_checks import (
    ActivationName,
    Constraint,
    Count,
    Epsilon,
    Fraction,
    Size,
    above,
    field_problems,
    not_divisible,
    raise_problems,
)
from seqloom.models.heads import at_least_float32
from seqloom.models.sizes import named_sizes
from seqloom.protocols import Loss, MaskedBatch
from seqloom.shapes import IGNORE


@final
@dataclass(frozen=True, kw_only=True)
class ElectraConfig:
    """The sizes and choices of an ELECTRA; what is not said of the generator is the discriminator's."""

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
    embedding_width: Size | None = 128
    """Width of an embedded token, which both share; null: that of the discriminator's hidden state."""
    segments: Count = 2
    """How many segments of an input have their own embedding: the first text and the second; 0: none has."""
    activation: ActivationName = "gelu"
    """gelu (exact), gelu-tanh, relu, silu or swish (with a trained β)."""
    norm_epsilon: Epsilon = 1e-12
    """What a norm adds to the variance."""
    dropout: Fraction = 0.1
    """Share of the embedded tokens' features, and of what each sub-block adds, that is dropped in training.
    """
    attention_dropout: Fraction = 0.1
    """Share of the weights of attention dropped in training."""
    generator_fraction: Annotated[
        float, Constraint("above 0 and at most 1", lambda value: 0 < value <= 1)
    ] = 0.25
    """Width, heads and feed-forward width of the generator, as a share of the discriminator's."""
    generator_layers: Size | None = None
    """Stacked blocks of the generator; by default as many as the discriminator's."""
    discriminator_weight: Annotated[float, above(0)] = 50.0
    """λ: the weight of the discriminator's loss beside the generator's."""

    def __post_init__(self) -> None:
        problems = field_problems(self) + not_divisible("width", self.width, "heads", self.heads)
        if not problems:
            width, heads = self._share_of(self.width), self._share_of(self.heads)
            if width % heads:
                problems.append(
                    f"model.generator_fraction must give the generator a width that its {heads} heads divide,"
                    f" but {self.generator_fraction:g} of {self.width} is {width}"
                )
        raise_problems(problems)

    def _share_of(self, size: int) -> int:
        return max(1, round(size * self.generator_fraction))

    @property
    def replaces_tokens(self) -> bool:
        """Whether chosen tokens of a text are replaced, and which were is what is learnt."""
        return True

    @property
    def next_sentence(self) -> bool:
        """Whether it is asked for what follows a sentence."""
        return False

    @property
    def discriminator(self) -> BertConfig:
        return self._bert("replaced-token", self.width, self.heads, self.layers)

    @property
    def generator(self) -> BertConfig:
        width, heads = self._share_of(self.width), self._share_of(self.heads)
        return self._bert("masked-lm", width, heads, self.generator_layers or self.layers)

    def _bert(self, head: Head, width: int, heads: int, layers: int) -> BertConfig:
        feed_forward = self.feed_forward_width or 4 * self.width
        if head != "replaced-token":
            feed_forward = self._share_of(feed_forward)
        return BertConfig(
            vocabulary_size=self.vocabulary_size,
            context=self.context,
            width=width,
            layers=layers,
            heads=heads,
            feed_forward_width=feed_forward,
            embedding_width=self.embedding_width or self.width,
            segments=self.segments,
            activation=self.activation,
            norm_epsilon=self.norm_epsilon,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            head=head,
            # of the generator, as transformers has it whatever the blocks have
            head_activation="gelu" if head == "masked-lm" else None,
        )


SIZES, ABOUT = named_sizes("electra")


class Replacements(NamedTuple):
    """What generator and discriminator make of a batch."""

    logits: Tensor
    """`(masked, vocabulary)`: the generator's, at the places to predict, row by row."""
    tokens: Tensor
    """`(rows, steps)`: the text with the generator's samples at these places."""
    replaced: Tensor
    """`(rows, steps)`: where that is another text."""
    scores: Tensor
    """`(rows, steps)`: the discriminator's, above 0 where it takes a token for replaced."""


@final
class Electra(nn.Module):
    """Generator and discriminator, trained together. A task head takes the discriminator."""

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__()
        self.config = config
        self.context = config.context
        """The most tokens of an input."""
        self.discriminator = Bert(config.discriminator)
        self.generator = Bert(config.generator)
        shared, generator = self.discriminator, self.generator
        generator.embedding, generator.positions = shared.embedding, shared.positions
        generator.segments, generator.embedding_norm = shared.segments, shared.embedding_norm
        generator.output.weight = shared.embedding.weight

    @property
    def filler(self) -> Bert:
        """What fills masks."""
        return self.generator

    @property
    def reader(self) -> Bert:
        """What reads texts for a head, or for their vectors."""
        return self.discriminator

    def masked_loss(self, batch: MaskedBatch, smoothing: float = 0.0) -> Loss:
        """The generator's, plus λ times the discriminator's, whose tokens count as the batch says."""
        made = self(batch.tokens, batch.targets, batch.uniform, batch.segments)
        loss = generator_loss(made, batch.targets, smoothing)
        of_rows = (token_losses(made) * (batch.tokens >= 0)).sum(dim=1) * batch.token_weights
        return loss._replace(total=loss.total + self.config.discriminator_weight * of_rows.sum())

    def forward(
        self, inputs: Tensor, targets: Tensor, uniform: Tensor, segments: Tensor | None = None
    ) -> Replacements:
        """inputs `(rows, steps)`: a text with its masks, -1 at padding; targets `(rows, steps)`: what was at
        each place to predict, IGNORE elsewhere; uniform `(rows, steps)` in [0, 1): what each sample is drawn
        with."""
        if self.config.segments < 2:
            segments = None
        mask, chosen = inputs >= 0, targets != IGNORE
        masked_text = inputs.clamp(min=0)
        logits = self.generator.logits(self.generator(masked_text, mask, segments)[chosen])
        text = masked_text.where(~chosen, targets)
        tokens = text.masked_scatter(chosen, sampled(logits, uniform[chosen]))
        scores = self.discriminator.logits(self.discriminator(tokens, mask, segments))
        return Replacements(logits, tokens, tokens != text, scores)


@torch.no_grad()
def sampled(logits: Tensor, uniform: Tensor) -> Tensor:
    """logits `(n, vocabulary)`, uniform `(n,)` in [0, 1) -> `(n,)`: the first id up to which the
    probabilities add up to more than that."""
    reached = at_least_float32(logits).softmax(dim=-1).cumsum(dim=-1)
    # rounding may leave the sum below 1
    wanted = uniform.to(reached.dtype)[:, None] * reached[:, -1:]
    ids = torch.searchsorted(reached, wanted, right=True)[:, 0]
    return ids.clamp(max=logits.shape[-1] - 1)


def generator_loss(made: Replacements, targets: Tensor, smoothing: float = 0.0) -> Loss:
    """Cross-entropy at the places to predict."""
    wanted, logits = targets[targets != IGNORE], at_least_float32(made.logits)
    total = F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=smoothing)
    return Loss(total, torch.tensor(len(wanted), device=total.device))


def token_losses(made: Replacements) -> Tensor:
    """`(rows, steps)`: the binary cross-entropy of each token; what is at padding means nothing."""
    scores = at_least_float32(made.scores)
    return F.binary_cross_entropy_with_logits(
        scores, made.replaced.to(scores.dtype), reduction="none"
    )


def discriminator_loss(made: Replacements, inputs: Tensor) -> Loss:
    """Of every token but padding. Special tokens are among them, as in the program of the paper and in
    transformers."""
    mask = inputs >= 0
    return Loss(token_losses(made)[mask].sum(), mask.sum())
