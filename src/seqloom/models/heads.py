"""Heads: from the states of an encoder to an answer.

    one state   s = pool(h_1 .. h_n)                     `layers/pooling.py`
    two texts   compared: [u; v; |u - v|; u * v]         Mou et al. 2016; Conneau et al. 2017
                cosine: u · v / |u| |v|                  Reimers & Gurevych 2019, section 3
                both orders: s_1 + s_2                   Radford et al. 2018, figure 1
                of the first two each text is a row, of the last each order
    scores      W φ(V s + c) + b, or W s + b             dropout before each product

    classification  softmax of the scores                `(examples, labels)`
    multi-label     σ of each score by itself            `(examples, labels)`
    regression      the score is the number              `(examples,)`
    tagging         softmax, or a CRF (`layers/crf.py`)  `(rows, places, labels)`
    span            softmax over the places, twice       `(rows, places, 2)`: Devlin et al. 2019, 4.2
    choice          softmax over the rows of an example  `(examples, most options)`: Radford et al. 2018

Scores are -inf where a row has no such place, or an example no such option. A loss is a sum over examples (of
tags: over words). With class weights w it is Σ w_y l, and the count stays that of the examples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import HeadConfig
from seqloom.errors import UsageError
from seqloom.layers.attention import attention_weights
from seqloom.layers.crf import CRF
from seqloom.layers.linear import Linear
from seqloom.layers.pooling import AttentionPooling, pool_states
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.protocols import EncodedBatch, Loss
from seqloom.shapes import IGNORE

HeadKind = Literal["classification", "multi-label", "regression", "tagging", "span", "choice"]
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
MAX_ANSWER_LENGTH = 30
"""The most places of a span that `predictions` takes, as in the code of Devlin et al. 2019."""


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
    """The head of a kind, with no setting left at "auto".

    `width` is that of a state, which `directions` share. `pairs` says that an example is two rows, unless
    head.pair is joined. A CRF takes from the `names` of tags which may follow which.

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
    head_class = ClassificationHead if kind == "classification" else MultiLabelHead
    return head_class(head, width, labels, directions, pairs)


