"""An encoder, and a head that turns its hidden states into an answer.

    h_1 .. h_n = encoder(x_1 .. x_n)        any `Encoder`
    answer     = head(h_1 .. h_n)           a label, labels, a number, tags, a span, a choice (`heads.py`)

Of causal models (GPT) and encoder-decoders (T5) the states before the output are taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, cast, final

import torch
from torch import Tensor, nn

from seqloom.config import APART, STRICT, HeadConfig
from seqloom.errors import UsageError
from seqloom.models import encoder_families, model_family
from seqloom.models.config_checks import Size, field_problems, one_of, raise_problems
from seqloom.models.heads import KINDS, HeadKind, make_head
from seqloom.models.sizes import Fields, named_sizes
from seqloom.protocols import (
    CausalEncoder,
    EncodedBatch,
    Encoder,
    EncoderConfig,
    EncoderTraits,
    Loss,
    context_of,
)
from seqloom.run_file import parse
from seqloom.shapes import IGNORE


@final
@dataclass(frozen=True, kw_only=True)
class EncoderWithHeadConfig:
    """An encoder, a head, and what they answer."""

    __pydantic_config__ = STRICT
    kind: Annotated[HeadKind, one_of(KINDS)]
    """The kind of answer."""
    encoder: Fields
    """`model_type`, and the fields of its configuration."""
    head: HeadConfig = field(default_factory=HeadConfig)
    pairs: bool = False
    """Whether an example is two texts."""
    may_be_none: bool = False
    """Of spans: whether a question may have no answer."""
    answers_from: Literal[0, 1] | None = None
    """Of choices: what the numbers of options counted from in training; None where answers were not numbers.
    """
    labels: tuple[str, ...] = ()
    """Names of labels or tags, in order; none for numbers, spans and choices."""
    vocabulary_size: Size
    """Of the tokenizer; the encoder may have further special tokens."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        known = encoder_families()
        if self.encoder.get("model_type") not in known:
            problems.append(
                f"model.encoder must be one of {', '.join(known)}, but is {self.encoder.get('model_type')!r}"
            )
        if len(set(self.labels)) < len(self.labels):
            problems.append("model.labels must differ, but one is there twice")
        raise_problems(problems)


SIZES, ABOUT = named_sizes("encoder_with_head")


@final
class EncoderWithHead(nn.Module):
    """An encoder and its head."""

    def __init__(self, config: EncoderWithHeadConfig) -> None:
        super().__init__()
        self.config = config
        fields = dict(config.encoder)
        self.model_type = str(fields.pop("model_type"))
        config_class, model_class, _ = model_family(self.model_type)
        encoder_config: EncoderConfig = parse(config_class, fields, "model.encoder.")
        self.encoder: nn.Module = model_class(encoder_config)
        self.traits = traits = encoder_config.traits
        head = resolved_head(config.head, config.kind, traits)
        pairs = config.pairs and head.pair != "joined"
        self.head = make_head(
            config.kind,
            head,
            traits.width,
            len(config.labels),
            traits.directions,
            pairs=pairs,
            names=config.labels,
        )
        if traits.linear and self.head.hidden is None and not pairs:
            nn.init.eye_(self.head.output.weight)
        if not traits.label_bias and config.kind in ("classification", "multi-label"):
            self.head.output.bias.requires_grad_(False)  # and stays 0
        causal = self._causal_encoder()
        if causal is not None and not config.head.lm_weight:
            causal.freeze_output()

    def _causal_encoder(self) -> CausalEncoder | None:
        """The encoder, where it predicts the next token too."""
        return self.encoder if isinstance(self.encoder, CausalEncoder) else None

    @property
    def context(self) -> int | None:
        """The most tokens of a row, special ones included; None if there is no limit."""
        return context_of(self.encoder)

    def read(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`; states at padding mean nothing."""
        return cast(Encoder, self.encoder).encode_batch(batch)

    def forward(self, batch: EncodedBatch) -> Tensor:
        """The scores of all answers (`heads.py` says which)."""
        scores: Tensor = self.head(self.read(batch), batch)
        return scores

    def loss(self, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        """The loss of the head; with `head.lm_weight` λ, plus λ times the mean loss of the next token in each
        example."""
        hidden = self.read(batch)
        loss: Loss = self.head.loss(self.head(hidden, batch), batch, smoothing)
        weight = self.config.head.lm_weight
        if not weight:
            return loss
        causal = self._causal_encoder()
        if causal is None:
            raise UsageError(
                "head.lm_weight needs an encoder that predicts the next token (gpt), but this is"
                f" {self.model_type}"
            )
        next_tokens = self._next_tokens(batch)
        rows = zip(hidden, next_tokens, strict=True)
        losses = [causal.next_token_loss(states, targets) for states, targets in rows]
        means = torch.stack([part.total / part.count.clamp(min=1) for part in losses])
        rows_of_example = torch.bincount(batch.owner)[batch.owner]
        return Loss(loss.total + weight * (means / rows_of_example).sum(), loss.count)

    def _next_tokens(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps)`: the token after each; IGNORE at the end, and in rows whose example is not trained
        on."""
        end = batch.tokens.new_full((len(batch.tokens), 1), -1)
        next_tokens = torch.cat([batch.tokens[:, 1:], end], dim=1)
        targets = batch.targets
        trained = ~targets.isnan() if targets.is_floating_point() else targets != IGNORE
        if len(trained):  # a worker may have no rows
            trained = trained.reshape(len(trained), -1).any(dim=1)[batch.owner]
        return next_tokens.where((next_tokens >= 0) & trained[:, None], IGNORE)


def resolved_head(head: HeadConfig, kind: HeadKind, traits: EncoderTraits) -> HeadConfig:
    """The settings of a head with nothing left open: the others are those of the encoder's paper. Raises
    UsageError for a head that asks each word where the encoder has one state of the whole text."""
    if traits.one_state and kind in ("tagging", "span"):
        raise UsageError(
            f"a head for {kind} must have a state of each word, but this encoder has one of the whole text;"
            " choose another model"
        )
    pair = traits.pair if head.pair == "auto" else head.pair
    apart = pair in APART
    hidden, pooling = head.hidden_width, head.pooling
    if hidden is None:
        pooler = traits.pooler and kind not in ("tagging", "span") and not apart
        hidden = traits.width if pooler else 0
    if pooling == "auto":
        pooling = traits.pooling
        if apart and pooling == "first":
            pooling = "mean"  # Reimers & Gurevych 2019, table 6
    activation = "tanh" if head.activation == "auto" else head.activation
    return replace(head, pooling=pooling, hidden_width=hidden, activation=activation, pair=pair)
