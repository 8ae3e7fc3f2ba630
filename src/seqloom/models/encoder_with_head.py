"""A reader: an encoder and a head that turns its states into an answer.

    h_1 .. h_n = encoder(x_1 .. x_n)        any of ENCODERS
    answer     = head(h_1 .. h_n)           a label, labels, a number, a tag a word, a span, a choice (`heads.py`)

Causal models (GPT) and encoder-decoders (T5) are read by their first half: the states before their output.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from seqloom.config import APART, STRICT, HeadConfig, Pooling
from seqloom.errors import UsageError
from seqloom.models import model_family
from seqloom.models.bag_of_words import BagOfWords
from seqloom.models.bert import Bert
from seqloom.models.config_checks import among, at_least, refuse
from seqloom.models.gpt import GPT
from seqloom.models.heads import KINDS, ClassificationHead, Kind, MultiLabelHead, make_head
from seqloom.models.t5 import T5
from seqloom.protocols import EncodedBatch, Loss
from seqloom.run_file import parse
from seqloom.shapes import IGNORE

ENCODERS = ("bag_of_words", "convolution", "recurrent", "bert", "gpt", "t5")
"""Families that can read for a head."""
POOLING: dict[str, Pooling] = {
    "bag_of_words": "mean",
    "convolution": "max",
    "recurrent": "max",
    "bert": "first",
    "gpt": "last",
    "t5": "mean",
}
"""How each makes one state of a text, unless told otherwise: as in their papers, and in Conneau et al. 2017
for recurrent ones."""
JOINED = ("bert", "gpt", "t5")
"""Families that read two texts as one row, unless told otherwise."""


@final
@dataclass(frozen=True, kw_only=True)
class EncoderWithHeadConfig:
    """What a reader is made of."""

    __pydantic_config__ = STRICT
    kind: Kind
    """What it answers."""
    encoder: dict[str, Any]
    """`model_type`, and the fields of its configuration."""
    head: HeadConfig = field(default_factory=HeadConfig)
    pairs: bool = False
    """Whether an example is two texts."""
    may_be_none: bool = False
    """Of a span: whether there may be no answer."""
    answers_from: Literal[0, 1] | None = None
    """Of a choice: what numbers of options counted from in the training; None where answers were none."""
    labels: tuple[str, ...] = ()
    """Names of labels or tags, in order; none of numbers, spans and choices."""
    vocabulary_size: int
    """Of its tokenizer; its encoder may have marks of its own beyond."""

    def __post_init__(self) -> None:
        problems = among(KINDS, self, "kind") + at_least(1, self, "vocabulary_size")
        if self.encoder.get("model_type") not in ENCODERS:
            problems.append(
                f"model.encoder must be one of {', '.join(ENCODERS)}, but is"
                f" {self.encoder.get('model_type')!r}"
            )
        if len(set(self.labels)) < len(self.labels):
            problems.append("model.labels must differ, but one stands twice")
        refuse(problems)


SIZES: dict[str, dict[str, Any]] = {}
ABOUT: dict[str, str] = {}


@final
class EncoderWithHead(nn.Module):
    """An encoder and its head."""

    def __init__(self, config: EncoderWithHeadConfig) -> None:
        super().__init__()
        self.config = config
        fields = dict(config.encoder)
        self.model_type = str(fields.pop("model_type"))
        config_class, model_class, _ = model_family(self.model_type)
        self.encoder: nn.Module = model_class(parse(config_class, fields, "model.encoder."))
        directions = 2 if getattr(self.encoder, "bidirectional", False) else 1
        settled = resolved_head(config.head, config.kind, self.model_type, self.width)
        pairs = config.pairs and settled.pair != "joined"
        self.head = make_head(
            config.kind, settled, self.width, len(config.labels), directions, pairs=pairs, names=config.labels
        )
        if (
            isinstance(self.encoder, BagOfWords)
            and self.encoder.linear
            and self.head.hidden is None
            and not pairs
        ):
            nn.init.eye_(self.head.output.weight)  # what is embedded are then the weights of each label
        if isinstance(self.encoder, GPT) and isinstance(self.head, ClassificationHead | MultiLabelHead):
            self.head.output.bias.requires_grad_(
                False
            )  # 0: p = softmax(h W) (Radford et al. 2018, eq. 3), as in the hub's classes
        if isinstance(self.encoder, GPT) and not config.head.lm_weight and not self.encoder.config.tie_output:
            self.encoder.output.requires_grad_(
                False
            )  # nothing asks for it, and workers wait for the gradient of what is trained

    @property
    def width(self) -> int:
        """Of a state."""
        encoder: Any = self.encoder
        return int(getattr(encoder, "output_width", None) or encoder.config.width)

    @property
    def context(self) -> int | None:
        """The most tokens of a row, marks counted; None where there is no such limit."""
        return getattr(self.encoder, "context", None)

    def read(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`; what stands at padding means nothing."""
        mask = batch.tokens >= 0
        inputs = batch.tokens.clamp(min=0)
        if isinstance(self.encoder, Bert):
            segments = batch.segments if self.encoder.config.segments > 1 else None
            return self.encoder(inputs, mask, segments)  # type: ignore[no-any-return]
        if isinstance(self.encoder, GPT):
            hidden, _ = self.encoder.read(inputs.where(mask, self.encoder.config.pad_id), None)
            return hidden
        if isinstance(self.encoder, T5):
            return self.encoder.encoded(inputs.where(mask, self.encoder.config.pad_id))
        return self.encoder(inputs, mask, batch.characters if batch.characters.shape[-1] else None)  # type: ignore[no-any-return]

    def forward(self, batch: EncodedBatch) -> Tensor:
        """The scores of all answers (`heads.py` says which)."""
        scores: Tensor = self.head(self.read(batch), batch)
        return scores

    def loss(self, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        """Of the head; with `head.lm_weight` λ that of the next token is added, λ times its mean for each
        example."""
        hidden = self.read(batch)
        loss: Loss = self.head.loss(self.head(hidden, batch), batch, smoothing)
        weight = self.config.head.lm_weight
        if not weight:
            return loss
        if not isinstance(self.encoder, GPT):
            raise UsageError(
                "head.lm_weight needs an encoder that predicts the next token (gpt), but this is"
                f" {self.model_type}"
            )
        following = torch.cat([batch.tokens[:, 1:], batch.tokens.new_full((len(hidden), 1), -1)], dim=1)
        trained = ~batch.targets.isnan() if batch.targets.is_floating_point() else batch.targets != IGNORE
        counted = (
            trained.reshape(len(trained), -1).any(dim=1)[batch.owner] if len(trained) else trained
        )  # none of a worker without rows
        following = following.where((following >= 0) & counted[:, None], IGNORE)
        each = [self.encoder.output.loss(states, ids) for states, ids in zip(hidden, following, strict=True)]
        means = torch.stack([part.total / part.count.clamp(min=1) for part in each])
        return Loss(
            loss.total + weight * (means / torch.bincount(batch.owner)[batch.owner]).sum(), loss.count
        )


def resolved_head(head: HeadConfig, kind: Kind, model_type: str, width: int) -> HeadConfig:
    """The settings of a head with nothing left open: where they are, as the encoder's paper has them. `width`
    is that of a state."""
    pair = ("joined" if model_type in JOINED else "compared") if head.pair == "auto" else head.pair
    apart = pair in APART
    hidden, pooling = head.hidden_width, head.pooling
    if hidden is None:
        hidden = width if model_type == "bert" and kind not in ("tagging", "span") and not apart else 0
    if pooling == "auto":
        pooling = (
            "mean" if apart and POOLING[model_type] == "first" else POOLING[model_type]
        )  # Reimers & Gurevych 2019, table 6
    return replace(
        head,
        pooling=pooling,
        hidden_width=hidden,
        activation="tanh" if head.activation == "auto" else head.activation,
        pair=pair,
    )