class Head(nn.Module):
    """Dropout, a hidden layer unless `head.hidden_width` is 0, and the scores."""

    weighted: ClassVar[bool] = False
    """Whether the loss is a sum over labels, each of which may have a weight."""
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

    def score(self, states: Tensor) -> Tensor:
        """states `(..., width)` -> scores `(..., outputs)`."""
        states = self.dropout(states)
        if self.hidden is not None:
            states = self.dropout(self.activation(self.hidden(states)))
        scores: Tensor = self.output(states)
        return scores

    def set_class_weights(self, weights: Tensor) -> None:
        """Weights `(labels,)` of the labels in the loss, 1 until then. They belong to a training and are not
        saved with the model.

        Raises UsageError if the loss is not one of labels.
        """
        if not self.weighted:
            raise UsageError(
                f"head.class_weights must be none for {type(self).__name__}: its loss is not a sum over"
                " labels"
            )
        self.weights.copy_(weights)

    def start_from(self, targets: NDArray[np.generic]) -> None:
        """Sets what a new head takes from the targets of the training."""

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden `(rows, steps, width)`, mask `(rows, steps)` -> one state of each row, `(rows, width)`: that
        which the scores read, or where they read many the mean."""
        return pool_states("mean", hidden, mask)

    def cross_entropy(self, scores: Tensor, targets: Tensor, smoothing: float) -> Loss:
        """scores `(..., labels)`, targets `(...)` with IGNORE -> their loss, weighted where labels have
        weights."""
        weights = self.weights if self.weighted else None
        losses = cross_entropy(scores, targets, smoothing, weights)
        return Loss(losses.sum(), (targets != IGNORE).sum())

    @abstractmethod
    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        """hidden `(rows, steps, width)` -> scores (above)."""

    @abstractmethod
    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        """In nats (of numbers squared errors); nothing if the target is IGNORE (of numbers nan)."""

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
    """A head that reads one state of each row, or of each pair of rows. Its answer is the highest score."""

    def __init__(
        self, head: HeadConfig, width: int, outputs: int, directions: int, pairs: bool = False
    ) -> None:
        self.pair = head.pair if pairs else "joined"
        if self.pair == "cosine":
            head = replace(head, dropout=0.0)  # of one number, nothing would be left
        super().__init__(head, {"compared": 4 * width, "cosine": 1}.get(self.pair, width), outputs)
        assert head.pooling != "auto"
        self.pooling, self.directions = head.pooling, directions
        self.attention = AttentionPooling(width) if head.pooling == "attention" else None

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return pool_states(self.pooling, hidden, mask, self.directions, self.attention)

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return self.score(self._states(hidden, batch))

    def _states(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        """hidden `(rows, steps, width)` -> one state of each example: `(examples, width)`, of compared pairs
        `(examples, 4 width)`, of those whose cosine is taken `(examples, 1)`."""
        states = self.pooled(hidden, batch.tokens >= 0)
        if self.pair == "joined":
            return states
        u, v = states[::2], states[1::2]
        if self.pair == "cosine":
            return F.cosine_similarity(u, v, dim=-1)[:, None]
        if self.pair == "both_orders":
            return u + v
        return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        return self.cross_entropy(scores, batch.targets, smoothing)

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.argmax(dim=-1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return attention_weights(scores, scores > -torch.inf)


@final
class ClassificationHead(PooledHead):
    """One label."""

    weighted = True

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.softmax(dim=-1)


@final
class MultiLabelHead(PooledHead):
    """Any number of labels. The loss of an example is the sum over its labels, -log p of them all; smoothing
    ε takes 0 and 1 to ε/2 and 1 - ε/2."""

    weighted = True

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        scores = at_least_float32(scores)
        trained = batch.targets != IGNORE
        targets = batch.targets.where(trained, 0).to(scores.dtype) * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(
            scores, targets, self.weights.to(scores.dtype), reduction="none"
        )
        return Loss(losses.where(trained, 0).sum(), trained.any(dim=1).sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores > 0

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return scores.sigmoid()


@final
class RegressionHead(PooledHead):
    """A number. The loss is (score - target)², not in nats; smoothing has no meaning here."""

    def start_from(self, targets: NDArray[np.generic]) -> None:
        numbers = torch.from_numpy(np.asarray(targets))
        self.initialise_bias(numbers[numbers.isfinite()])

    @torch.no_grad()
    def initialise_bias(self, targets: Tensor) -> None:
        """A new head starts from the mean of the training's numbers `(examples,)`: at the learning rates of
        fine-tuning its bias would need a whole training to get there. A cosine of 0 starts as the smallest
        number, one of 1 as the largest."""
        if self.output.bias.any():
            return
        low, high = targets.aminmax()
        if self.pair == "cosine" and self.hidden is None:
            self.output.bias.fill_(low)
            self.output.weight.fill_(high - low)
        else:
            self.output.bias.fill_(targets.mean())

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return super().forward(hidden, batch)[..., 0]

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        trained = ~batch.targets.isnan()
        errors = at_least_float32(scores) - batch.targets.where(trained, 0)
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
        # the rows of an example are neighbours
        first_row = torch.searchsorted(batch.owner, examples)
        option = rows - first_row[batch.owner]
        most = int(option.amax()) + 1 if len(rows) else 0
        return scores.new_full((len(examples), most), -torch.inf).index_put(
            (batch.owner, option), scores
        )


class PlacesHead(Head):
    """A head that reads the states at `batch.places`."""

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        """The states are 0 where there is no place."""
        indices = batch.places.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.score(hidden.gather(1, indices).where((batch.places >= 0)[..., None], 0))


@final
class TaggingHead(PlacesHead):
    """A tag for each place. With a CRF the loss of a row is -log p of all its tags, counted over words."""

    weighted = True

    def __init__(
        self, head: HeadConfig, width: int, labels: int, names: Sequence[str] = ()
    ) -> None:
        super().__init__(head, width, labels)
        self.transitions = CRF(labels, names) if head.crf else None

    def set_class_weights(self, weights: Tensor) -> None:
        if self.transitions is not None:
            raise UsageError(
                "head.class_weights must be none where head.crf is true: its loss is of all tags of a text"
                " together"
            )
        super().set_class_weights(weights)

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        """Smoothing has no meaning for a CRF."""
        exists = batch.places >= 0
        targets = batch.targets.where(exists, IGNORE)
        if self.transitions is None:
            return self.cross_entropy(scores, targets, smoothing)
        losses = self.transitions.losses(at_least_float32(scores), exists, batch.targets)
        return Loss(losses.sum(), (targets != IGNORE).sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        exists = batch.places >= 0
        if self.transitions is not None:
            return self.transitions.decode(at_least_float32(scores), exists)
        return scores.argmax(dim=-1).where(exists, -1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        exists = batch.places >= 0
        if self.transitions is not None:
            return self.transitions.marginals(at_least_float32(scores), exists)
        return scores.softmax(dim=-1).where(exists[..., None], 0)


@final
class SpanHead(PlacesHead):
    """Where an answer begins and where it ends. The loss of a row is that of both, -log p(start) - log
    p(end)."""

    def forward(self, hidden: Tensor, batch: EncodedBatch) -> Tensor:
        return super().forward(hidden, batch).masked_fill((batch.places < 0)[..., None], -torch.inf)

    def loss(self, scores: Tensor, batch: EncodedBatch, smoothing: float = 0.0) -> Loss:
        trained = (batch.targets != IGNORE).all(dim=1, keepdim=True)
        total, _ = self.cross_entropy(
            scores.transpose(1, 2), batch.targets.where(trained, IGNORE), smoothing
        )
        return Loss(total, trained.sum())

    def predictions(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        """The best span of at most MAX_ANSWER_LENGTH places, or (0, 0), which means no answer."""
        start, end = at_least_float32(scores).unbind(-1)
        padded = F.pad(end, (0, MAX_ANSWER_LENGTH - 1), value=-torch.inf)
        # of each start, the ends 0, 1, ... places later
        ends = padded.unfold(1, MAX_ANSWER_LENGTH, 1)
        spans = start[..., None] + ends  # (rows, places, length - 1)
        spans[:, 0, 1:] = -torch.inf  # no answer is the span of place 0 alone
        best = spans.flatten(1).argmax(dim=1)
        first = best // MAX_ANSWER_LENGTH
        span = torch.stack([first, first + best % MAX_ANSWER_LENGTH], dim=1)
        return span.where((batch.places >= 0).any(dim=1, keepdim=True), -1)

    def probabilities(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        by_place = scores.transpose(1, 2)
        return attention_weights(by_place, by_place > -torch.inf).transpose(1, 2)


def at_least_float32(scores: Tensor) -> Tensor:
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def cross_entropy(
    scores: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None = None
) -> Tensor:
    """scores `(..., labels)`, -inf at impossible labels, targets `(...)` with IGNORE -> -log p `(...)` in
    nats, 0 at IGNORE, times the weight `(labels,)` of the target. With `smoothing` ε the target is `(1 - ε)
    one-hot + ε uniform` over the possible labels (Szegedy et al. 2016).
    """
    scores = at_least_float32(scores)
    possible = scores > -torch.inf
    log_probs = scores.masked_fill(~possible, torch.finfo(scores.dtype).min).log_softmax(dim=-1)
    trained = targets != IGNORE
    known = targets.where(trained, 0)
    losses = -log_probs.gather(-1, known[..., None])[..., 0]
    if smoothing:
        mean = -log_probs.where(possible, 0).sum(dim=-1) / possible.sum(dim=-1).clamp(min=1)
        losses = (1 - smoothing) * losses + smoothing * mean
    if weights is not None:
        losses = losses * weights.to(losses.dtype)[known]
    return losses.where(trained, 0)
