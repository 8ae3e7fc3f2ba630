"""Heads: from the states of an encoder to an answer.

    one state   s = pool(h_1 .. h_n)                       `layers/pooling.py`
    two texts   compared: [u; v; |u - v|; u * v]           Mou et al. 2016; Conneau et al. 2017; each text is a row
                cosine: u · v / |u| |v|                    Reimers & Gurevych 2019, section 3: of numbers; each text is a row
                both orders: s_1 + s_2                     Radford et al. 2018 (GPT-1), figure 1; each order is a row
    scores      W φ(V s + c) + b, or W s + b               dropout before each product

    classification  softmax of the scores                  `(examples, labels)`
    multi-label     σ of each score by itself              `(examples, labels)`
    regression      the score is the number                `(examples,)`
    tagging         softmax, or a CRF (`layers/crf.py`)    `(rows, places, labels)`
    span            softmax over the places, twice         `(rows, places, 2)`: start and end (Devlin et al. 2019, section 4.2)
    choice          softmax over the rows of an example    `(examples, most options)`: Radford et al. 2018; Devlin et al. 2019, section 4.4

Scores are -inf where a row has no such place, or an example no such option. A loss is a sum over examples (of
tags: over words). With class weights w it is Σ w_y l, and the count stays that of the examples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import HeadConfig
from seqloom.errors import UsageError
from seqloom.layers.attention import attention_weights
from seqloom.layers.crf import CRF
from seqloom.layers.linear import Linear
from seqloom.layers.pooling import AttentionPooling, pooled
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.protocols import EncodedBatch, Loss
from seqloom.shapes import IGNORE

HeadKind = Literal["classification", "multi-label", "regression", "tagging", "span", "choice"]
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
MAX_ANSWER_LENGTH = 30
"""Places of a span that `predictions` may take: what Devlin et al. 2019 have in their code."""


def make_head(
    kind: HeadKind,
    head: HeadConfig,
    width: int,
    labels: int,
    directions: int = 1,
    *,
    pairs: bool = False,
    names: Sequence[str] = (),
) -> Head:
    """The head of a kind, with no setting left at "auto". `width` is that of a state, `directions` how many
    share it; `pairs` says that an example is two rows where head.pair is not joined; `names` of tags tell a
    CRF which may follow which.

    Raises UsageError for a CRF over anything but tags, for a cosine that is to be anything but a number, and
    where there are no labels to tell apart.
    """
    if head.crf and kind != "tagging":
        raise UsageError(f"head.crf must be false for {kind}: only tags are a sequence")
    if head.pair == "cosine" and kind != "regression":
        raise UsageError(f"head.pair must not be cosine for {kind}: it is one number")
    if kind in ("classification", "multi-label", "tagging") and labels < 1:
        raise UsageError(f"a head for {kind} must have labels, but there are none")
    if kind == "tagging":
        return TaggingHead(head, width, labels, names)
    if kind == "span":
        return SpanHead(head, width, 2)
    if kind == "choice":
        return ChoiceHead(head, width, 1, directions)
    if kind == "regression":
        return RegressionHead(head, width, 1, directions, pairs)
    return (ClassificationHead if kind == "classification" else MultiLabelHead)(
        head, width, labels, directions, pairs
    )


class Head(nn.Module):
    """Dropout, a hidden layer where `head.hidden_width` is not 0, and the scores."""

    weights: Tensor

    def __init__(self, head: HeadConfig, width: int, outputs: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(head.dropout)
        self.activation = ACTIVATIONS[head.activation]()
        self.hidden = Linear(width, head.hidden_width) if head.hidden_width else None
        self.output = Linear(head.hidden_width or width, outputs)
        for layer in (self.hidden, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.register_buffer("weights", torch.ones(outputs), persistent=False)

    def scored(self, states: Tensor) -> Tensor:
        """states `(..., width)` -> scores `(..., outputs)`."""
        states = self.dropout(states)
        if self.hidden is not None:
            states = self.dropout(self.activation(self.hidden(states)))
        scores: Tensor = self.output(states)
        return scores

    def set_weights(self, weights: Tensor) -> None:
        """Weights `(labels,)` of the labels in the loss, 1 until then. They belong to a training and are not
        saved with the model.

        Raises UsageError where the loss is not one of labels.
        """
        raise UsageError(
            f"head.class_weights must be none for {type(self).__name__}: its loss is not a sum over labels"
        )

    @abstractmethod
    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        """hidden `(rows, steps, width)` -> scores (above)."""

    @abstractmethod
    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        """In nats (of numbers squared errors); nothing where the target is IGNORE (of numbers nan)."""

    @abstractmethod
    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        """The answer: a label `(examples,)`, labels `(examples, labels)` true or false, a number
        `(examples,)`, tags `(rows, places)`, the first and last place of a span `(rows, 2)`, an option
        `(examples,)`; -1 where there is no place."""

    @abstractmethod
    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        """Of each answer, in the shape of the scores; 0 where there is no place or option. A number stays as
        it is."""


class PooledHead(Head):
    """A head that reads one state of each row, or of each pair of rows."""

    def __init__(
        self, head: HeadConfig, width: int, outputs: int, directions: int, pairs: bool = False
    ) -> None:
        self.together = head.pair if pairs else "joined"
        if self.together == "cosine":
            head = replace(head, dropout=0.0)  # of one number, nothing would be left
        super().__init__(head, {"compared": 4 * width, "cosine": 1}.get(self.together, width), outputs)
        assert head.pooling != "auto"
        self.pooling, self.directions = head.pooling, directions
        self.attention = AttentionPooling(width) if head.pooling == "attention" else None

    def states(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        """hidden `(rows, steps, width)` -> one state of each example: `(examples, width)`, of compared pairs
        `(examples, 4 width)`, of those whose cosine is taken `(examples, 1)`."""
        states = pooled(self.pooling, hidden, batch.tokens >= 0, self.directions, self.attention)
        if self.together == "joined":
            return states
        u, v = states[::2], states[1::2]
        if self.together == "cosine":
            return F.cosine_similarity(u, v, dim=-1)[:, None]
        return u + v if self.together == "both_orders" else torch.cat([u, v, (u - v).abs(), u * v], dim=-1)

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return self.scored(self.states(hidden, batch))


@final
class ClassificationHead(PooledHead):
    """One label."""

    def set_weights(self, weights: Tensor) -> None:
        self.weights.copy_(weights)

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        losses = cross_entropy(scores, batch.targets, smoothing, self.weights)
        return Loss(losses.sum(), (batch.targets != IGNORE).sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.argmax(dim=-1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.softmax(dim=-1)


@final
class MultiLabelHead(PooledHead):
    """Any number of labels. The loss of an example is the sum over its labels, -log p of them all; smoothing
    ε takes 0 and 1 to ε/2 and 1 - ε/2."""

    def set_weights(self, weights: Tensor) -> None:
        self.weights.copy_(weights)

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        trained = batch.targets != IGNORE
        wanted = batch.targets.where(trained, 0).to(exact(scores).dtype) * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(
            exact(scores), wanted, self.weights.to(wanted.dtype), reduction="none"
        )
        return Loss(losses.where(trained, 0).sum(), trained.any(dim=1).sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores > 0

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.sigmoid()


@final
class RegressionHead(PooledHead):
    """A number. The loss is (score - target)², not in nats; smoothing has no meaning here."""

    @torch.no_grad()
    def initialise_bias(self, numbers: Tensor) -> None:
        """A new head begins where the numbers `(examples,)` of the training are, at their mean: at the rates
        of fine-tuning its bias would take a training to climb there. A cosine of 0 begins as the smallest,
        one of 1 as the largest."""
        if self.output.bias.any():
            return
        low, high = numbers.aminmax()
        if self.together == "cosine" and self.hidden is None:
            self.output.bias.fill_(low)
            self.output.weight.fill_(high - low)
        else:
            self.output.bias.fill_(numbers.mean())

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return super().forward(hidden, batch)[..., 0]

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        trained = ~batch.targets.isnan()
        errors = exact(scores) - batch.targets.where(trained, 0)
        return Loss(errors.square().where(trained, 0).sum(), trained.sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores


@final
class ChoiceHead(PooledHead):
    """One of the rows of an example."""

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        scores = super().forward(hidden, batch)[..., 0]
        rows = torch.arange(len(scores), device=scores.device)
        examples = torch.arange(len(batch.targets), device=scores.device)
        option = rows - torch.searchsorted(batch.owner, examples)[batch.owner]  # its rows stand together
        most = int(option.amax()) + 1 if len(rows) else 0
        return scores.new_full((len(examples), most), -torch.inf).index_put((batch.owner, option), scores)

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        return Loss(cross_entropy(scores, batch.targets, smoothing).sum(), (batch.targets != IGNORE).sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.argmax(dim=-1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return attention_weights(scores, scores > -torch.inf)


def states_at(places: Tensor, hidden: Tensor) -> Tensor:
    """places `(rows, places)`, hidden `(rows, steps, width)` -> `(rows, places, width)`, 0 where there is no
    place."""
    there = (places >= 0)[..., None]
    return hidden.gather(1, places.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])).where(there, 0)


@final
class TaggingHead(Head):
    """A tag for each place. With a CRF the loss of a row is -log p of all its tags, counted over its words."""

    def __init__(self, head: HeadConfig, width: int, labels: int, names: Sequence[str] = ()) -> None:
        super().__init__(head, width, labels)
        self.transitions = CRF(labels, names) if head.crf else None

    def set_weights(self, weights: Tensor) -> None:
        if self.transitions is not None:
            raise UsageError(
                "head.class_weights must be none where head.crf is true: its loss is of all tags of a text"
                " together"
            )
        self.weights.copy_(weights)

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return self.scored(states_at(batch.places, hidden))

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        """Smoothing has no meaning for a CRF."""
        there = batch.places >= 0
        trained = (batch.targets != IGNORE) & there
        if self.transitions is not None:
            losses = self.transitions.losses(exact(scores), there, batch.targets)
        else:
            losses = cross_entropy(scores, batch.targets.where(trained, IGNORE), smoothing, self.weights)
        return Loss(losses.sum(), trained.sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        there = batch.places >= 0
        if self.transitions is not None:
            return self.transitions.decode(exact(scores), there)
        return scores.argmax(dim=-1).where(there, -1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        there = batch.places >= 0
        if self.transitions is not None:
            return self.transitions.marginals(exact(scores), there)
        return scores.softmax(dim=-1).where(there[..., None], 0)


@final
class SpanHead(Head):
    """Where an answer begins and where it ends. The loss of a row is that of both, -log p(start) - log
    p(end)."""

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return self.scored(states_at(batch.places, hidden)).masked_fill(
            (batch.places < 0)[..., None], -torch.inf
        )

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        trained = (batch.targets != IGNORE).all(dim=1, keepdim=True)
        losses = cross_entropy(scores.transpose(1, 2), batch.targets.where(trained, IGNORE), smoothing)
        return Loss(losses.sum(), trained.sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        """The best span of at most MAX_ANSWER_LENGTH places that ends where it starts or after, or (0, 0), which
        stands for no answer."""
        start, end = exact(scores).unbind(-1)
        ends = F.pad(end, (0, MAX_ANSWER_LENGTH - 1), value=-torch.inf).unfold(1, MAX_ANSWER_LENGTH, 1)
        both = start[..., None] + ends  # (rows, places, length - 1)
        both[:, 0, 1:] = -torch.inf  # what begins where there is no answer ends there
        best = both.flatten(1).argmax(dim=1)
        first = best // MAX_ANSWER_LENGTH
        span = torch.stack([first, first + best % MAX_ANSWER_LENGTH], dim=1)
        return span.where((batch.places >= 0).any(dim=1, keepdim=True), -1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        by_place = scores.transpose(1, 2)
        return attention_weights(by_place, by_place > -torch.inf).transpose(1, 2)


def exact(scores: Tensor) -> Tensor:
    """In float32 or better."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def cross_entropy(scores: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None = None) -> Tensor:
    """scores `(..., labels)`, -inf at what cannot be, targets `(...)` with IGNORE -> -log p `(...)` in nats,
    0 at IGNORE, times the weight `(labels,)` of the target. With `smoothing` ε the target is `(1 - ε) one-hot
    + ε uniform` over what can be (Szegedy et al. 2016).
    """
    scores = exact(scores)
    possible = scores > -torch.inf
    log_probs = scores.masked_fill(~possible, torch.finfo(scores.dtype).min).log_softmax(dim=-1)
    trained = targets != IGNORE
    wanted = targets.where(trained, 0)
    losses = -log_probs.gather(-1, wanted[..., None])[..., 0]
    if smoothing:
        mean = -log_probs.where(possible, 0).sum(dim=-1) / possible.sum(dim=-1).clamp(min=1)
        losses = (1 - smoothing) * losses + smoothing * mean
    if weights is not None:
        losses = losses * weights.to(losses.dtype)[wanted]
    return losses.where(trained, 0)
